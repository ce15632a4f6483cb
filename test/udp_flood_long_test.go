// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"testing"
	"time"
)

// TestUDPFloodLong: the same for a minute: nothing grows with what has been.
func TestUDPFloodLong(t *testing.T) { flood(t, time.Minute) }

// SPDX-License-Identifier: Apache-2.0

//go:build !long

package test

import "time"

// rollingSpread is over what time the WebSockets of a backend are closed.
const rollingSpread = 1200 * time.Millisecond

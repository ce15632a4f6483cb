// SPDX-License-Identifier: Apache-2.0

// Package clock is the one place where the data plane reads the time: it maps
// the process's monotonic clock onto balance.Instant, eight bytes that the
// pure core can take as an argument.
package clock

import (
	"time"

	"github.com/weirlb/weir/balance"
)

var epoch = time.Now()

// Now returns the current instant. It is cheap (one vDSO call).
func Now() balance.Instant { return balance.Instant(time.Since(epoch)) }

// Time returns the wall-clock time of an instant, for deadlines and logs.
func Time(t balance.Instant) time.Time { return epoch.Add(time.Duration(t)) }

// SPDX-License-Identifier: Apache-2.0

package balance

import "time"

// Instant is a point on a monotonic time line, in nanoseconds since an origin
// that the caller chooses once per process or per simulation. Only differences
// mean anything; negative instants are legal. The zero value is the origin.
type Instant int64

// Add returns the instant d later (earlier when d is negative).
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Before reports whether t lies before u.
func (t Instant) Before(u Instant) bool { return t < u }

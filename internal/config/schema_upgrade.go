// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Upgrade is how a handover to a new binary goes.
type Upgrade struct {
	// Deadline is when the old process cuts what is left of its connections,
	// counted from the moment from which the new one serves.
	Deadline time.Duration
}

var handoverFields = []field[Upgrade]{
	key("deadline", "15m", duration(time.Second, 7*day), func(u *Upgrade) *time.Duration { return &u.Deadline },
		"how long the old process finishes what it has begun, tunnels included, after the new one serves"),
}

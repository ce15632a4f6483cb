// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// The keys of connections that last: how tunnels are ended when somebody drains,
// and for the sake of balance.

// spreadKey declares spread beside a deadline.
func spreadKey[T any](at func(*T) *time.Duration) field[T] {
	return key("spread", "5s", duration(tick, day), at,
		"before the deadline, tunnels (WebSocket) and sessions are ended within this time, a few at a time; their clients come back at once")
}

var rebalanceFields = []field[Rebalance]{
	key("above", "20%", share(0.01, 10), func(r *Rebalance) *float64 { return &r.Above }, "by how much more than its part a backend may have"),
	key("per_minute", "10%", share(0.001, 10), func(r *Rebalance) *float64 { return &r.PerMinute }, "of the pool's tunnels that may be ended in a minute, at least one"),
	key("min_age", "1m", duration(tick, day), func(r *Rebalance) *time.Duration { return &r.MinAge }, "younger ones are left alone").off("none", 0),
}

// checkRebalance refuses what would end the same tunnels for ever.
func checkRebalance(d *decoder, n *node, p *Pool) {
	if p.Rebalance != nil && p.Keyed() {
		d.fault(n.at("rebalance"), "balance: "+p.Balance+" sends a client back to where it was, so rebalance would end its tunnels again and again",
			"remove it, or use balance: least_request")
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/weirlb/weir/pool"
)

// TestHedgesCutTheTail: one answer in thirty takes a second, whichever server gives
// it. Hedged when 95 % would have come, the 99th percentile is a fraction, at an
// amplification within the budget, and nothing is left at rest.
func TestHedgesCutTheTail(t *testing.T) {
	play := func(seed uint64, h pool.Hedge, fails float64) (*stage, *PhaseStats) {
		st := (&setting{
			seed: seed, policy: "p2c", servers: 6, load: 0.3,
			server:  ServerConfig{Service: Mixture(0.03, Exponential(20*time.Millisecond), Fixed(time.Second)), Concurrency: 4, Errors: fails},
			traffic: Traffic{Until: 60 * time.Second},
			tune: func(_ int, c *BalancerConfig) {
				c.Retry = pool.NewRetryRules(2, true, []int{500, 502, 503, 504}, 5*time.Second)
				c.Retry.Hedge = h
			},
		}).build()
		st.Phase("all")
		st.Finish(limit)
		return st, st.Stats().Phase("all")
	}
	eachSeed(t, func(t *testing.T, seed uint64) {
		for _, fails := range []float64{0, 0.05} {
			_, without := play(seed, pool.Hedge{}, fails)
			st, with := play(seed, pool.Hedge{Percent: 95}, fails)
			before, after := without.Latency.Quantile(0.99), with.Latency.Quantile(0.99)
			if before < 900*time.Millisecond || after > 400*time.Millisecond {
				t.Errorf("%v fail: p99 %v, %v with hedges", fails, before, after)
			}
			b := st.balancers[0]
			if a := float64(b.attempts) / float64(b.requests); a < 1.02 || a > 1.2 {
				t.Errorf("%v fail: amplification %.3f", fails, a)
			}
			if n := b.Pool().Snapshot().InFlight; n != 0 {
				t.Errorf("%v fail: %d in flight at rest", fails, n)
			}
		}
	})
}

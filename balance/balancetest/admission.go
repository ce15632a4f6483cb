// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/weirlb/weir/balance"
)

// admission: one newcomer among ten at several shares, in a simulated pool where
// every backend serves one request after another, at 30 and at 70 % load. What
// it gets, as part of what is fair, must be small at a small share, nearly all
// at 0.9 and never fall while the share grows: a share must not be a weight,
// under which an idle newcomer wins nearly every comparison of load.
func admission(t *testing.T, s *suite) {
	const n, requests = 10, 20_000
	shares := []float64{0.1, 0.5, 0.9, 1}
	noise := 5 * math.Sqrt((1-1.0/n)/(1.0/n)/requests) // of a rate of 1
	for _, load := range []float64{0, 0.3, 0.7} {
		before := 0.0
		for _, share := range shares {
			r := s.rig(t, false, equal(n)...)
			r.members[0].Backend.SetShare(share)
			rate := float64(r.simulate(load, requests)) / requests * n
			what := fmt.Sprintf("at load %g and share %g the newcomer gets %.3f of what is fair", load, share, rate)
			t.Log(what)
			if share == 0.1 && rate > 0.2+noise*0.5 || rate == 0 {
				t.Errorf("%s, want more than 0 and at most 0.2", what)
			}
			if share == 0.9 && rate < 0.9-s.slack-noise {
				t.Errorf("%s, want at least 0.9", what)
			}
			if rate < before-2*noise {
				t.Errorf("%s, less than at the share before", what)
			}
			before = rate
		}
	}
	// Everyone at a half is everyone: the largest share counts as whole.
	for _, weights := range weightings {
		r := s.rig(t, false, weights...)
		for _, m := range r.members {
			m.Backend.SetShare(0.3)
		}
		counts := make([]int, len(weights))
		for range 10_000 {
			counts[r.pick(r.request())]++
		}
		r.wantShares(fmt.Sprint("all at 0.3: ", weights), counts, floats(weights), s.slack)
	}
}

// simulate plays requests that arrive at random, load times as many as the
// backends can serve (0: each ends before the next comes), and returns how many
// the first backend got.
func (r *rig) simulate(load float64, requests int) (first int) {
	n := len(r.members)
	queue := make([]int, n)    // requests at each backend
	ends := make([]float64, n) // when the one being served is over
	service := func() float64 { return r.dice.ExpFloat64() }
	now := 0.0
	for range requests {
		if load > 0 {
			now += r.dice.ExpFloat64() / (load * float64(n))
		}
		for i := range queue {
			for queue[i] > 0 && ends[i] <= now {
				r.members[i].Backend.Release()
				if queue[i]--; queue[i] > 0 {
					ends[i] += service()
				}
			}
		}
		q := r.request()
		q.Now = balance.Instant(now * 1e9)
		i := r.pick(q)
		if i == 0 {
			first++
		}
		if load == 0 {
			continue
		}
		r.members[i].Backend.Reserve()
		if queue[i]++; queue[i] == 1 {
			ends[i] = now + service()
		}
	}
	return first
}

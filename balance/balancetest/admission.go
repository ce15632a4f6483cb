// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// admission: one newcomer among ten at several shares, in a simulated pool where
// every backend serves one request after another, idle and at 30 and 70 % load.
// What it gets, as part of what is fair, must be small at a small share, nearly
// all at 0.9 and never fall while the share grows: a share must not be a weight,
// under which an idle newcomer wins nearly every comparison of load. It makes no
// difference whether the share is stored or granted by a ramp.
func admission(t *testing.T, s *suite) {
	share := (*balance.Backend).SetShare
	ramp := func(b *balance.Backend, share float64) { // so long that it stands still
		b.SetRamp(&balance.Ramp{Window: 1 << 62, From: share})
	}
	s.admit(t, "share", share, 3, 0)
	s.admit(t, "share", share, 1, 0.3)
	s.admit(t, "share", share, 1, 0.7)
	s.admit(t, "ramp", ramp, 1, 0.7)
	everyoneBelow(t, s)
}

// admit plays one newcomer of that weight among nine of weight 1 at each share.
func (s *suite) admit(t *testing.T, name string, grant func(*balance.Backend, float64), weight uint32, load float64) {
	const n, requests = 10, 20_000
	weights := equal(n)
	weights[0] = weight
	fair := float64(weight) / float64(n-1+weight)
	noise := 4 * math.Sqrt((1-fair)/fair/requests) // of a rate of 1, 0.085 at weight 1
	uneven := s.slack - 0.05                       // what the policy may be off in any case
	before := 0.0
	for _, share := range []float64{0.1, 0.5, 0.9, 1} {
		r := s.rig(t, false, weights...)
		grant(r.members[0].Backend, share)
		rate := float64(r.simulate(load, requests)[0]) / requests / fair
		what := fmt.Sprintf("weight %d at load %g and %s %g: the newcomer gets %.3f of what is fair", weight, load, name, share, rate)
		t.Log(what)
		low, high := 0.9-uneven-noise, 1.05+uneven+noise
		switch share {
		case 0.1:
			low, high = 0.01, 0.2*(1+uneven)
		case 0.5:
			low, high = 0.3, 0.9+uneven
		}
		if rate < low || rate > high {
			t.Errorf("%s, want %.3f to %.3f", what, low, high)
		}
		if rate < before-noise {
			t.Errorf("%s, less than at the share before", what)
		}
		before = rate
	}
}

// everyoneBelow: everyone at a half is everyone, as the largest share counts as
// whole.
func everyoneBelow(t *testing.T, s *suite) {
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

// ramp: in a slow start under way the newcomer's rate follows the time.
func ramp(t *testing.T, s *suite) {
	const n, requests, parts = 10, 20_000, 5
	for _, load := range []float64{0.3, 0.7} {
		r := s.rig(t, false, equal(n)...)
		whole := requests / (load * n) // seconds
		r.members[0].Backend.SetRamp(&balance.Ramp{Window: time.Duration(whole * 1e9), From: 0.1})
		got := r.simulate(load, requests)
		rates := make([]float64, parts)
		for part := range rates {
			rates[part] = float64(got[part+1]) / requests * parts * n
		}
		t.Logf("load %g: in the fifths of its ramp from 0.1 the newcomer gets %.2f of what is fair", load, rates)
		noise := 5 * math.Sqrt(float64(n-1)*parts/requests)
		// The mean shares of the fifths are 0.19, 0.37, 0.55, 0.73, 0.91.
		if rates[0] > 0.38+s.slack || rates[parts-1] < 0.85-s.slack-noise {
			t.Errorf("load %g: it gets %.2f in the first fifth of its ramp and %.2f in the last", load, rates[0], rates[parts-1])
		}
		for part := range rates[1:] {
			if rates[part+1] < rates[part]-noise {
				t.Errorf("load %g: it gets less as its ramp goes on: %.2f", load, rates)
			}
		}
	}
}

// learning: a policy that learns gives equal shares for equal latencies, weights
// hold, and it serves whatever it is told.
func learning(t *testing.T, s *suite) {
	learner, ok := s.build().(balance.Learner)
	if !ok {
		t.Skip("learns nothing")
	}
	for _, weights := range weightings {
		r := s.rig(t, false, weights...)
		learner = r.policy.(balance.Learner)
		counts := make([]int, len(weights))
		for range 20_000 {
			i := r.pick(r.request())
			counts[i]++
			took := time.Duration(1e7 + r.dice.IntN(2e6)) // by chance up to a fifth more
			learner.Learn(r.members[i].Backend, balance.Observation{Now: r.now, FirstByte: took})
		}
		r.wantShares(fmt.Sprint(weights), counts, floats(weights), s.slack)
	}
	r := s.rig(t, false, equal(3)...)
	for k, o := range []balance.Observation{
		{}, {Failed: true}, {FirstByte: -1}, {FirstByte: 1 << 62}, {FirstByte: 1 << 62, Failed: true}, {Now: -1 << 62}, {Now: 1 << 62},
	} {
		learner.Learn(r.members[k%3].Backend, o)
		q := r.request()
		r.pick(q)
		q.Now = o.Now
		r.pick(q)
	}
	if got := testing.AllocsPerRun(50, func() {
		r.now += 1e7
		learner.Learn(r.members[0].Backend, balance.Observation{Now: r.now, FirstByte: 5})
	}); got != 0 {
		t.Errorf("Learn allocates %g times", got)
	}
}

// simulate plays requests that arrive at random, load times as many as the
// backends can serve (0: each ends before the next comes), and returns how many
// the first backend got: of all, and of each fifth. What learns is taught.
func (r *rig) simulate(load float64, requests int) (first [6]int) {
	learner, _ := r.policy.(balance.Learner)
	n := len(r.members)
	queue := make([][]float64, n) // when the requests at each backend came
	ends := make([]float64, n)    // when the one being served is over
	service := func() float64 { return r.dice.ExpFloat64() }
	now := 0.0
	for k := range requests {
		if load > 0 {
			now += r.dice.ExpFloat64() / (load * float64(n))
		}
		for i := range queue {
			for len(queue[i]) > 0 && ends[i] <= now {
				r.members[i].Backend.Release()
				if learner != nil {
					learner.Learn(r.members[i].Backend, balance.Observation{
						Now: balance.Instant(ends[i] * 1e9), FirstByte: time.Duration((ends[i] - queue[i][0]) * 1e9),
					})
				}
				if queue[i] = queue[i][1:]; len(queue[i]) > 0 {
					ends[i] += service()
				}
			}
		}
		q := r.request()
		q.Now = balance.Instant(now * 1e9)
		i := r.pick(q)
		if i == 0 {
			first[0]++
			first[1+k*5/requests]++
		}
		if load == 0 {
			continue
		}
		r.members[i].Backend.Reserve()
		if queue[i] = append(queue[i], now); len(queue[i]) == 1 {
			ends[i] = now + service()
		}
	}
	return first
}

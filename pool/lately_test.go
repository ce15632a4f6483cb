// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// answered lets a member give answers that took so long.
func answered(p *Pool, m *member, times ...time.Duration) {
	for _, d := range times {
		var l Lease
		l.take(p, m, m.b, 0)
		m.b.Reserve()
		l.Done(Outcome{Now: 0, Status: 200, Sent: true, FirstByte: d, Total: d})
	}
}

// TestLatency holds the table to sorted answers: each of its times is within an
// eighth of one that has the percentage below it.
func TestLatency(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, members := range []int{1, 3, 64, 200} {
		p := benchPool(members, nil)
		if got := p.Latency(50); got != 0 {
			t.Errorf("nothing is known, but half of the answers take %v", got)
		}
		var all []time.Duration
		for range 40 {
			for i, m := range p.core.order {
				d := time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond))
				answered(p, m, d)
				if step := max((members+latelyLook-1)/latelyLook, 1); i%step == 0 {
					all = append(all, max(d, 1<<histUnit/2))
				}
			}
		}
		p.core.lookLately()
		slices.Sort(all)
		for percent := range 101 {
			want := all[min(max((percent*len(all)+99)/100-1, 0), len(all)-1)]
			got := p.Latency(percent)
			if off := float64(got-want) / float64(want); want > time.Millisecond && (off > 0.125 || off < -0.125) {
				t.Errorf("%d members: %d %% of the answers take up to %v, said is %v", members, percent, want, got)
			}
		}
		if p.Latency(-5) != p.Latency(0) || p.Latency(500) != p.Latency(100) {
			t.Error("percentages are not held to 0 to 100")
		}
	}
}

// TestLatencyOfFew: a handful of answers says nothing.
func TestLatencyOfFew(t *testing.T) {
	p := benchPool(1, nil)
	for i := range latelyLeast {
		p.core.lookLately()
		if got := p.Latency(50); got != 0 {
			t.Fatalf("%v after %d answers", got, i)
		}
		answered(p, p.core.order[0], time.Second)
	}
	p.core.lookLately()
	if got := p.Latency(50); got < 875*time.Millisecond || got > 1125*time.Millisecond {
		t.Errorf("%v, not a second", got)
	}
}

// TestHopelessRetry: no retry is made, nor paid for, that the pool's fastest
// answers would not finish in time.
func TestHopelessRetry(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{MinPerSecond: 100} })
	rr := NewRetryRules(9, true, nil, 0)
	f := Failure{Kind: Reset, Sent: true, Replayable: true, By: balance.Instant(time.Second)}
	at := func(d time.Duration) Decision { return p.Next(balance.Instant(d), &rr, new(Try), f, 0) }
	if d := at(time.Second - 1); !d.Again {
		t.Errorf("nothing is known of the pool: %+v", d)
	}
	if d := at(time.Second); d.Again || d.Why != TooLate || !d.Declined {
		t.Errorf("no time is left at all: %+v", d)
	}
	times := []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}
	for range 27 {
		times = append(times, 400*time.Millisecond)
	}
	answered(p, p.core.order[0], times...)
	p.core.lookLately()
	paid := p.budget.Load().retries.Load()
	if d := at(950 * time.Millisecond); d.Again || d.Why != TooLate || !d.Declined || p.budget.Load().retries.Load() != paid {
		t.Errorf("50 ms are left of which a tenth need 100: %+v", d)
	}
	if d := at(700 * time.Millisecond); !d.Again {
		t.Errorf("300 ms are left, and a tenth come within 100: %+v", d)
	}
	f.By = 0
	if d := at(time.Hour); !d.Again {
		t.Errorf("without a deadline: %+v", d)
	}
	refused := Failure{Kind: ConnectRefused, By: balance.Instant(time.Second)}
	if d := p.Next(balance.Instant(999*time.Millisecond), &rr, new(Try), refused, 0); !d.Redispatch {
		t.Errorf("a redispatch costs nothing: %+v", d)
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

const mean = 100 * time.Millisecond

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.4f, want %.4f +- %g", what, got, want, tolerance)
	}
}

// The area under a charge is what a request held for the mean leaves, however
// much of it the failed attempt has paid itself.
func TestChargeIntegral(t *testing.T) {
	for _, elapsed := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond} {
		for _, start := range []balance.Instant{0, -1e12, 1 << 60} {
			b := balance.NewBackend("b", "")
			b.Charge(start, mean, elapsed)
			area := 0.0
			const step = time.Millisecond / 4
			for at := time.Duration(0); at < 12*mean; at += step {
				area += b.Load(start.Add(at)) * step.Seconds()
			}
			near(t, "area", area+elapsed.Seconds(), mean.Seconds(), 0.001)
		}
	}
}

func TestChargeDecay(t *testing.T) {
	b := balance.NewBackend("b", "")
	b.Charge(1e9, mean, 0)
	near(t, "at once", b.Load(1e9), 1, 0.001)
	near(t, "after one mean", b.Load(1e9+1e8), math.Exp(-1), 0.002)
	near(t, "after two", b.Load(1e9+2e8), math.Exp(-2), 0.002)
	b.Charge(1e9+1e8, mean, 0)
	near(t, "a second", b.Load(1e9+1e8), 1+math.Exp(-1), 0.002)
	near(t, "earlier than the charge", b.Load(0), 1+math.Exp(-1), 0.002)
	b.Reserve()
	near(t, "and one in flight", b.Load(1e9+1e8), 2+math.Exp(-1), 0.002)
	b.Release()
	b.SetMeanLatency(2 * mean)
	near(t, "decaying half as fast", b.Load(1e9+3e8), (1+math.Exp(-1))*math.Exp(-1), 0.002)
	if got := b.Load(1e9 + 1e10); got != 0 {
		t.Errorf("after 10 s %g is left", got)
	}
	if got := b.Load(1e9 + 1e8); got != 0 {
		t.Errorf("what was forgotten came back: %g", got)
	}
}

func TestChargeNothing(t *testing.T) {
	b := balance.NewBackend("b", "")
	b.Charge(0, 0, 0)
	b.Charge(0, -1, 0)
	b.Charge(0, mean, mean)
	b.Charge(0, mean, 3*mean)
	if got := b.Load(0); got != 0 {
		t.Errorf("load %g, nothing was to be charged", got)
	}
	b.Charge(0, mean, -time.Second) // a clock that stumbled is no credit
	near(t, "negative elapsed", b.Load(0), 1, 0.001)
	b.SetMeanLatency(0)
	if got := b.Load(1); got != 0 {
		t.Errorf("a mean of zero must forgive, load is %g", got)
	}
}

// No charge is lost under contention, and their number is bounded, not wrapped.
func TestChargeMany(t *testing.T) {
	b := balance.NewBackend("b", "")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				b.Charge(5, mean, 0)
			}
		})
	}
	wg.Wait()
	near(t, "4000 charges", b.Load(5), 4000, 0.01)
	for range 20_000 {
		b.Charge(5, mean, 0)
	}
	near(t, "saturated", b.Load(5), 16384, 1)
}

// A backend that fails at once must not look like the best one: with charges,
// p2c and least_request send it no more than its part, without nearly all.
func TestFailingFastAttractsNothing(t *testing.T) {
	for _, name := range []string{"p2c", "least_request"} {
		for _, charged := range []bool{true, false} {
			p, err := balance.New(name, balance.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := failFast(p, charged)
			if charged && got > 0.3 {
				t.Errorf("%s: a backend that fails at once got %.2f of the work, fair is 0.25", name, got)
			}
			if !charged && got < 0.4 {
				t.Errorf("%s: without charges it got only %.2f; this test proves nothing", name, got)
			}
		}
	}
}

// failFast plays 1,000 requests a second on four backends of 100 ms each, of
// which the first fails after nothing, and returns what part that one gets.
func failFast(policy balance.Policy, charged bool) float64 {
	ms := members(4)
	p := policy.Build(balance.NewSet(ms, 1, false))
	type end struct {
		at balance.Instant
		b  *balance.Backend
	}
	var ends []end
	random, bad, n := uint64(1), 0, 5000
	for k := range n {
		now := balance.Instant(k) * 1e6
		for len(ends) > 0 && ends[0].at <= now {
			ends[0].b.Release()
			ends = ends[1:]
		}
		random = random*6364136223846793005 + 1442695040888963407
		b, _ := p.Pick(balance.Request{Rand: random ^ random>>29, Now: now})
		if b == ms[0].Backend {
			bad++
			if charged {
				b.Charge(now, mean, 0)
			}
			continue
		}
		b.Reserve()
		ends = append(ends, end{now.Add(mean), b})
	}
	return float64(bad) / float64(n)
}

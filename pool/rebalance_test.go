// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// surplusOracle lists what may be ended one by one, as somebody would who writes
// each piece on a card with how far above its part the backend is as long as it
// holds that piece, sorts the cards, and takes the first few.
func surplusOracle(rules *Rebalance, on []Holding, n int) []int {
	total, due := 0, 0.0
	takers := 0
	for _, h := range on {
		if !h.Out && h.Weight > 0 && h.Share > 0 {
			total += h.Held
			due += float64(h.Weight) * h.Share
			takers++
		}
	}
	type card struct {
		of    int
		ratio float64
	}
	var cards []card
	for i, h := range on {
		if h.Out || h.Weight == 0 || h.Share == 0 || takers < 2 {
			continue
		}
		part := float64(total) * (float64(h.Weight) * h.Share) / due
		for k := 1; k <= h.Held; k++ {
			if float64(k) >= math.Floor(part*(1+rules.Above))+1 && float64(k) >= math.Floor(part+2*math.Sqrt(part))+1 {
				cards = append(cards, card{i, float64(k) / part})
			}
		}
	}
	slices.SortStableFunc(cards, func(a, b card) int {
		return cmp.Or(-cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.of, b.of))
	})
	out := make([]int, len(on))
	for _, c := range cards[:min(n, len(cards))] {
		out[c.of]++
	}
	return out
}

func randomHoldings(r *rand.Rand) []Holding {
	on := make([]Holding, 1+r.IntN(8))
	for i := range on {
		on[i] = Holding{Held: r.IntN(200), Weight: uint32(r.IntN(4)), Share: []float64{0, 0.1, 0.5, 1, 1, 1}[r.IntN(6)], Out: r.IntN(6) == 0}
	}
	return on
}

// TestRebalanceOracle compares single steps.
func TestRebalanceOracle(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 6))
		on := randomHoldings(r)
		rules := &Rebalance{Above: []float64{0.01, 0.2, 1}[r.IntN(3)], PerMinute: []float64{0.01, 0.1, 1, 10}[r.IntN(4)]}
		x := Rebalancer{}
		x.Step(1, rules, on)
		x.allowed = float64(r.IntN(40))
		before := x.allowed
		now := balance.Instant(1) // no time passes, so that nothing is added
		perMinute := max(rules.PerMinute*float64(heldBy(on)), 1)
		n := int(min(before, max(perMinute*rebalanceBurst, 1)))
		got, want := x.Step(now, rules, on), surplusOracle(rules, on, n)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %+v of %+v: %v, want %v", seed, rules, on, got, want)
		}
	}
}

func heldBy(on []Holding) (n int) {
	for i := range on {
		if on[i].due() > 0 {
			n += on[i].Held
		}
	}
	return n
}

// TestRebalanceProperties lets what was ended come back to the least loaded, for
// half an hour: never more than the bound is ended in a minute, nobody at or
// below its part gives anything, who is out is left alone, and at the end nobody
// has a surplus and nothing is ended any more.
func TestRebalanceProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		on := randomHoldings(r)
		rules := &Rebalance{Above: 0.2, PerMinute: 0.25}
		x := Rebalancer{}
		total := heldBy(on)
		var ended []int // per second
		for second := range 1800 {
			out := x.Step(balance.Instant(second)*balance.Instant(time.Second), rules, on)
			sum, due := 0, 0.0
			for i := range on {
				due += on[i].due()
			}
			for i := range out {
				if out[i] > 0 && (on[i].due() == 0 || float64(on[i].Held) <= float64(total)*on[i].due()/due) {
					t.Fatalf("seed %d: backend %d of %+v gives %d", seed, i, on, out[i])
				}
				on[i].Held -= out[i]
				sum += out[i]
			}
			ended = append(ended, sum)
			for range sum {
				at := -1
				for i := range on {
					if on[i].due() > 0 && (at < 0 || float64(on[i].Held)/on[i].due() < float64(on[at].Held)/on[at].due()) {
						at = i
					}
				}
				on[at].Held++
			}
		}
		perMinute := max(rules.PerMinute*float64(total), 1)
		for i := range ended {
			in := 0
			for _, n := range ended[max(i-59, 0) : i+1] {
				in += n
			}
			if float64(in) > perMinute*(1+rebalanceBurst)+1 {
				t.Fatalf("seed %d: %d were ended in a minute, of %g allowed", seed, in, perMinute)
			}
		}
		if slices.Max(ended[1500:]) > 0 {
			t.Fatalf("seed %d: it does not come to rest: %+v", seed, on)
		}
	}
}

// TestRebalanceLeavesChanceAlone: what random placement gives is no surplus, but
// for what two standard deviations leave out.
func TestRebalanceLeavesChanceAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 8))
	ended := 0
	for range 2000 {
		on := make([]Holding, 10)
		for i := range on {
			on[i] = Holding{Weight: 1, Share: 1}
		}
		for range 100 {
			on[r.IntN(len(on))].Held++
		}
		for _, n := range surplusOracle(&Rebalance{Above: 0.2}, on, 1000) {
			ended += n
		}
	}
	if part := float64(ended) / (2000 * 100); part > 0.02 {
		t.Errorf("%.3f of what chance has placed would be ended, want at most 0.02", part)
	}
}

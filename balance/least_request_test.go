// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"math"
	"slices"
	"testing"

	"github.com/weirlb/weir/balance"
)

// least_request finds the true minimum of load for weight; an integer oracle
// agrees on who that is, ties included, and ties are broken by weight.
func TestLeastRequestExact(t *testing.T) {
	d, picks := dice(t), 10_000
	if raceEnabled {
		picks = 1000 // 5 standard deviations are allowed, whatever that is
	}
	for _, n := range []int{1, 2, 7, 63, 64, 65, 200, 256} {
		for _, weights := range [][]uint32{{1}, {3, 1, 2}, {49, 7, 1}, {97, 89, 83, 79, 73, 71}} {
			ms := members(n, weights...)
			for _, m := range ms {
				load(m.Backend, (1+d.IntN(3))*int(m.Weight))
			}
			p := build(balance.NewLeastRequest(), ms)
			want, sum := make([]float64, n), 0.0
			for i, a := range ms {
				if !slices.ContainsFunc(ms, func(b balance.Member) bool {
					return b.Backend.InFlight()*int64(a.Weight) < a.Backend.InFlight()*int64(b.Weight)
				}) {
					want[i] = float64(a.Weight)
					sum += want[i]
				}
			}
			for i := range want {
				want[i] /= sum
			}
			within(t, "least_request", chosen(ms, p, d, picks), want)
		}
	}
}

// Above 256 it is the best of 16: the chance that the lightest eighth of the
// members is hit at all is 1 - (7/8)^16 = 0.88.
func TestLeastRequestSampled(t *testing.T) {
	alone(t)
	d := dice(t)
	ms := members(800)
	for i, m := range ms {
		load(m.Backend, i/100)
	}
	counts := chosen(ms, build(balance.NewLeastRequest(), ms), d, 20_000)
	lightest := 0
	for _, c := range counts[:100] {
		lightest += c
	}
	if got := float64(lightest) / 20_000; math.Abs(got-0.88) > 0.02 {
		t.Errorf("the lightest eighth got %.3f, want 0.88", got)
	}
}

// The newcomer's rule of least_request, as it is written: alone at the minimum
// it is admitted with min(1, s/(1-s) x weight / sum of weights).
func TestLeastRequestNewcomer(t *testing.T) {
	alone(t)
	d := dice(t)
	for _, c := range []struct {
		share  float64
		weight uint32
	}{{0.1, 1}, {0.5, 1}, {0.5, 3}, {0.9, 1}, {0.9, 3}, {0.99, 1}, {1, 1}} {
		ms := members(10)
		ms[0].Weight = c.weight
		ms[0].Backend.SetShare(c.share)
		for _, m := range ms[1:] {
			load(m.Backend, 2)
		}
		want := 1.0
		if c.share < 1 {
			want = min(1, c.share/(1-c.share)*float64(c.weight)/float64(9+c.weight))
		}
		counts := chosen(ms, build(balance.NewLeastRequest(), ms), d, 20_000)
		within(t, "newcomer", []int{counts[0], 20_000 - counts[0]}, []float64{want, 1 - want})
	}
}

// Where it ties it is admitted with min(s, s/(1-s) x T / sum) and then has its
// part of the tie; who is excluded counts in neither.
func TestLeastRequestNewcomerTies(t *testing.T) {
	alone(t)
	d := dice(t)
	for _, c := range []struct {
		share      float64
		busy, idle int
	}{{0.1, 0, 19}, {0.5, 0, 19}, {0.9, 0, 19}, {0.5, 15, 4}, {0.9, 18, 1}, {0.5, 9, 0}} {
		ms := members(1 + c.busy + c.idle + 10)
		ms[0].Backend.SetShare(c.share)
		for _, m := range ms[1 : 1+c.busy] {
			load(m.Backend, 1)
		}
		for _, m := range ms[1+c.busy+c.idle:] {
			m.Backend.SetAdmin(balance.Draining)
		}
		ties, sum := float64(1+c.idle), float64(1+c.busy+c.idle)
		want := min(c.share, c.share/(1-c.share)*ties/sum) / ties
		counts := chosen(ms, build(balance.NewLeastRequest(), ms), d, 40_000)
		within(t, "newcomer", []int{counts[0], 40_000 - counts[0]}, []float64{want, 1 - want})
	}
}

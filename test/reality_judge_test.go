// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// answer is one request that has ended.
type answer struct {
	at      time.Duration // when it arrived, since the traffic began
	took    time.Duration
	backend int // -1: it failed
}

// outcome is what a run has brought, in reality or in the simulator.
type outcome struct {
	answers []answer
	came    []time.Duration // when each backend accepted again, since the traffic began
}

// reading is one of the figures that are compared.
type reading struct {
	name  string
	value float64 // milliseconds, or a part of the requests
	grain float64 // of a part: one request; 0: it is a time
}

// readings sums up a run: by the same code for both, so that a quantile is a
// quantile.
func (e *experiment) readings(o *outcome) []reading {
	took := make([]time.Duration, 0, len(o.answers))
	per := make([]float64, len(e.speeds))
	for _, a := range o.answers {
		took = append(took, a.took)
		if a.backend >= 0 {
			per[a.backend]++
		}
	}
	slices.Sort(took)
	n := float64(len(took))
	ms := func(q float64) float64 { return took[int(math.Ceil(q*n))-1].Seconds() * 1000 }
	out := []reading{{e.name + ": p50", ms(0.5), 0}, {e.name + ": p95", ms(0.95), 0}}
	for i, c := range per {
		out = append(out, reading{fmt.Sprintf("%s: share of backend %d", e.name, i+1), c / n, 1 / n})
	}
	if e.deploy != nil {
		theirs, all := e.newcomers(o)
		out = append(out, reading{e.name + ": newcomers' share", theirs / all, 1 / all})
	}
	return out
}

// newcomers counts the requests that arrived shortly after a backend's return,
// over all returns, and those of them that it got.
func (e *experiment) newcomers(o *outcome) (theirs, all float64) {
	for i, came := range o.came {
		for _, a := range o.answers {
			if a.at < came || a.at >= came+e.deploy.look {
				continue
			}
			all++
			if a.backend == i {
				theirs++
			}
		}
	}
	return theirs, all
}

// failed counts the requests that no backend answered well.
func (o *outcome) failed() (n int) {
	for _, a := range o.answers {
		if a.backend < 0 {
			n++
		}
	}
	return n
}

// The rules by which reality is held against the simulator's runs. They are for
// several readings of a system that is itself random: each of a right system's
// readings lies outside the 5-95 % band once in ten times, and one in a hundred
// outside the 0.5-99.5 % band, so that with 33 readings nearly every run of a
// right system would break "all inside", and every third "none outside the wider
// one". What is demanded instead, of one look at all readings together:
//
//   - No more of them are outside their 5-95 % band than Binomial(k, 0.1) exceeds
//     with probability lookLevel.
//   - None is further from the simulator's mean than farSigmas of its standard
//     deviations. That is for a single reading that is far off, which the count
//     alone would let pass. (Times are compared by their logarithms; a share may
//     differ by one request more.)
//
// A look that breaks a rule is repeated once, with other seeds: a right system
// fails twice in a row about once in ten thousand times, while what is wrong with
// a wrong one is still wrong. TestRealityRules measures both, on the simulator.
const (
	bandPart  = 0.05 // on either side
	lookLevel = 0.002
	farSigmas = 5
)

// verdict is what one look has shown.
type verdict struct {
	readings, outside, allowed int
	far                        []string
	table                      strings.Builder
}

func (v *verdict) ok() bool { return v.outside <= v.allowed && len(v.far) == 0 }

func (v *verdict) String() string {
	out := fmt.Sprintf("%d of %d readings outside the simulator's 5-95 %% band, %d allowed", v.outside, v.readings, v.allowed)
	if len(v.far) > 0 {
		out += "; far off: " + strings.Join(v.far, ", ")
	}
	return out + "\n" + v.table.String()
}

// compare looks at the readings of reality beside those of runs of the simulator:
// worlds[i] has the same readings in the same order.
func compare(real []reading, worlds [][]reading) *verdict {
	v := &verdict{readings: len(real), allowed: allowedOutside(len(real))}
	fmt.Fprintf(&v.table, "  %-34s %9s  %9s %9s\n", "", "measured", "5 %", "95 %")
	for i, r := range real {
		values := make([]float64, len(worlds))
		for j, w := range worlds {
			values[j] = w[i].value
		}
		slices.Sort(values)
		low, high := quantileOf(values, bandPart), quantileOf(values, 1-bandPart)
		mark := ""
		if r.value < low || r.value > high {
			v.outside++
			mark = " outside"
		}
		if sigmas := r.distance(values); sigmas > farSigmas {
			v.far = append(v.far, fmt.Sprintf("%s (%.1f sigmas)", r.name, sigmas))
			mark = " far off"
		}
		fmt.Fprintf(&v.table, "  %-34s %9.4g  %9.4g %9.4g%s\n", r.name, r.value, low, high, mark)
	}
	return v
}

// distance is how many standard deviations of the values a reading is away from
// their mean.
func (r *reading) distance(values []float64) float64 {
	scale := math.Log
	if r.grain > 0 {
		scale = func(x float64) float64 { return x }
	}
	sum, squares, n := 0.0, 0.0, float64(len(values))
	for _, x := range values {
		sum += scale(x)
	}
	for _, x := range values {
		squares += (scale(x) - sum/n) * (scale(x) - sum/n)
	}
	off := math.Abs(scale(r.value)-sum/n) - r.grain
	// The reading and the mean are both uncertain.
	return max(off, 0) / max(math.Sqrt(squares/(n-1)*(1+1/n)), 1e-9)
}

// quantileOf interpolates at the position q x (n + 1) of sorted values: then one
// more value of the same kind lies below with probability q, exactly.
func quantileOf(sorted []float64, q float64) float64 {
	at := min(max(q*float64(len(sorted)+1)-1, 0), float64(len(sorted)-1))
	i := min(int(at), len(sorted)-2)
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// allowedOutside is the least number that Binomial(k, 2 x bandPart) exceeds with
// a probability of at most lookLevel.
func allowedOutside(k int) int {
	const p = 2 * bandPart
	prob, sum := math.Pow(1-p, float64(k)), 0.0
	for m := 0; ; m++ {
		if sum += prob; 1-sum <= lookLevel || m == k {
			return m
		}
		prob *= float64(k-m) / float64(m+1) * p / (1 - p)
	}
}

// TestCompare: a look at numbers of the same kind is seldom lost, and one at
// numbers of another kind is: a few that are far off, or many that are a little.
func TestCompare(t *testing.T) {
	for _, c := range []struct{ k, want int }{{8, 4}, {33, 9}} { // P(more) 0.04 %, 0.1 %
		if got := allowedOutside(c.k); got != c.want {
			t.Errorf("of %d readings %d may be outside, want %d", c.k, got, c.want)
		}
	}
	const k, looks = 33, 1000
	dice := rand.New(rand.NewPCG(1, 1))
	draw := func(shifted int, by float64) []reading {
		out := make([]reading, k)
		for i := range out {
			out[i] = reading{name: "r", value: 0.2 + 0.01*dice.NormFloat64(), grain: 1e-6}
			if i < shifted {
				out[i].value += 0.01 * by
			}
		}
		return out
	}
	lost := func(shifted int, by float64) (n int) {
		for range looks {
			worlds := make([][]reading, 50)
			for j := range worlds {
				worlds[j] = draw(0, 0)
			}
			if !compare(draw(shifted, by), worlds).ok() {
				n++
			}
		}
		return n
	}
	if n := lost(0, 0); n > looks*2/100 {
		t.Errorf("%d of %d looks at a right system were lost", n, looks)
	}
	for _, c := range []struct {
		shifted int
		by      float64
	}{{1, 9}, {8, 5}, {k, 2.5}} {
		if n := lost(c.shifted, c.by); n < looks*99/100 {
			t.Errorf("%d readings off by %v sigmas: only %d of %d looks were lost", c.shifted, c.by, n, looks)
		}
	}
}

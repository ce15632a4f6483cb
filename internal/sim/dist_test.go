// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestDistMeans: 200,000 draws have the mean that is promised, within 1 % (2 % for
// the Pareto with alpha 2.5, whose mean converges slowly), and quantiles that
// follow from the formulas.
func TestDistMeans(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		name      string
		d         Dist
		tolerance float64
		p99       float64 // over the mean; 0: not checked
	}{
		{"fixed", Fixed(50 * ms), 0, 1},
		{"exponential", Exponential(50 * ms), 0.01, math.Log(100)},
		{"uniform", Uniform(10*ms, 90*ms), 0.01, 89.2 / 50},
		{"lognormal", Lognormal(50*ms, 1), 0.01, math.Exp(2.3263 - 0.5)},
		{"pareto", Pareto(50*ms, 2.5), 0.02, 1.5 / 2.5 * math.Pow(100, 1/2.5)},
		{"mixture", Mixture(0.05, Fixed(40*ms), Fixed(240*ms)), 0.01, 4.8},
		{"observed", Observed([]time.Duration{25 * ms, 75 * ms}), 0.01, 1.5},
		{"times", Times(Exponential(25*ms), 2), 0.01, math.Log(100)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStream(1, c.name)
			var h Histogram
			for range 200_000 {
				h.Add(c.d.Sample(s))
			}
			if got, want := h.Mean().Seconds(), c.d.Mean().Seconds(); math.Abs(got/want-1) > c.tolerance || c.d.Mean() != 50*ms {
				t.Errorf("mean %v of %v", h.Mean(), c.d.Mean())
			}
			if got := h.Quantile(0.99).Seconds() / 0.050; math.Abs(got/c.p99-1) > 0.03 {
				t.Errorf("p99 is %.3f times the mean, not %.3f", got, c.p99)
			}
		})
	}
}

// TestStreamsAreIndependent: neighbouring names give sequences that agree in half
// of their bits.
func TestStreamsAreIndependent(t *testing.T) {
	a, b := newStream(1, "server a"), newStream(1, "server b")
	again := newStream(1, "server a")
	equal := 0
	for range 10_000 {
		x, y := a.Uint64(), b.Uint64()
		for v := x ^ y; v != 0; v &= v - 1 {
			equal++
		}
		if x != again.Uint64() {
			t.Fatal("the same name gives other numbers")
		}
	}
	if part := float64(equal) / 640_000; math.Abs(part-0.5) > 0.003 {
		t.Errorf("%.4f of the bits differ", part)
	}
	if newStream(1, "x").Uint64() == newStream(2, "x").Uint64() {
		t.Error("the seed changes nothing")
	}
}

// TestHistogramError: against the sorted list, over eleven powers of ten.
func TestHistogramError(t *testing.T) {
	s := newStream(1, "histogram")
	var h, h2 Histogram
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(math.Pow(10, 11*s.Float64()))
		all = append(all, d)
		if i%2 == 0 {
			h.Add(d)
		} else {
			h2.Add(d)
		}
	}
	h.Merge(&h2)
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		if got := h.Quantile(q); math.Abs(float64(got)-float64(want)) > float64(want)/256+1 {
			t.Errorf("quantile %g is %v, not %v", q, got, want)
		}
	}
	if h.N() != 20_000 || h.Min() != all[0] || h.Max() != all[len(all)-1] {
		t.Errorf("n %d, min %v, max %v", h.N(), h.Min(), h.Max())
	}
	if got, want := h.Above(time.Millisecond), uint64(0); got == want {
		t.Error("nothing lies above 1 ms")
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"
	"time"
)

// Dist is a distribution of times. Implementations are immutable values.
type Dist interface {
	// Sample draws one; never below 0.
	Sample(*Stream) time.Duration
	// Mean is the expected value.
	Mean() time.Duration
}

type fixedTime time.Duration

// Fixed is always d.
func Fixed(d time.Duration) Dist { return fixedTime(max(d, 0)) }

func (f fixedTime) Sample(*Stream) time.Duration { return time.Duration(f) }
func (f fixedTime) Mean() time.Duration          { return time.Duration(f) }

type exponential time.Duration

// Exponential is memoryless with the mean.
func Exponential(mean time.Duration) Dist { return exponential(max(mean, 0)) }

func (e exponential) Sample(s *Stream) time.Duration { return scaled(time.Duration(e), s.Exp()) }
func (e exponential) Mean() time.Duration            { return time.Duration(e) }

// scaled multiplies and rounds to whole nanoseconds.
func scaled(d time.Duration, by float64) time.Duration {
	v := math.Round(float64(d) * by)
	if !(v > 0) {
		return 0
	}
	return time.Duration(min(v, 1<<60))
}

type uniform struct{ from, to time.Duration }

// Uniform lies between from and to.
func Uniform(from, to time.Duration) Dist { return uniform{max(from, 0), max(to, from, 0)} }

func (u uniform) Sample(s *Stream) time.Duration { return u.from + scaled(u.to-u.from, s.Float64()) }
func (u uniform) Mean() time.Duration            { return u.from + (u.to-u.from)/2 }

type lognormal struct {
	mean  time.Duration
	sigma float64
}

// Lognormal has the mean; sigma is the standard deviation of the logarithm. 1 is
// a usual tail: p99 is 6.2 times the mean and 10 times the median.
func Lognormal(mean time.Duration, sigma float64) Dist {
	return lognormal{max(mean, 0), max(sigma, 0)}
}

func (l lognormal) Sample(s *Stream) time.Duration {
	return scaled(l.mean, math.Exp(l.sigma*s.Norm()-l.sigma*l.sigma/2))
}
func (l lognormal) Mean() time.Duration { return l.mean }

type pareto struct {
	mean  time.Duration
	alpha float64
}

// Pareto has the mean and a tail that falls like x^-alpha. alpha must be above 1
// and counts as 1.01 otherwise; up to 2 the variance is infinite. 2.5 is heavy,
// 1.5 very heavy.
func Pareto(mean time.Duration, alpha float64) Dist {
	if !(alpha > 1.01) {
		alpha = 1.01
	}
	return pareto{max(mean, 0), alpha}
}

func (p pareto) Sample(s *Stream) time.Duration {
	least := (p.alpha - 1) / p.alpha // times the mean
	return scaled(p.mean, least*math.Pow(1-s.Float64(), -1/p.alpha))
}
func (p pareto) Mean() time.Duration { return p.mean }

type mixture struct {
	part         float64
	usual, other Dist
}

// Mixture is other with probability part, else usual. Mixture(1.0/20, d, six
// times d) is one in twenty that is six times larger.
func Mixture(part float64, usual, other Dist) Dist {
	return mixture{min(max(part, 0), 1), usual, other}
}

func (m mixture) Sample(s *Stream) time.Duration {
	if s.Float64() < m.part {
		return m.other.Sample(s)
	}
	return m.usual.Sample(s)
}

func (m mixture) Mean() time.Duration {
	return scaled(m.usual.Mean(), 1-m.part) + scaled(m.other.Mean(), m.part)
}

type observed []time.Duration

// Observed draws from times that were seen, each as likely; none gives 0.
func Observed(seen []time.Duration) Dist { return observed(slices.Clone(seen)) }

func (o observed) Sample(s *Stream) time.Duration {
	if len(o) == 0 {
		return 0
	}
	return max(o[s.IntN(len(o))], 0)
}

func (o observed) Mean() time.Duration {
	if len(o) == 0 {
		return 0
	}
	sum := 0.0
	for _, d := range o {
		sum += max(float64(d), 0)
	}
	return time.Duration(sum / float64(len(o)))
}

// Times multiplies every draw.
func Times(d Dist, by float64) Dist { return times{d, by} }

type times struct {
	of Dist
	by float64
}

func (t times) Sample(s *Stream) time.Duration { return scaled(t.of.Sample(s), t.by) }
func (t times) Mean() time.Duration            { return scaled(t.of.Mean(), t.by) }

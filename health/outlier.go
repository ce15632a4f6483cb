// SPDX-License-Identifier: Apache-2.0

package health

import (
	"math"
	"slices"
	"time"
)

// SuccessRate ejects backends whose answers fail far more often than those of
// the pool's others. The zero value is on with the defaults.
type SuccessRate struct {
	Off         bool
	Factor      float64 // standard deviations below the mean; 0: 1.9
	MinRequests int     // requests in the window that a backend must have had to be judged; 0: 100
	// MinBackends is how many such backends the mean needs; with fewer, down to
	// two, a backend is compared with the pooled rate of the others. 0: 5.
	MinBackends int
}

// Latency ejects backends that are dead slow beside the pool's others. The zero
// value is on with the defaults.
type Latency struct {
	Off         bool
	Factor      float64       // the backend's median over the median of the others' medians; 0: 10
	Above       time.Duration // and at least so much above it; 0: 100ms
	MinRequests int           // answers in the window that a backend must have given to be judged; 0: 100
}

// Sample is what the window holds about one backend of a pool.
type Sample struct {
	Requests uint64        // answers and attempts that failed by the backend's fault
	Failures uint64        // of them: 5xx but 503 with Retry-After, resets, malformed answers, timeouts
	Answers  uint64        // whose latency is known
	Median   time.Duration // of them, to the first byte; 0: unknown
	// TwoClients says that failures came from two client addresses, or that the
	// pool has seen one only.
	TwoClients bool
}

// Beside the rule that is configured, an outlier by success rate fails
//
//   - at least OutlierBad of its requests. Far below the fleet, not just
//     measurably: at a standard deviation of a thousandth, one failure more is
//     three of them;
//   - ShareFactor times as often as the others taken together;
//   - more often than the others' rate would have it by chance in one look of a
//     million (see beyondChance), so that small numbers accuse nobody.
const (
	OutlierBad    = 0.1
	OutlierChance = 1e-6
)

// Outliers returns the indices of the backends whose requests fail far more often
// than the others', worst first, ties by index. Pure; the samples' order does not
// matter.
//
// With MinBackends backends of MinRequests or more a success rate has to be below
// mean - Factor x standard deviation of theirs (Envoy's outlier detection). One
// bad backend among n is sqrt(n-1) deviations away: 2 of 5, so at 1.9 one in five
// may be found and two in five never, which is as well: that is no outlier. With
// fewer backends, at least ShareBad of the requests have to fail. A single backend
// has nobody to be compared with.
//
// Example: failures 0, 1, 0, 2 and 60 of 200 each. Mean 0.937, deviation 0.118,
// limit 0.712: the last one, at 0.7, is out.
func (c SuccessRate) Outliers(samples []Sample) []int {
	if c.Off {
		return nil
	}
	least, enough := orDefault(c.MinRequests, 100), orDefault(c.MinBackends, 5)
	var requests, failures uint64
	n, sum, squares := 0, 0.0, 0.0
	for i := range samples {
		s := &samples[i]
		requests, failures = requests+s.Requests, failures+s.Failures
		if s.Requests >= uint64(least) {
			r := 1 - s.rate()
			n, sum, squares = n+1, sum+r, squares+r*r
		}
	}
	limit := 1 - ShareBad
	if n >= enough {
		mean := sum / float64(n)
		factor := c.Factor
		if factor <= 0 {
			factor = 1.9
		}
		limit = mean - factor*math.Sqrt(max(squares/float64(n)-mean*mean, 0))
	}
	var out []int
	for i := range samples {
		s := &samples[i]
		rate := s.rate()
		if s.Requests < uint64(least) || !s.TwoClients || 1-rate > limit+1e-12 || rate < OutlierBad {
			continue
		}
		others, bad := requests-s.Requests, failures-s.Failures
		if others < uint64(least) {
			continue
		}
		theirs := float64(bad) / float64(others)
		if rate >= ShareFactor*theirs && beyondChance(s.Failures, s.Requests, theirs) {
			out = append(out, i)
		}
	}
	worstFirst(out, func(i int) float64 { return samples[i].rate() })
	return out
}

// beyondChance reports whether so many failures are more than OutlierChance
// explains where each request fails with a probability. By Bernstein's inequality
// they exceed their mean by t with a probability of at most exp(-t^2 / 2(v + t/3)),
// v their variance; standard deviations alone would be too lenient where failures
// are rare, as their distribution's tail is Poisson's.
//
// Example: of 100 requests, where one in fifty fails: v = 1.96, L = ln 10^6 = 13.8,
// t = L/3 + sqrt(L^2/9 + 2Lv) = 13.3, so 16 failures are and 15 are not.
func beyondChance(failures, requests uint64, probability float64) bool {
	l := -math.Log(OutlierChance)
	n := float64(requests)
	v := n * probability * (1 - probability)
	return float64(failures) >= n*probability+l/3+math.Sqrt(l*l/9+2*l*v)
}

func (s *Sample) rate() float64 {
	if s.Requests == 0 {
		return 0
	}
	return float64(s.Failures) / float64(s.Requests)
}

// Slow is one backend that is dead slow beside the others.
type Slow struct {
	Index  int
	Others time.Duration // the median of the others' medians
	Limit  time.Duration // what is slow beside them
}

// limit returns for a median of the others' medians from where on a median is
// dead slow.
func (c Latency) limit(others time.Duration) time.Duration {
	factor, above := c.Factor, c.Above
	if factor <= 1 {
		factor = 10
	}
	if above <= 0 {
		above = 100 * time.Millisecond
	}
	return max(time.Duration(min(float64(others)*factor, math.MaxInt64/2)), others+above)
}

// Least returns the least median that can be an outlier, whatever the others'.
func (c Latency) Least() time.Duration { return c.limit(0) }

// Outliers returns the backends whose median latency is Factor times the median
// of the others' medians and Above it by as much as configured, slowest first,
// ties by index. Pure; the samples' order does not matter.
//
// A backend that fails much is nobody to be compared with: a black hole answers
// in a millisecond. The median of medians keeps a fast or a slow minority from
// moving what the rest is measured by; where most are slow, slow is normal.
//
// Example: medians 20, 22, 25, 24 and 300 ms. The others' median is 23 ms, the
// limit max(230, 123) = 230 ms: the last one is out. One at a third of the speed,
// 70 ms, is not.
func (c Latency) Outliers(samples []Sample) []Slow {
	if c.Off {
		return nil
	}
	least := uint64(orDefault(c.MinRequests, 100))
	medians := make([]time.Duration, 0, len(samples))
	suspicious := false
	for i := range samples {
		s := &samples[i]
		if s.judges(least) {
			medians = append(medians, s.Median)
		}
		suspicious = suspicious || s.Answers >= least && s.Median >= c.Least()
	}
	if !suspicious || len(medians) == 0 {
		return nil
	}
	slices.Sort(medians)
	var out []Slow
	for i := range samples {
		s := &samples[i]
		if s.Answers < least || s.Median < c.Least() {
			continue
		}
		others, ok := medianWithout(medians, s.Median, s.judges(least))
		if limit := c.limit(others); ok && s.Median >= limit {
			out = append(out, Slow{i, others, limit})
		}
	}
	slices.SortFunc(out, func(a, b Slow) int {
		if x, y := samples[a.Index].Median, samples[b.Index].Median; x != y {
			return int(min(max(y-x, -1), 1))
		}
		return a.Index - b.Index
	})
	return out
}

// judges reports whether others may be compared with this backend's latency.
func (s *Sample) judges(least uint64) bool {
	return s.Answers >= least && s.Median > 0 && s.rate() < ShareBad
}

// medianWithout returns the median of a sorted list, one element of value v left
// out if it is in.
func medianWithout(sorted []time.Duration, v time.Duration, in bool) (time.Duration, bool) {
	n, at := len(sorted), len(sorted)
	if in {
		at, _ = slices.BinarySearch(sorted, v)
		n--
	}
	if n == 0 {
		return 0, false
	}
	get := func(i int) time.Duration {
		if i >= at {
			i++
		}
		return sorted[i]
	}
	if n%2 == 1 {
		return get(n / 2), true
	}
	a, b := get(n/2-1), get(n/2)
	return a + (b-a)/2, true
}

func worstFirst(list []int, badness func(int) float64) {
	slices.SortFunc(list, func(a, b int) int {
		switch x, y := badness(a), badness(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		default:
			return a - b
		}
	})
}

func orDefault(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

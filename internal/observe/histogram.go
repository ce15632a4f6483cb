// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of every latency histogram: 1, 2.5, 5 per decade
// where a balancer's latencies lie, and the timeouts' range above. Fixed, so
// that histograms of all pools, listeners and versions can be added up.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, 60 * time.Second,
}

// buckets counts the bounds and the one above them all.
const buckets = len(bounds) + 1

// firstBucket[n] is the first bucket that a duration of n significant bits can
// fall into; from there at most two comparisons remain.
var firstBucket = func() (t [65]uint8) {
	for n := range t {
		low := uint64(0)
		if n > 0 {
			low = 1 << (n - 1)
		}
		i := 0
		for i < len(bounds) && uint64(bounds[i]) < low {
			i++
		}
		t[n] = uint8(i)
	}
	return t
}()

func bucketOf(d time.Duration) int {
	if d < 0 {
		return 0
	}
	i := int(firstBucket[bits.Len64(uint64(d))])
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	return i
}

// histStripe is one core's share of a histogram: a multiple of the cache line,
// so that stripes never share one.
type histStripe struct {
	n   [buckets]atomic.Uint64
	sum atomic.Uint64 // nanoseconds
	_   [24 - buckets - 1]uint64
}

// histogram is a fixed-bucket histogram of durations, striped over cores.
type histogram struct{ stripes []histStripe }

func newHistogram(stripes int) histogram { return histogram{make([]histStripe, stripes)} }

func (h *histogram) observe(stripe uint64, d time.Duration) {
	s := &h.stripes[stripe]
	s.n[bucketOf(d)].Add(1)
	if d > 0 {
		s.sum.Add(uint64(d))
	}
}

// distribution is a histogram read out.
type distribution struct {
	n   [buckets]uint64
	sum time.Duration
}

// addTo adds what the histogram holds to d. Each counter is read once; a
// request observed meanwhile may be in its bucket and not yet in the sum.
func (h *histogram) addTo(d *distribution) {
	for i := range h.stripes {
		s := &h.stripes[i]
		for b := range s.n {
			d.n[b] += s.n[b].Load()
		}
		d.sum += time.Duration(s.sum.Load())
	}
}

func (d *distribution) count() uint64 {
	var n uint64
	for _, v := range d.n {
		n += v
	}
	return n
}

// cumulative returns the form that Prometheus wants: per bound, how many lie
// at or below it.
func (d *distribution) cumulative() map[float64]uint64 {
	out := make(map[float64]uint64, len(bounds))
	var n uint64
	for i, b := range bounds {
		n += d.n[i]
		out[b.Seconds()] = n
	}
	return out
}

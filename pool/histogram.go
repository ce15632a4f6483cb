// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A latency falls into one of 96 buckets: four to an octave from 16.384 us
// (2^14 ns) to about 137 s, each at most a quarter wider than its lower bound,
// so that a quantile read from its middle is within 12 %.
const (
	histUnit    = 14
	histBuckets = 96
)

type histogram [histBuckets]atomic.Uint32

type histogramCopy [histBuckets]uint32

func histBucket(d time.Duration) int {
	v := uint64(d) >> histUnit
	if v < 4 {
		return int(v)
	}
	e := bits.Len64(v) - 1
	return min((e-1)*4+int(v>>(e-2)&3), histBuckets-1)
}

// histMiddle returns the middle of a bucket.
func histMiddle(i int) time.Duration {
	if i < 4 {
		return time.Duration(2*i+1) << (histUnit - 1)
	}
	e := i/4 + 1
	return time.Duration(2*(4+i%4)+1) << (e - 2 + histUnit - 1)
}

func (h *histogram) add(d time.Duration) { h[histBucket(d)].Add(1) }

func (h *histogram) copyTo(c *histogramCopy) {
	for i := range h {
		c[i] = h[i].Load()
	}
}

// quantiles returns the median and the 99th percentile of what was added since
// the copy from was made (nil: ever).
func (h *histogram) quantiles(from *histogramCopy) (p50, p99 time.Duration) {
	var n [histBuckets]uint32
	var total uint64
	for i := range h {
		n[i] = h[i].Load()
		if from != nil {
			n[i] -= from[i]
		}
		total += uint64(n[i])
	}
	if total == 0 {
		return 0, 0
	}
	var sum uint64
	for i, v := range n {
		sum += uint64(v)
		if p50 == 0 && 2*sum >= total {
			p50 = histMiddle(i)
		}
		if 100*sum >= 99*total {
			return p50, histMiddle(i)
		}
	}
	return p50, p99
}

// median returns how many values were added since the copy from was made (nil:
// ever), and their median.
func (h *histogram) median(from *histogramCopy) (total uint64, p50 time.Duration) {
	var n [histBuckets]uint32
	for i := range h {
		n[i] = h[i].Load()
		if from != nil {
			n[i] -= from[i]
		}
		total += uint64(n[i])
	}
	var sum uint64
	for i, v := range n {
		if sum += uint64(v); v > 0 && 2*sum >= total {
			return total, histMiddle(i)
		}
	}
	return total, 0
}

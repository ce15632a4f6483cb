// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
	"time"
)

// Histogram counts times with a relative error of at most 1/256 (0.4 %): 128
// buckets for every power of two nanoseconds, each standing for its middle. The
// zero value is empty. Not safe for concurrent use.
type Histogram struct {
	counts [][]uint32 // by power of two, made when needed
	n      uint64
	sum    float64
	least  time.Duration
	most   time.Duration
}

const (
	subBits = 7
	subs    = 1 << subBits
)

// Add counts one time; below 0 counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	if h.n == 0 || d < h.least {
		h.least = d
	}
	h.most = max(h.most, d)
	h.n++
	h.sum += float64(d)
	row, col := place(uint64(d))
	for len(h.counts) <= row {
		h.counts = append(h.counts, nil)
	}
	if h.counts[row] == nil {
		h.counts[row] = make([]uint32, subs)
	}
	h.counts[row][col]++
}

// place finds the bucket: row 0 holds 0 to 127 exactly, row r the values with r+7
// bits by their next 7 bits.
func place(v uint64) (row, col int) {
	if v < subs {
		return 0, int(v)
	}
	row = bits.Len64(v) - subBits
	return row, int(v>>(row-1)) & (subs - 1)
}

// middle is what a bucket stands for.
func middle(row, col int) float64 {
	if row == 0 {
		return float64(col)
	}
	width := float64(uint64(1) << (row - 1))
	return (float64(subs+col) + 0.5) * width
}

// N returns how many were counted.
func (h *Histogram) N() uint64 { return h.n }

// Mean returns their mean exactly, 0 of none.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(math.Round(h.sum / float64(h.n)))
}

// Max returns the largest exactly.
func (h *Histogram) Max() time.Duration { return h.most }

// Min returns the smallest exactly.
func (h *Histogram) Min() time.Duration { return h.least }

// Quantile returns the smallest time that at least the part q of all do not
// exceed, q in 0..1; 0 of none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(max(math.Ceil(q*float64(h.n)), 1))
	if rank >= h.n {
		return h.most
	}
	seen := uint64(0)
	for row := range h.counts {
		for col, c := range h.counts[row] {
			if seen += uint64(c); seen >= rank {
				return min(max(time.Duration(middle(row, col)), h.least), h.most)
			}
		}
	}
	return h.most
}

// Above returns how many buckets' worth of times lie above d.
func (h *Histogram) Above(d time.Duration) uint64 {
	n := uint64(0)
	for row := range h.counts {
		for col, c := range h.counts[row] {
			if middle(row, col) > float64(d) {
				n += uint64(c)
			}
		}
	}
	return n
}

// Merge adds what another one has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 || o.least < h.least {
		h.least = o.least
	}
	h.most = max(h.most, o.most)
	h.n += o.n
	h.sum += o.sum
	for len(h.counts) < len(o.counts) {
		h.counts = append(h.counts, nil)
	}
	for row := range o.counts {
		if o.counts[row] == nil {
			continue
		}
		if h.counts[row] == nil {
			h.counts[row] = make([]uint32, subs)
		}
		for col, c := range o.counts[row] {
			h.counts[row][col] += c
		}
	}
}

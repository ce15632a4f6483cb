// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// sample is one figure over all rounds.
type sample []float64

// median and its interval. For nine values the second smallest and the second
// largest enclose the median with 96 % confidence (order statistics of the
// binomial); with fewer than six values the whole range is given.
func (s sample) median() (mid, lo, hi float64) {
	v := slices.Sorted(slices.Values(s))
	n := len(v)
	if n == 0 {
		return 0, 0, 0
	}
	mid = v[n/2]
	if n%2 == 0 {
		mid = (v[n/2-1] + v[n/2]) / 2
	}
	skip := 0
	if n >= 6 {
		skip = 1
	}
	return mid, v[skip], v[n-1-skip]
}

// ratio is the median of the round-by-round ratios: both values of a pair were
// measured within seconds of each other, so slow drifts of the machine cancel.
func ratio(a, b sample) (mid, lo, hi float64) {
	var r sample
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			r = append(r, a[i]/b[i])
		}
	}
	return r.median()
}

func interval(mid, lo, hi float64) string { return fmt.Sprintf("%.4g [%.4g, %.4g]", mid, lo, hi) }

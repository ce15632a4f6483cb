// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < 200*time.Second; d += d/50 + 1000 {
		i := histBucket(d)
		if i < last || i > last+1 {
			t.Fatalf("%v: bucket %d after %d", d, i, last)
		}
		last = i
		if d > 100*time.Microsecond && d < 130*time.Second {
			if r := float64(histMiddle(i)) / float64(d); r < 0.86 || r > 1.14 {
				t.Errorf("%v is read as %v", d, histMiddle(i))
			}
		}
	}
	if histBucket(1<<62) != histBuckets-1 {
		t.Error("the longest latency is out of range")
	}
}

// TestQuantilesAgainstSorting compares with sorting all values.
func TestQuantilesAgainstSorting(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	var h histogram
	var from histogramCopy
	for range 1000 {
		h.add(time.Hour) // before the window
	}
	h.copyTo(&from)
	var all []time.Duration
	for range 20000 {
		d := time.Duration(rnd.ExpFloat64() * float64(20*time.Millisecond))
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	p50, p99 := h.quantiles(&from)
	for _, q := range []struct{ got, want time.Duration }{{p50, all[len(all)/2]}, {p99, all[len(all)*99/100]}} {
		if r := float64(q.got) / float64(q.want); r < 0.85 || r > 1.15 {
			t.Errorf("quantile %v, want about %v", q.got, q.want)
		}
	}
	if a, b := new(histogram).quantiles(nil); a != 0 || b != 0 {
		t.Error("quantiles of nothing")
	}
}

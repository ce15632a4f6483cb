// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func subsetIDs(from, n int) []BackendID {
	ids := make([]BackendID, n)
	for i := range ids {
		ids[i] = IDOf(fmt.Sprintf("10.0.%d.%d:80", (from+i)>>8, (from+i)&255))
	}
	return ids
}

func TestSubsetExample(t *testing.T) {
	ids := []BackendID{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}
	for i, want := range [][]int{{0, 1, 2, 3}, {2, 3, 4, 5}, {4, 5, 6, 7}, {6, 7, 8, 9}, {0, 1, 8, 9}} {
		if got := Subset(ids, 4, i, 5, 0); !slices.Equal(got, want) {
			t.Errorf("balancer %d: %v, want %v", i, got, want)
		}
	}
	for _, c := range []struct{ size, index, count, want int }{
		{0, 0, 1, 0}, {-3, 0, 1, 0}, {10, 3, 7, 10}, {11, 3, 7, 10}, {4, -1, 5, 4}, {4, 12, 5, 4}, {4, 0, 0, 4}, {1, 0, -1, 1},
	} {
		if got := Subset(ids, c.size, c.index, c.count, 7); len(got) != c.want || !slices.IsSorted(got) {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := Subset(nil, 3, 0, 1, 0); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// chosen is a subset as ids.
func chosen(ids []BackendID, size, index, count int, instance uint64) map[BackendID]bool {
	out := map[BackendID]bool{}
	for _, i := range Subset(ids, size, index, count, instance) {
		out[ids[i]] = true
	}
	return out
}

// TestSubsetCoverage: backends are used by numbers of balancers that differ by
// at most one, whatever the sizes.
func TestSubsetCoverage(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		n, count := 1+rnd.IntN(120), 1+rnd.IntN(60)
		size := 1 + rnd.IntN(n)
		ids := subsetIDs(rnd.IntN(1000), n)
		rnd.Shuffle(n, func(i, k int) { ids[i], ids[k] = ids[k], ids[i] })
		used := make([]int, n)
		for i := range count {
			for _, at := range Subset(ids, size, i, count, 0) {
				used[at]++
			}
		}
		low, high := slices.Min(used), slices.Max(used)
		if high-low > 1 || low != count*size/n {
			t.Fatalf("%d backends, %d balancers of %d: used by %d to %d", n, count, size, low, high)
		}
	}
}

// TestSubsetChurn adds a backend anywhere, which is also a removal seen from the
// other side: no subset changes by more than two members, on average by less
// than one, and it does not depend on the order of ids.
func TestSubsetChurn(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	changes, subsets, worst, worstDrawn := 0, 0, 0, 0
	for range 120 {
		n, count := 2+rnd.IntN(100), 1+rnd.IntN(40)
		size := 1 + rnd.IntN(n)
		ids := subsetIDs(rnd.IntN(5000), n+1)
		before := ids[:n]
		after := slices.Clone(ids)
		rnd.Shuffle(len(after), func(i, k int) { after[i], after[k] = after[k], after[i] })
		for i := range count {
			old := chosen(before, size, i, count, 0)
			gone := 0
			for id := range chosen(after, size, i, count, 0) {
				gone += map[bool]int{false: 1}[old[id]]
			}
			changes, subsets, worst = changes+gone, subsets+1, max(worst, gone)
			old, gone = chosen(before, size, 0, 0, uint64(i)), 0
			for id := range chosen(after, size, 0, 0, uint64(i)) {
				gone += map[bool]int{false: 1}[old[id]]
			}
			worstDrawn = max(worstDrawn, gone)
		}
	}
	if mean := float64(changes) / float64(subsets); worst > 2 || mean >= 1 || worstDrawn > 1 {
		t.Errorf("one backend more changes up to %d members, %.2f on average; of drawn subsets up to %d", worst, mean, worstDrawn)
	}
}

// TestSubsetDrawn: without an index the coverage is binomial.
func TestSubsetDrawn(t *testing.T) {
	const n, count, size = 100, 2000, 20
	ids := subsetIDs(0, n)
	used := make([]int, n)
	for i := range count {
		for _, at := range Subset(ids, size, 0, 0, uint64(i)) {
			used[at]++
		}
	}
	p := float64(size) / n
	deviation := math.Sqrt(count * p * (1 - p))
	var squares float64
	for _, u := range used {
		d := (float64(u) - count*p) / deviation
		squares += d * d
		if math.Abs(d) > 4.5 {
			t.Errorf("a backend is used by %d, want %v +- %v", u, count*p, deviation)
		}
	}
	// Chi-square with 99 degrees of freedom: 54 to 155 at one in a thousand.
	if squares < 54 || squares > 155 {
		t.Errorf("the spread is not that of chance: %v", squares)
	}
}

func BenchmarkSubset(b *testing.B) {
	ids := subsetIDs(0, 10000)
	for _, count := range []int{0, 100} {
		b.Run(fmt.Sprintf("count=%d", count), func(b *testing.B) {
			for b.Loop() {
				Subset(ids, 50, 7, count, 1)
			}
		})
	}
}

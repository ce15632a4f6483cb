// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func setOf(weights ...uint32) *Set {
	ms := make([]Member, len(weights))
	for i, w := range weights {
		ms[i] = Member{Backend: NewBackend(fmt.Sprintf("b%d", i), ""), Weight: w}
	}
	return NewSet(ms, 7, false)
}

func anyWeights(t *rapid.T) []uint32 {
	return rapid.SliceOfN(rapid.OneOf(
		rapid.Uint32Range(1, 8), rapid.Uint32Range(1, 1000), rapid.Uint32Min(1),
	), 1, 60).Draw(t, "weights")
}

// What a pick touches must stay one cache line, and no two backends may share one.
func TestBackendLayout(t *testing.T) {
	var b Backend
	if end := unsafe.Offsetof(b.owner) + unsafe.Sizeof(b.owner); end > 64 {
		t.Errorf("the hot fields end at byte %d, beyond one cache line", end)
	}
	if size := unsafe.Sizeof(b); size != 192 {
		t.Errorf("a Backend has %d bytes; only a size class of whole cache lines keeps it aligned", size)
	}
	if size := unsafe.Sizeof(slot{}); size != 16 {
		t.Errorf("a slot has %d bytes", size)
	}
}

// The columns of the alias table give each member exactly its weight, to the
// precision of a cut.
func TestAliasMass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := anyWeights(t)
		ro := newRoster(setOf(weights...))
		if ro.equal {
			return
		}
		mass := make([]float64, len(weights))
		for i, s := range ro.slots {
			own := float64(s.cut) / (1 << 32)
			mass[i] += own
			mass[s.other] += 1 - own
		}
		n := float64(len(weights))
		for i, w := range weights {
			want := float64(w) / float64(ro.sum) * n
			if math.Abs(mass[i]-want) > n/(1<<32) {
				t.Fatalf("member %d of %v has %.12f columns, want %.12f", i, weights, mass[i], want)
			}
		}
	})
}

// Every draw is in range, at the ends of the random words too.
func TestDrawEnds(t *testing.T) {
	for _, weights := range [][]uint32{{1}, {1, 1, 1}, {3, 1}, {1, 1 << 31, 5}} {
		ro := newRoster(setOf(weights...))
		for _, random := range []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 1, 1 << 63} {
			if i := ro.draw(random); i < 0 || i >= len(weights) {
				t.Errorf("draw(%d) of %v = %d", random, weights, i)
			}
		}
	}
}

func TestFind(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 64, 1000} {
		s := setOf(slices.Repeat([]uint32{1}, n)...)
		ro := newRoster(s)
		for i, m := range s.Members() {
			if got := ro.find(m.Backend.Hash()); got != i {
				t.Fatalf("of %d: find returned %d for member %d", n, got, i)
			}
		}
		if ro.find(IDOf("nobody")) != -1 {
			t.Errorf("of %d: found nobody", n)
		}
	}
}

// After any number of turns every member has had its part, less than a turn more
// or less; after all of them, exactly its weight.
func TestInterleaveLag(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint64Range(1, 40), 1, 30).Draw(t, "weights")
		var sum uint64
		for _, w := range weights {
			sum += w
		}
		turns := interleave(weights)
		if uint64(len(turns)) != sum {
			t.Fatalf("%d turns for a sum of %d", len(turns), sum)
		}
		had := make([]uint64, len(weights))
		for k, i := range turns {
			had[i]++
			for m, w := range weights {
				lag := float64(k+1)*float64(w)/float64(sum) - float64(had[m])
				if lag <= -1 || lag >= 1 {
					t.Fatalf("weights %v: after %d turns member %d had %d, %.2f off", weights, k+1, m, had[m], lag)
				}
			}
		}
		for m, w := range weights {
			if had[m] != w {
				t.Fatalf("member %d had %d turns, weight %d", m, had[m], w)
			}
		}
	})
}

func TestInterleaveExamples(t *testing.T) {
	for _, c := range []struct {
		weights []uint64
		want    []uint32
	}{
		{[]uint64{5, 1, 1}, []uint32{0, 0, 0, 1, 0, 0, 2}},
		{[]uint64{1, 1, 1}, []uint32{0, 1, 2}},
		{[]uint64{2, 1}, []uint32{0, 0, 1}},
		{[]uint64{9}, []uint32{0, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		if got := interleave(c.weights); !slices.Equal(got, c.want) {
			t.Errorf("interleave(%v) = %v, want %v", c.weights, got, c.want)
		}
	}
}

// The sequence is bounded and no backend is ever rounded away.
func TestTurnWeights(t *testing.T) {
	if got := turnWeights([]uint32{300, 200, 100}); !slices.Equal(got, []uint64{3, 2, 1}) {
		t.Errorf("300:200:100 became %v", got)
	}
	if got := turnWeights([]uint32{1, 1_000_000}); !slices.Equal(got, []uint64{1, 16_384}) {
		t.Errorf("1:1000000 became %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		weights := anyWeights(t)
		turns := turnWeights(weights)
		var sum, total uint64
		for i, k := range turns {
			if k == 0 {
				t.Fatalf("member %d of %v has no turn", i, weights)
			}
			total += k
			sum += uint64(weights[i])
		}
		limit := maxTurns(len(weights))
		if total > limit+uint64(len(weights)) {
			t.Fatalf("%d turns", total)
		}
		for i, k := range turns {
			exact := float64(weights[i]) / float64(sum) * float64(min(limit, total))
			if k > 1 && math.Abs(float64(k)-exact) > 0.5+exact*float64(len(weights))/float64(limit) {
				t.Fatalf("member %d of %v has %d turns, its part is %.2f", i, weights, k, exact)
			}
		}
	})
}

// Equal quotients of load and weight tie, and different ones do not, whatever the
// rounding.
func TestLightestFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 64).Draw(t, "members")
		weights := make([]uint32, n)
		for i := range weights {
			weights[i] = uint32(rapid.IntRange(1, 1<<12).Draw(t, "weight"))
		}
		ro := newRoster(setOf(weights...))
		loads := make([]uint64, n)
		parts := make([]float64, n)
		k := rapid.Uint64Range(0, 1<<12).Draw(t, "load for weight")
		for i, w := range weights {
			// Most have the same quotient, which need not be a whole number.
			loads[i] = max(k*uint64(w)/64, 1)
			if rapid.IntRange(0, 3).Draw(t, "else") == 0 {
				loads[i] += rapid.Uint64Range(0, 2).Draw(t, "more")
			}
			ro.slots[i].backend.inFlight.Store(int64(loads[i]))
			parts[i] = 1 / float64(w)
		}
		_, _, ties, odd := lightestFor(ro.slots, parts, math.MaxFloat64, math.MaxFloat64)
		for i := range weights {
			least := !slices.ContainsFunc(seq(n), func(j int) bool {
				return loads[j]*uint64(weights[i]) < loads[i]*uint64(weights[j])
			})
			if tie := ties>>i&1 != 0; tie != least || odd != 0 {
				t.Fatalf("loads %v, weights %v: member %d leads: %v, want %v", loads, weights, i, tie, least)
			}
		}
	})
}

func seq(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func TestMinHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h minHeap
		var oracle []uint64
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			if len(oracle) > 0 && rapid.Bool().Draw(t, "pop") {
				slices.Sort(oracle)
				if got := h.pop(); got != oracle[0] {
					t.Fatalf("popped %d, the least is %d", got, oracle[0])
				}
				oracle = oracle[1:]
				continue
			}
			v := rapid.Uint64Range(0, 50).Draw(t, "v")
			h.push(v)
			oracle = append(oracle, v)
		}
	})
}

func TestBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfDistinct(rapid.IntRange(0, scanMax-1), func(i int) int { return i }).Draw(t, "members")
		var m bitmap
		for _, i := range list {
			m.set(i)
		}
		slices.Sort(list)
		var walked []int
		for i := m.next(0); i >= 0; i = m.next(i + 1) {
			walked = append(walked, i)
		}
		if !slices.Equal(walked, list) || m.count() != len(list) || m.empty() != (len(list) == 0) {
			t.Fatalf("a set of %v walks as %v", list, walked)
		}
		for n, i := range list {
			if m.nth(n) != i || !m.has(i) {
				t.Fatalf("member %d of %v is %d", n, list, m.nth(n))
			}
		}
		if m.nth(len(list)) != -1 {
			t.Fatal("there is one more than there are")
		}
		n := rapid.IntRange(0, scanMax).Draw(t, "fill")
		var full bitmap
		full.fill(n)
		if full.count() != n || n < scanMax && full.has(n) {
			t.Fatalf("fill(%d) holds %d", n, full.count())
		}
	})
}

// The largest share is found anew at every coin in a small set, and once a tick
// in a large one.
func TestTopShare(t *testing.T) {
	for _, n := range []int{5, 500} {
		s := setOf(slices.Repeat([]uint32{1}, n)...)
		ro := newRoster(s)
		for _, m := range s.Members() {
			m.Backend.SetShare(0.25)
		}
		b := s.Members()[0].Backend
		if got := ro.relativeShare(b, 0); got != 1 {
			t.Errorf("of %d: all at 0.25: relative share %g, want 1", n, got)
		}
		s.Members()[n-1].Backend.SetShare(0.5)
		if got := ro.relativeShare(b, 1<<topTick); got != 0.5 {
			t.Errorf("of %d: one at 0.5: relative share %g of 0.25, want 0.5", n, got)
		}
		s.Members()[n-1].Backend.SetAdmin(Draining)
		if got := ro.relativeShare(b, -1); got != 1 {
			t.Errorf("of %d: who drains sets no measure, got %g", n, got)
		}
	}
}

func TestDice(t *testing.T) {
	// splitmix64 from state 42, by Vigna's reference code.
	d := newDice(42)
	want := []uint64{42, 13679457532755275413, 2949826092126892291, 5139283748462763858}
	for i, w := range want {
		if got := d.next(); got != w {
			t.Errorf("word %d is %d, want %d", i, got, w)
		}
	}
	var seen [7]int
	d = newDice(rand.New(rand.NewPCG(1, 1)).Uint64())
	for range 7000 {
		seen[d.below(7)]++
		if u := d.unit(); u < 0 || u >= 1 {
			t.Fatalf("unit() = %g", u)
		}
	}
	for i, n := range seen {
		if n < 800 || n > 1200 {
			t.Errorf("%d came %d times of 1000", i, n)
		}
	}
}

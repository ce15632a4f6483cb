// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// md5Position is a position on the circle as ketama has it.
func md5Position(text string) uint32 {
	sum := md5.Sum([]byte(text))
	return binary.BigEndian.Uint32(sum[:4])
}

// ringOf builds the ring that ring_hash uses, with MD5 for the positions.
func ringOf(names ...string) *ringHash {
	var ms []Member
	for _, name := range names {
		ms = append(ms, Member{Backend: NewBackend(name, ""), Weight: 1})
	}
	policy := ringHashPolicy{hashPolicy{"ring_hash", HashConfig{VirtualNodes: 100}.completed()},
		func(b *Backend, n int) uint32 { return md5Position(fmt.Sprintf("%s#%d", b.ID(), n)) }}
	return policy.Build(NewSet(ms, 1, false)).(*ringHash)
}

// The textbook's figures: four servers of 100 points each, ten thousand users.
// Each holds 22 to 27 % (in whole percents), and a fifth moves 18 %, all of them
// to itself. Counting modulo the number of servers moves 80 %.
func TestRingFacts(t *testing.T) {
	four, five := ringOf("api-1", "api-2", "api-3", "api-4"), ringOf("api-1", "api-2", "api-3", "api-4", "api-5")
	const users = 10_000
	held, moved, modulo := map[string]int{}, 0, 0
	for u := range users {
		position := md5Position(fmt.Sprintf("user:%d", u))
		before := four.slots[four.owner(four.seek(position))].backend.ID()
		after := five.slots[five.owner(five.seek(position))].backend.ID()
		held[before]++
		if before != after {
			moved++
			if after != "api-5" {
				t.Errorf("user:%d moved from %s to %s", u, before, after)
			}
		}
		if position%4 != position%5 {
			modulo++
		}
	}
	t.Logf("held %v, moved %d, modulo moves %d", held, moved, modulo)
	for name, n := range held {
		if percent := math.Round(float64(n) * 100 / users); percent < 22 || percent > 27 {
			t.Errorf("%s holds %d of %d users", name, n, users)
		}
	}
	if moved < users*175/1000 || moved > users*185/1000 {
		t.Errorf("api-5 moved %d of %d users, want 18 %%", moved, users)
	}
	if modulo < users*79/100 || modulo > users*81/100 {
		t.Errorf("modulo moves %d of %d users, want 80 %%", modulo, users)
	}
}

// seek agrees with a search of all points.
func TestRingSeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spread := rapid.Uint32Min(1).Draw(t, "spread") // small: everything collides
		weights := anyWeights(t)
		policy := ringHashPolicy{hashPolicy{"ring_hash", HashConfig{VirtualNodes: rapid.IntRange(1, 40).Draw(t, "nodes")}.completed()},
			func(b *Backend, n int) uint32 { return hashPoint(b, n) % spread }}
		p := policy.Build(setOf(weights...)).(*ringHash)
		if !slices.IsSorted(p.points) {
			t.Fatal("the points are out of order")
		}
		for range 50 {
			position := rapid.OneOf(rapid.Uint32(), rapid.Uint32Max(spread)).Draw(t, "position")
			want, _ := slices.BinarySearch(p.points, uint64(position)<<32)
			if want %= len(p.points); p.seek(position) != want {
				t.Fatalf("seek(%d) = %d, want %d of %x", position, p.seek(position), want, p.points)
			}
		}
	})
}

// The ring is bounded, points follow weights, and a member's points do not
// change with another's weight unless the average crosses a power of two.
func TestRingPoints(t *testing.T) {
	sum := func(weights []uint32) (s uint64) {
		for _, w := range weights {
			s += uint64(w)
		}
		return s
	}
	if got := ringPoints([]uint32{1, 1, 5}, 7, 160); !slices.Equal(got, []int{80, 80, 400}) {
		t.Errorf("weights 1, 1, 5 have %v points", got) // the average is 2.33
	}
	if got := ringPoints(slices.Repeat([]uint32{100}, 3), 300, 160); !slices.Equal(got, []int{250, 250, 250}) {
		t.Errorf("weights of 100 have %v points", got)
	}
	many := slices.Repeat([]uint32{3, 1}, 1<<15)
	total := 0
	for _, c := range ringPoints(many, sum(many), 160) {
		total += c
	}
	if total > maxPoints || total < maxPoints/4 {
		t.Errorf("65536 members have %d points in all, the bound is %d", total, maxPoints)
	}
	rapid.Check(t, func(t *rapid.T) {
		weights := anyWeights(t)
		before := ringPoints(weights, sum(weights), 160)
		for i, c := range before {
			exact := float64(weights[i]) * float64(before[0]) / float64(weights[0])
			if c < 1 || c > 1 && before[0] > 1 && math.Abs(float64(c)-exact) > 1+exact/float64(before[0]) {
				t.Fatalf("weights %v have %v points", weights, before)
			}
		}
		changed := slices.Clone(weights)
		changed[len(weights)-1] = rapid.Uint32Range(1, 1000).Draw(t, "weight")
		level := func(w []uint32) int { return int(math.Log2(float64(sum(w) / uint64(len(w))))) }
		after := ringPoints(changed, sum(changed), 160)
		if last := len(weights) - 1; level(weights) == level(changed) && !slices.Equal(before[:last], after[:last]) {
			t.Fatalf("weights %v to %v changed the points of others from %v to %v", weights, changed, before, after)
		}
	})
}

// The example at NewMaglev, by the rule of the paper.
func TestMaglevExample(t *testing.T) {
	table := slices.Repeat([]uint32{free}, 7)
	d := deal{table: table, wishes: []wish{{3, 4}, {0, 2}}}
	for n := range 7 {
		d.take(uint32(n % 2))
	}
	if want := []uint32{1, 0, 1, 0, 0, 0, 1}; !slices.Equal(table, want) {
		t.Errorf("the table reads %v, want %v", table, want)
	}
}

// naiveMaglev deals a table by looking at everyone's next turn every time.
func naiveMaglev(ids []uint64, weights []uint32, size int) []uint32 {
	table, had := slices.Repeat([]uint32{free}, size), make([]float64, len(ids))
	wished := make([]int, len(ids)) // how far each is in its order
	for range size {
		best := 0
		for i := range ids {
			mine, its := (had[i]+1)/float64(weights[i]), (had[best]+1)/float64(weights[best])
			if mine < its || mine == its && weights[i] > weights[best] {
				best = i
			}
		}
		had[best]++
		start, _ := bits.Mul64(splitmix64(ids[best]), uint64(size))
		step, _ := bits.Mul64(splitmix64(ids[best]+splitmixGamma), uint64(size-1))
		slot := func() int { return (int(start) + wished[best]*(int(step)+1)) % size }
		for table[slot()] != free {
			wished[best]++
		}
		table[slot()] = uint32(best)
	}
	return table
}

// No slot is left free, and everyone has its part to within a slot, whatever the
// weights; the naive way to deal gives the same table.
func TestMaglevTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := anyWeights(t)
		size := nextPrime(rapid.IntRange(2, 1000).Draw(t, "size"))
		ro := newRoster(setOf(weights...))
		ids := make([]uint64, len(weights))
		for i, s := range ro.slots {
			ids[i] = uint64(s.backend.hash)
		}
		table := maglevTable(ids, weights, size)
		counts := make([]int, len(weights))
		for slot, i := range table {
			if int(i) >= len(weights) {
				t.Fatalf("slot %d of %d is nobody's", slot, size)
			}
			counts[i]++
		}
		for i, c := range counts {
			exact := float64(weights[i]) / float64(ro.sum) * float64(size)
			// Turns are whole: those of all others together may be ahead by a turn
			// each, of which this one's part is its weight's.
			slack := 1 + exact/float64(size)*float64(len(weights))
			if math.Abs(float64(c)-exact) > slack {
				t.Fatalf("member %d of %v has %d of %d slots, its part is %.2f", i, weights, c, size, exact)
			}
		}
		if want := naiveMaglev(ids, weights, size); !slices.Equal(table, want) {
			t.Fatalf("weights %v: the table reads %v, want %v", weights, table, want)
		}
	})
}

// The shortcuts of rendezvous are none: bids in full and sorted say the same.
func TestRendezvousExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := anyWeights(t)
		p := NewRendezvous(HashConfig{}).Build(setOf(weights...)).(*rendezvous)
		key := rapid.Uint64().Draw(t, "key")
		order := make([]int, len(weights))
		bids := make([]float64, len(weights))
		for i := range order {
			u := 1 - missing(mix(key, p.ids[i]))
			order[i], bids[i] = i, -math.Log(u)/float64(p.weights[i])
		}
		slices.SortFunc(order, func(a, b int) int {
			if bids[a] < bids[b] {
				return -1
			}
			return 1
		})
		if got := p.highest(key); got != order[0] {
			t.Fatalf("%d bids most, want %d of %v", got, order[0], bids)
		}
		var first [probes]uint32
		for n, i := range p.first(key, &first) {
			if int(i) != order[n] {
				t.Fatalf("place %d is %d's, want %d's of %v", n, i, order[n], bids)
			}
		}
	})
}

// missing is a lower bound of the logarithm, and in (0, 1) at the ends too.
func TestMissing(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 1))
	for _, h := range append([]uint64{0, 1, math.MaxUint64, math.MaxUint64 - 1<<12}, d.Uint64(), d.Uint64(), d.Uint64()) {
		m := missing(h)
		if v := score(h, 1); m <= 0 || m >= 1 || v < m || math.IsInf(v, 0) {
			t.Errorf("of %x: 1 - u is %g, -ln(u) is %g", h, m, v)
		}
	}
}

// Keys and ids that differ little do not bid alike: with counters for keys each
// of many pairs of members wins half the time, and coins fall independently of
// who wins.
func TestMixIsFair(t *testing.T) {
	const keys = 4000
	var low, early int
	for a := range 30 {
		x, y := uint64(IDOf(fmt.Sprint(a))), uint64(IDOf(fmt.Sprint(a+1)))
		b := NewBackend(fmt.Sprint(a), "")
		wins := 0
		for k := range uint64(keys) {
			key := splitmix64(k)
			if mix(key, x) > mix(key, y) {
				wins++
				early++
				if coin(key, b) < 0.3 {
					low++
				}
			}
		}
		if math.Abs(float64(wins)-keys/2) > 5*math.Sqrt(keys)/2 {
			t.Errorf("member %d beats the next for %d of %d keys", a, wins, keys)
		}
	}
	if got := float64(low) / float64(early); math.Abs(got-0.3) > 5*math.Sqrt(0.21/float64(early)) {
		t.Errorf("of the keys that a member wins, a share of 0.3 admits %.4f", got)
	}
}

func TestNextPrime(t *testing.T) {
	for n, want := range map[int]int{0: 2, 2: 2, 4: 5, 65536: 65537, 65537: 65537, 65538: 65539, 5_000_010: 5_000_011} {
		if got := nextPrime(n); got != want {
			t.Errorf("nextPrime(%d) = %d, want %d", n, got, want)
		}
	}
}

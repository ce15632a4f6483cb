// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// TestMemoryGrowInTime: more arrive at once than there is memory for, and take
// what they were granted at once, or so late that one look does not see it and only
// the next does. Without a look at a fixed time the group is never exceeded, it is
// used to a good part, and looks are few.
func TestMemoryGrowInTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		group int64
		late  bool
		looks int // at most
	}{
		{"at once, small", 64 << 20, false, 30},
		{"late, small", 64 << 20, true, 30},
		{"at once", 1 << 30, false, 40},
		{"late", 1 << 30, true, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, set := newTestMemory(math.MaxInt64, c.group)
			m.within = usable(c.group)
			var now, last int64 // granted since the last look, and between the two before it
			seen, looks, read := int64(12<<20), 0, m.read
			m.read = func() memoryUse {
				looks++
				seen += last
				last, now = now, 0
				if !c.late {
					seen, last = seen+last, 0
				}
				set(seen/2, seen/2, seen)
				return read()
			}
			let := 0
			for let < 100_000 && m.grow(roomConn) {
				let++
				now += roomConn
			}
			if all := seen + last + now; all > c.group {
				t.Errorf("%d were let in and took %d, of %d", let, all, c.group)
			}
			if !m.short.Load() || seen < c.group*85/100 {
				t.Errorf("short %v at %d of %d", m.short.Load(), seen, c.group)
			}
			if looks > c.looks {
				t.Errorf("%d looks for %d connections", looks, let)
			}
		})
	}
}

// TestMemoryGrowAgain: what was granted and given back is there again with the next
// look, without a group there is no bound, and one look serves all who wait for it.
func TestMemoryGrowAgain(t *testing.T) {
	m, set := newTestMemory(math.MaxInt64, 64<<20)
	set(20<<20, 20<<20, 30<<20)
	for range 100_000 { // each leaves at once
		if !m.grow(roomConnTLS) {
			t.Fatal("refused while there is room")
		}
	}
	set(30<<20, 30<<20, 63<<20)
	m.look()
	if m.grow(1) {
		t.Error("let in while memory is short")
	}

	free, _ := newTestMemory(math.MaxInt64, 0)
	free.room.Store(math.MaxInt64 / 2)
	free.read = func() memoryUse { t.Error("looked"); return memoryUse{} }
	for range 1000 {
		if !free.grow(1 << 40) {
			t.Fatal("refused without a group")
		}
	}

	var looks atomic.Int64
	m, set = newTestMemory(math.MaxInt64, 1<<30)
	set(300<<20, 300<<20, 300<<20)
	read := m.read
	m.read = func() memoryUse { looks.Add(1); return read() }
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 100 {
				m.grow(roomConn)
			}
		})
	}
	all.Wait()
	if n := looks.Load(); n < 1 || n > 20 {
		t.Errorf("%d looks for 6400 who take 150 MiB", n)
	}
}

// TestUsable: a small group keeps a reserve, a large one has it in its thresholds.
func TestUsable(t *testing.T) {
	for _, limit := range []int64{1 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20, 1 << 30} {
		n := usable(limit)
		left := limit - int64(allShort*float64(n))
		if n < limit/2 || n > limit || limit >= 16<<20 && left < groupReserve*97/100 || limit > 140<<20 && n != limit {
			t.Errorf("%d MiB: %d are used, %d left", limit>>20, n, left)
		}
	}
}

// BenchmarkMemoryGrow is what a new connection pays between two looks.
func BenchmarkMemoryGrow(b *testing.B) {
	m, _ := newTestMemory(math.MaxInt64, 0)
	m.room.Store(math.MaxInt64 / 2)
	b.ReportAllocs()
	for b.Loop() {
		m.grow(1)
	}
}

// BenchmarkMemoryLook is what it costs to look, here.
func BenchmarkMemoryLook(b *testing.B) {
	m, _ := newTestMemory(math.MaxInt64, 0)
	m.read, m.group = readMemory, findMemoryGroup(os.DirFS("/"))
	for b.Loop() {
		m.look()
	}
}

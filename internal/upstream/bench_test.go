// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"testing"

	"github.com/weirlb/weir/internal/clock"
)

// TestNoAllocations: taking and giving back allocates nothing.
func TestNoAllocations(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	c := mustDial(t, target)
	use(t, target, c, clock.Now())
	n := testing.AllocsPerRun(1000, func() {
		now := clock.Now()
		c := target.Get(now, true)
		target.Put(c, now)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGetPut(b *testing.B) {
	backend := always(b)
	target := newTarget(b, options(backend.Addr()))
	for range 8 {
		use(b, target, mustDial(b, target), clock.Now())
		target.CloseIdle()
	}
	var conns []*Conn
	for range 8 {
		conns = append(conns, mustDial(b, target))
	}
	for _, c := range conns {
		use(b, target, c, clock.Now())
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			now := clock.Now()
			if c := target.Get(now, false); c != nil {
				target.Put(c, now)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/balance"
)

// concurrent: picks, reservations, changes of state and rebuilds all at once.
// Under the race detector it proves that they may; in any case nothing leaks
// and nobody who is out for good is ever chosen.
func concurrent(t *testing.T, s *suite) {
	for _, n := range []int{3, 60, 300} {
		weights := equal(n)
		weights[1] = 0
		r := s.rig(t, false, weights...)
		r.members[2].Backend.SetAdmin(balance.Disabled)
		policy := s.build()
		var published atomic.Pointer[balance.Picker]
		p := policy.Build(r.set)
		published.Store(&p)
		var wg sync.WaitGroup
		var pickers atomic.Int32
		for k := range 4 {
			pickers.Add(1)
			wg.Go(func() {
				defer pickers.Add(-1)
				d := rand.New(rand.NewPCG(s.seed, uint64(k)))
				for i := range 3000 {
					q := balance.Request{Key: d.Uint64(), HasKey: true, Rand: d.Uint64(), Now: balance.Instant(i) * 1e6}
					for range 3 {
						b, ok := (*published.Load()).Pick(q)
						if !ok {
							break
						}
						if b == r.members[1].Backend || b == r.members[2].Backend {
							t.Errorf("picked %s, which is out for good", b.ID())
						}
						if b.Reserve() {
							if d.IntN(50) == 0 {
								b.Charge(q.Now, 1e6, 0)
							}
							b.Release()
							break
						}
						q.Tried.Add(b.Hash())
					}
				}
			})
		}
		wg.Go(func() { // the pool's core
			d := rand.New(rand.NewPCG(s.seed, 99))
			for pickers.Load() > 0 {
				m := r.members[d.IntN(n)]
				if m.Backend == r.members[2].Backend {
					continue
				}
				m.Backend.SetShare(float64(d.IntN(4)) / 2)
				m.Backend.SetAdmin(balance.Admin(max(0, d.IntN(6)-3)))
				m.Backend.SetSuspect(d.IntN(4) == 0)
				m.Backend.SetUnreachable(d.IntN(4) == 0)
				m.Backend.SetLimit(int64(d.IntN(4)))
				if d.IntN(n) == 0 {
					next := policy.Build(balance.NewSet(r.members, 1, d.IntN(2) == 0))
					published.Store(&next)
				}
			}
		})
		wg.Wait()
		for i, m := range r.members {
			if got := m.Backend.InFlight(); got != 0 {
				t.Errorf("of %d: backend %d has %d in flight at the end", n, i, got)
			}
		}
	}
}

// allocations: Pick allocates nothing, whatever the state.
func allocations(t *testing.T, s *suite) {
	for _, n := range []int{3, 300} {
		weights := equal(n)
		weights[0] = 3
		r := s.rig(t, false, weights...)
		calm := func(i int, b *balance.Backend) {
			b.SetShare(1)
			b.SetSuspect(false)
			b.SetLimit(0)
		}
		for name, state := range map[string]func(i int, b *balance.Backend){
			"calm":        calm,
			"ramping":     func(i int, b *balance.Backend) { b.SetShare(float64(i%3) / 4) },
			"all at half": func(_ int, b *balance.Backend) { b.SetShare(0.5) },
			"all suspect": func(_ int, b *balance.Backend) { b.SetSuspect(true) },
			"all full":    func(_ int, b *balance.Backend) { b.SetLimit(1); b.Reserve() },
			"all out":     func(_ int, b *balance.Backend) { b.SetShare(0) },
			"charged":     func(_ int, b *balance.Backend) { b.Charge(0, 1e9, 0) },
		} {
			for i, m := range r.members {
				state(i, m.Backend)
			}
			requests := []balance.Request{r.request(), r.request(), r.request()}
			requests[1].Tried.Add(r.members[0].Backend.Hash())
			requests[2].Prefer = r.members[1].Backend.Hash()
			for k, q := range requests {
				if got := testing.AllocsPerRun(50, func() {
					q.Rand = q.Rand*3 + 1
					r.picker.Pick(q)
				}); got != 0 {
					t.Errorf("%d backends, %s, request %d: %g allocations a pick", n, name, k, got)
				}
			}
			for i, m := range r.members {
				calm(i, m.Backend)
				for m.Backend.InFlight() > 0 {
					m.Backend.Release()
				}
			}
		}
	}
}

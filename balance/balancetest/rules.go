// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"testing"

	"github.com/weirlb/weir/balance"
)

// excluded: share 0, draining, disabled, weight 0 are never chosen, not even as
// the last, and whoever comes back is.
func excluded(t *testing.T, s *suite) {
	r := s.rig(t, false, 1, 1, 1, 0, 1)
	r.members[0].Backend.SetShare(0)
	r.members[1].Backend.SetAdmin(balance.Draining)
	r.members[2].Backend.SetAdmin(balance.Disabled)
	for range 500 {
		if i := r.pick(r.request()); i != 4 {
			t.Fatalf("picked %d, the only candidate is 4", i)
		}
	}
	q := r.request()
	q.Tried.Add(r.members[4].Backend.Hash())
	q.Prefer = r.members[1].Backend.Hash()
	if i := r.pick(q); i != 4 {
		t.Errorf("picked %d, which is excluded, instead of the only candidate, though tried", i)
	}
	r.members[4].Backend.SetShare(0)
	if _, ok := r.picker.Pick(r.request()); ok {
		t.Error("found somebody though all are excluded")
	}
	r.members[1].Backend.SetAdmin(balance.Enabled)
	if i := r.pick(r.request()); i != 1 {
		t.Errorf("picked %d after 1 was enabled", i)
	}
}

// panicked: opinions are ignored, the operator's word and facts are not.
func panicked(t *testing.T, s *suite) {
	r := s.rig(t, true, 1, 1, 1, 1, 0)
	r.members[0].Backend.SetShare(0)
	r.members[1].Backend.SetShare(0.1)
	r.members[2].Backend.SetAdmin(balance.Draining)
	counts := make([]int, 5)
	for range 10_000 {
		counts[r.pick(r.request())]++
	}
	r.wantShares("in panic", counts, []float64{1, 1, 0, 1, 0}, s.slack)

	// A backend known to be unreachable comes after every other one.
	r.members[3].Backend.SetUnreachable(true)
	q := r.request()
	for range 3 {
		i := r.pick(q)
		if want := q.Tried.Len() == 2; want != (i == 3) {
			t.Fatalf("picked %d after %d attempts; 3 is unreachable and 2 drains", i, q.Tried.Len())
		}
		q.Tried.Add(r.members[i].Backend.Hash())
		q.Rand = r.dice.Uint64()
	}
}

// triedLast: every candidate once before anyone twice, up to what Tried holds.
func triedLast(t *testing.T, s *suite) {
	for _, n := range []int{2, 3, 8, 300} {
		weights := equal(n)
		weights[0] = 1000 // would be drawn nearly every time
		r := s.rig(t, false, weights...)
		for range 100 {
			q := r.request()
			for range min(n, 8) {
				q.Rand, q.Key = r.dice.Uint64(), r.dice.Uint64()
				i := r.pick(q)
				if q.Tried.Has(r.members[i].Backend.Hash()) {
					t.Fatalf("of %d: picked %d again after %d attempts", n, i, q.Tried.Len())
				}
				q.Tried.Add(r.members[i].Backend.Hash())
			}
			if n <= 8 {
				r.pick(q) // everyone has been tried: still somebody
			}
		}
	}
}

// prefer: a sticky backend is chosen whenever it may take work.
func prefer(t *testing.T, s *suite) {
	for _, n := range []int{1, 3, 300} {
		r := s.rig(t, false, equal(n)...)
		for k := range 50 {
			q := r.request()
			want := k % n
			b := r.members[want].Backend
			q.Prefer = b.Hash()
			for range 3 {
				b.Reserve() // load is no reason
			}
			if i := r.pick(q); i != want {
				t.Fatalf("of %d: picked %d, the preferred one is %d", n, i, want)
			}
			for range 3 {
				b.Release()
			}
		}
		q := r.request()
		q.Prefer = balance.IDOf("nobody")
		r.pick(q)
	}
	r := s.rig(t, false, 1, 1)
	for name, out := range map[string]func(b *balance.Backend, yes bool){
		"draining": func(b *balance.Backend, yes bool) {
			b.SetAdmin(map[bool]balance.Admin{true: balance.Draining}[yes])
		},
		"broken": func(b *balance.Backend, yes bool) {
			b.SetShare(map[bool]float64{false: 1}[yes])
		},
		"suspect":     (*balance.Backend).SetSuspect,
		"unreachable": (*balance.Backend).SetUnreachable,
		"full": func(b *balance.Backend, yes bool) {
			if b.SetLimit(1); yes {
				b.Reserve()
			} else {
				b.Release()
			}
		},
	} {
		b := r.members[0].Backend
		out(b, true)
		for range 20 {
			q := r.request()
			q.Prefer = b.Hash()
			if i := r.pick(q); i != 1 {
				t.Errorf("the preferred backend was picked though %s", name)
			}
		}
		out(b, false)
	}
}

// membership: one policy builds picker after picker; each knows its own set.
func membership(t *testing.T, s *suite) {
	policy := s.build()
	r := s.rig(t, false, equal(10)...)
	old := policy.Build(r.set)
	for range 1000 {
		q := r.request()
		if _, ok := old.Pick(q); !ok {
			t.Fatal("nobody")
		}
	}
	// Three leave, two come, one changes its weight.
	removed := r.members[:3]
	r.members = append([]balance.Member(nil), r.members[3:]...)
	r.members[0].Weight = 4
	r.members = append(r.members, balance.Member{Backend: backend(100), Weight: 1}, balance.Member{Backend: backend(101), Weight: 2})
	r.set = balance.NewSet(r.members, r.set.Instance(), false)
	r.picker = policy.Build(r.set)
	counts, want := make([]int, len(r.members)), make([]float64, len(r.members))
	for i, m := range r.members {
		want[i] = float64(m.Weight)
	}
	for range 10_000 {
		counts[r.pick(r.request())]++
	}
	r.wantShares("after the change", counts, want, s.slack)
	// The old picker serves whoever still holds it.
	was := map[*balance.Backend]bool{}
	for range 2000 {
		q := r.request()
		b, ok := old.Pick(q)
		if !ok || r.indexOf(b) >= 7 {
			t.Fatal("the old picker lost its set")
		}
		was[b] = true
	}
	for _, m := range removed {
		if !was[m.Backend] {
			t.Errorf("the old picker forgot %s", m.Backend.ID())
		}
	}
}

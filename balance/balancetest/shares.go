// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/balance"
)

var weightings = [][]uint32{
	{1, 1, 1},
	{5, 1, 1},
	{1, 2, 3, 4},
	{5, 1, 1, 1, 1, 1},
	{7, 0, 7, 3, 0},
}

// nobody: an empty choice is an answer, not a crash; a single one is always it.
func nobody(t *testing.T, s *suite) {
	for _, weights := range [][]uint32{{}, {0}, {0, 0, 0}} {
		r := s.rig(t, false, weights...)
		if b, ok := r.picker.Pick(r.request()); ok || b != nil {
			t.Errorf("Pick from weights %v returned a backend", weights)
		}
	}
	r := s.rig(t, false, 0, 3, 0)
	for range 50 {
		if i := r.pick(r.request()); i != 1 {
			t.Fatalf("picked %d of one candidate", i)
		}
	}
	r.members[1].Backend.SetAdmin(balance.Draining)
	if _, ok := r.picker.Pick(r.request()); ok {
		t.Error("picked the only backend while it drains")
	}
}

// sharesIdle: with nothing in flight, work follows the weights.
func sharesIdle(t *testing.T, s *suite) {
	for _, weights := range weightings {
		r := s.rig(t, false, weights...)
		counts := make([]int, len(weights))
		for range 10_000 {
			counts[r.pick(r.request())]++
		}
		r.wantShares(fmt.Sprint(weights), counts, floats(weights), s.slack)
	}
}

// sharesHeld: with many requests in flight whose times do not depend on the
// backend, work follows the weights too; and what was reserved comes back.
func sharesHeld(t *testing.T, s *suite) {
	for _, weights := range weightings {
		r := s.rig(t, false, weights...)
		counts := make([]int, len(weights))
		var sum int
		for _, w := range weights {
			sum += int(w)
		}
		var held []*balance.Backend
		release := func(k int) {
			held[k].Release()
			held[k] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		for k := range 15_000 {
			if len(held) == 8*sum {
				release(r.dice.IntN(len(held)))
			}
			i := r.pick(r.request())
			if !r.members[i].Backend.Reserve() {
				t.Fatal("a backend without limit refused a reservation")
			}
			held = append(held, r.members[i].Backend)
			if k >= 3_000 {
				counts[i]++
			}
		}
		r.wantShares(fmt.Sprint(weights), counts, floats(weights), s.slack)
		for len(held) > 0 {
			release(len(held) - 1)
		}
		for i, m := range r.members {
			if n := m.Backend.InFlight(); n != 0 {
				t.Errorf("backend %d has %d in flight after everything ended", i, n)
			}
		}
	}
}

// sharesOfTheRest: when some may not be chosen, nobody else inherits more than
// its weight of what they would have got. The picker is not rebuilt.
func sharesOfTheRest(t *testing.T, s *suite) {
	for _, out := range []func(*balance.Backend){
		func(b *balance.Backend) { b.SetShare(0) },
		func(b *balance.Backend) { b.SetAdmin(balance.Disabled) },
		func(b *balance.Backend) { b.SetSuspect(true) },
		func(b *balance.Backend) { b.SetLimit(1); b.Reserve() },
	} {
		for _, n := range []int{5, 40} {
			weights := equal(n)
			weights[n-1] = 3
			r := s.rig(t, false, weights...)
			want := floats(weights)
			for i := range n / 2 { // a whole row of neighbours
				out(r.members[1+i].Backend)
				want[1+i] = 0
			}
			counts := make([]int, n)
			for range 10_000 {
				counts[r.pick(r.request())]++
			}
			r.wantShares(fmt.Sprintf("%d of %d out", n/2, n), counts, want, s.slack)
		}
	}
}

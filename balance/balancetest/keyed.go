// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// Collateral allows a keyed policy to move this part of all keys between
// backends that are not concerned when one comes, goes or changes its weight.
// The default is 0; a table that is built anew needs a little.
func Collateral(f float64) Option { return func(s *suite) { s.collateral = f } }

const keyedKeys = 4000

// keyed is what a policy that calls itself Keyed must keep beside the rest.
func keyed(t *testing.T, s *suite) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"same key", sameKey},
		{"order of members", orderOfMembers},
		{"disruption", disruption},
		{"weight moves", weightMoves},
		{"health returns", healthReturns},
		{"ramp moves once", rampMovesOnce},
		{"retry order", retryOrder},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
}

// owners returns which member each of many keys goes to.
func (r *rig) owners(now balance.Instant) []int {
	r.Helper()
	list := make([]int, keyedKeys)
	for k := range list {
		list[k] = r.pick(balance.Request{Key: uint64(k), HasKey: true, Rand: r.dice.Uint64(), Now: now})
	}
	return list
}

// rebuilt returns a rig over other members with a picker of the same policy.
func (r *rig) rebuilt(policy balance.Policy, members []balance.Member) *rig {
	next := *r
	next.members = members
	next.set = balance.NewSet(members, r.dice.Uint64(), false)
	next.picker = policy.Build(next.set)
	return &next
}

// moves counts the keys that have another owner: those that come to the backend
// or leave it, and the others.
func moves(before, after *rig, was, is []int, concerned *balance.Backend) (own, others int) {
	for k := range was {
		from, to := before.members[was[k]].Backend, after.members[is[k]].Backend
		switch {
		case from == to:
		case from == concerned || to == concerned:
			own++
		default:
			others++
		}
	}
	return own, others
}

func (s *suite) wantFew(t *testing.T, what string, others int) {
	t.Helper()
	if float64(others) > s.collateral*keyedKeys {
		t.Errorf("%s: %d of %d keys moved between others, allowed are %.2g", what, others, keyedKeys, s.collateral*keyedKeys)
	}
}

var keyedWeights = []uint32{1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 4, 1}

// sameKey: a key is answered with the same backend whatever the random bits and
// the time are, and load is no reason to move it, unless bounded.
func sameKey(t *testing.T, s *suite) {
	r := s.rig(t, false, keyedWeights...)
	was := r.owners(1)
	for _, now := range []balance.Instant{1, 1e9, 1e15} {
		for k, i := range r.owners(now) {
			if i != was[k] {
				t.Fatalf("key %d went to %d and then to %d", k, was[k], i)
			}
		}
	}
}

// orderOfMembers: balancers that list the members in another order, and are other
// instances, agree.
func orderOfMembers(t *testing.T, s *suite) {
	r := s.rig(t, false, keyedWeights...)
	was := r.owners(1)
	for range 3 {
		members := append([]balance.Member(nil), r.members...)
		r.dice.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		other := r.rebuilt(s.build(), members)
		for k, i := range other.owners(1) {
			if members[i].Backend != r.members[was[k]].Backend {
				t.Fatalf("key %d goes to %s or %s, depending on who is listed first",
					k, r.members[was[k]].Backend.ID(), members[i].Backend.ID())
			}
		}
	}
}

// disruption: who leaves gives up its keys and who comes takes some; others keep
// theirs, but for the stated slack. Coming back restores everything.
func disruption(t *testing.T, s *suite) {
	policy := s.build()
	r := s.rig(t, false, keyedWeights...)
	was := r.owners(1)
	for gone := range r.members {
		rest := append(append([]balance.Member(nil), r.members[:gone]...), r.members[gone+1:]...)
		without := r.rebuilt(policy, rest)
		is := without.owners(1)
		own, others := moves(r, without, was, is, r.members[gone].Backend)
		s.wantFew(t, r.members[gone].Backend.ID()+" leaves", others)
		if own == 0 {
			t.Errorf("%s had no keys", r.members[gone].Backend.ID())
		}
		with := r.rebuilt(policy, append(rest, r.members[gone])) // at another place
		if own, others := moves(r, with, was, with.owners(1), nil); own+others > 0 {
			t.Errorf("%d keys are elsewhere after %s came back", own+others, r.members[gone].Backend.ID())
		}
	}
}

// weightMoves: a larger weight moves keys to the backend, a smaller one from it,
// and none between others; at 0 it is gone.
func weightMoves(t *testing.T, s *suite) {
	policy := s.build()
	r := s.rig(t, false, keyedWeights...)
	was := r.owners(1)
	for _, w := range []uint32{0, 1, 4} {
		members := append([]balance.Member(nil), r.members...)
		members[1].Weight = w // was 2
		other := r.rebuilt(policy, members)
		is := other.owners(1)
		own, others := moves(r, other, was, is, members[1].Backend)
		s.wantFew(t, "a changed weight", others)
		if own == 0 {
			t.Errorf("weight 2 to %d moved nothing", w)
		}
		wrong := 0
		for k := range was {
			if w > 2 && was[k] == 1 && is[k] != 1 || w < 2 && was[k] != 1 && is[k] == 1 {
				wrong++
			}
			if w == 0 && is[k] == 1 {
				t.Fatal("a backend with weight 0 has keys")
			}
		}
		s.wantFew(t, "a changed weight, the wrong way", wrong)
	}
}

// healthReturns: with the same picker, who is out loses its keys and no other
// does, and has exactly them when it is back.
func healthReturns(t *testing.T, s *suite) {
	r := s.rig(t, false, keyedWeights...)
	was := r.owners(1)
	out := map[int]bool{}
	check := func(what string) {
		t.Helper()
		for k, i := range r.owners(1) {
			if out[i] || i != was[k] && !out[was[k]] {
				t.Fatalf("%s: key %d of %d went to %d", what, k, was[k], i)
			}
		}
	}
	for i, set := range map[int]func(b *balance.Backend, bad bool){
		1: func(b *balance.Backend, bad bool) { b.SetShare(map[bool]float64{false: 1}[bad]) },
		3: func(b *balance.Backend, bad bool) { b.SetAdmin(map[bool]balance.Admin{true: balance.Draining}[bad]) },
		5: (*balance.Backend).SetSuspect,
		6: (*balance.Backend).SetUnreachable,
		8: func(b *balance.Backend, bad bool) {
			if b.SetLimit(0); bad {
				b.SetLimit(1)
				b.Reserve()
			} else {
				b.Release()
			}
		},
	} {
		set(r.members[i].Backend, true)
		out[i] = true
		check("out")
		defer func() {
			set(r.members[i].Backend, false)
			delete(out, i)
			check("back")
		}()
	}
}

// rampMovesOnce: while a backend's share rises its keys come to it, each once,
// and no key goes anywhere else.
func rampMovesOnce(t *testing.T, s *suite) {
	r := s.rig(t, false, keyedWeights...)
	home := r.owners(1)
	b := r.members[3].Backend
	start := balance.Instant(0).Add(time.Hour)
	b.SetRamp(&balance.Ramp{Start: start, Window: time.Minute})
	was := r.owners(start)
	for step := range 21 {
		is := r.owners(start.Add(time.Duration(step) * 3 * time.Second))
		for k := range is {
			if is[k] != was[k] && is[k] != 3 {
				t.Fatalf("key %d moved from %d to %d while the share of 3 rose", k, was[k], is[k])
			}
		}
		was = is
	}
	for k := range was {
		if was[k] != home[k] {
			t.Fatalf("key %d of %d is with %d after the ramp", k, home[k], was[k])
		}
	}
}

// retryOrder: attempts of one key visit the backends in an order of the key's
// own: the same every time, and not the same for all keys.
func retryOrder(t *testing.T, s *suite) {
	r := s.rig(t, false, equal(12)...)
	second := map[int]map[int]bool{}
	for k := range uint64(400) {
		var order [2][4]int
		for round := range order {
			q := balance.Request{Key: k, HasKey: true}
			for n := range order[round] {
				q.Rand = r.dice.Uint64()
				i := r.pick(q)
				order[round][n] = i
				q.Tried.Add(r.members[i].Backend.Hash())
			}
		}
		if order[0] != order[1] {
			t.Fatalf("key %d tries %v and then %v", k, order[0], order[1])
		}
		if second[order[0][0]] == nil {
			second[order[0][0]] = map[int]bool{}
		}
		second[order[0][0]][order[0][1]] = true
	}
	for i, others := range second {
		if len(others) < 4 {
			t.Errorf("what %d refuses goes to %d backends only", i, len(others))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"maps"
	"math/bits"
	"slices"
)

// NewMaglev returns the policy "maglev": a table of which each backend owns its
// part by weight; a pick is one look into it (D. Eisenbud et al., "Maglev: a
// fast and reliable software network load balancer", NSDI 2016, section 3.4).
//
// Each backend has an order of its own in which it would like the slots: from a
// start in steps, both hashes of its id; the size is prime, so the steps reach
// every slot. They take turns, each time the first slot they like that is still
// free, until all are gone. A backend of weight w has its j-th turn at the time
// j/w, the heavier first where times are equal: who comes first does not depend
// on who else is there, so little changes when somebody comes or goes.
//
// Example: 7 slots, A starting at 3 in steps of 4 (3 0 4 1 5 2 6), B at 0 in
// steps of 2 (0 2 4 6 1 3 5), weights 1 and 1. A takes 3, B 0, A 4 (0 is gone),
// B 2, A 1, B 6, A 5: the table reads B A B A A A B.
//
// Shares are exact to a slot or so: within 1 % up to 650 backends with 65537
// slots, within 10 % at ten thousand. A backend whose part is less than a slot
// may get none. A removal moves, beyond the removed backend's keys, around 1 % of
// the others (they would not move in rendezvous or ring_hash).
//
// The table cannot say who would own a slot if its owner were not there. The next
// in the key's order is therefore who owns the slots that further hashes of the
// key lead to: drawn by weight and equal on every balancer. Only when many such
// in a row may not be chosen everyone is looked at, in rendezvous order.
func NewMaglev(cfg HashConfig) Policy {
	cfg = cfg.completed()
	return withLearning(maglevPolicy{hashPolicy{"maglev", cfg}}, cfg.Fallback)
}

type maglevPolicy struct{ hashPolicy }

func (p maglevPolicy) Build(s *Set) Picker {
	m := &maglev{}
	m.init(s, p.cfg)
	m.table = maglevTable(m.ids, m.weights, p.cfg.TableSize)
	return m
}

type maglev struct {
	keyed
	table []uint32 // indices of members; empty when there are none
}

// at returns the member that owns the slot of a hash.
func (p *maglev) at(hash uint64) int {
	slot, _ := bits.Mul64(hash, uint64(len(p.table)))
	return int(p.table[slot])
}

func (p *maglev) Pick(r Request) (*Backend, bool) {
	if !r.HasKey {
		return p.fallback.Pick(r)
	}
	if len(p.table) == 0 {
		return nil, false
	}
	if i := p.at(splitmix64(r.Key)); p.plain(i, &r) {
		return p.slots[i].backend, true
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	s := p.newSearch(&r)
	for n := range probes * rounds {
		if p.consider(&s, p.at(s.probe(n))) {
			break
		}
	}
	return p.result(&s)
}

// maglevTable deals out size slots, a prime, to members with these ids.
func maglevTable(ids []uint64, weights []uint32, size int) []uint32 {
	if len(ids) == 0 {
		return nil
	}
	d := deal{table: slices.Repeat([]uint32{free}, size), wishes: make([]wish, len(ids))}
	for i, id := range ids {
		start, _ := bits.Mul64(splitmix64(id), uint64(size))
		step, _ := bits.Mul64(splitmix64(id+splitmixGamma), uint64(size-1))
		d.wishes[i] = wish{uint32(start), uint32(step) + 1}
	}
	turns := newTurns(weights)
	for left := size; left > 0; {
		for _, i := range turns.next() {
			if left == 0 {
				break
			}
			d.take(i)
			left--
		}
	}
	return d.table
}

// deal is a table that is being dealt out.
type deal struct {
	table  []uint32
	wishes []wish // one for each member
}

const free = ^uint32(0) // a slot that is nobody's yet

// take gives a member the first free slot it likes.
func (d *deal) take(i uint32) {
	w, size := &d.wishes[i], uint32(len(d.table))
	for d.table[w.next] != free {
		if w.next += w.step; w.next >= size {
			w.next -= size
		}
	}
	d.table[w.next] = i
}

// wish is the slot that a member would like next, and how it goes on.
type wish struct{ next, step uint32 }

// turns deals out turns by weight: the j-th of a member of weight w, from 1, at
// the time j/w, at equal times the heavier first, then in the members' order.
// Members of one weight have their turns together; a heap holds the next turn of
// each weight.
type turns struct {
	heap []turn
}

type turn struct {
	time    float64
	had     float64
	weight  float64
	members []uint32
}

func (t *turn) before(u *turn) bool {
	return t.time < u.time || t.time == u.time && t.weight > u.weight
}

func newTurns(weights []uint32) *turns {
	of := map[uint32][]uint32{}
	for i, w := range weights {
		of[w] = append(of[w], uint32(i))
	}
	t := &turns{}
	for _, w := range slices.Backward(slices.Sorted(maps.Keys(of))) { // the heaviest is the first: a heap
		t.heap = append(t.heap, turn{time: 1 / float64(w), weight: float64(w), members: of[w]})
	}
	return t
}

// next returns whose turn it is.
func (t *turns) next() []uint32 {
	h := t.heap
	moved := h[0]
	moved.had++
	moved.time = (moved.had + 1) / moved.weight
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if child >= len(h) || moved.before(&h[child]) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = moved
	return moved.members
}

// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/bits"
	"sync/atomic"
)

// NewRoundRobin returns the policy "round_robin": members in turn, as often as
// their weight says, whatever their load.
//
// The turns are a precomputed sequence in which nobody ever runs ahead of or
// falls behind its weight by a whole turn (see interleave), so weights 5, 1, 1
// give a a a b a a c and not a burst of five. The cursor is one atomic number;
// it lives in the Policy, so a rebuild goes on where the last picker was, and
// starts at a hash of the Set's instance, so balancers that start together do
// not call on the same backends together. Under concurrency every turn is still
// given exactly once. Each part of a pool (Set.Of) has a cursor of its own: if
// tiers shared one, requests that find the first of them full would take a turn
// of each, and of two backends in the second one would never get any.
//
// A member whose turn it is but who may not be chosen loses the turn, and the
// cursor moves on with it: the next member is not given two turns, so the
// remaining members stay even.
//
// The sequence has sum of weights / greatest common divisor turns, at most 8 per
// member or 16,384, whichever is more. Weights that need more are scaled down to
// that and rounded: a member with k turns is then off its weight by at most
// 1/(2k), and the smallest keep one turn each (1 to 1,000,000 becomes 1 to
// 16,384).
func NewRoundRobin() Policy { return &roundRobinPolicy{cursors: map[uint64]*turnCursor{}} }

type roundRobinPolicy struct {
	cursors map[uint64]*turnCursor // by part; only Build touches the map
}

// turnCursor is written by every pick, so alone on its line.
type turnCursor struct {
	_ [64]byte
	atomic.Uint64
	_ [56]byte
}

func (*roundRobinPolicy) Name() string { return "round_robin" }

func (p *roundRobinPolicy) Build(s *Set) Picker {
	cursor := p.cursors[s.part]
	if cursor == nil {
		cursor = &turnCursor{}
		cursor.Store(splitmix64(s.instance))
		p.cursors[s.part] = cursor
	}
	ro := newRoster(s)
	return &roundRobin{roster: ro, turns: interleave(turnWeights(ro.weights)), cursor: &cursor.Uint64}
}

type roundRobin struct {
	*roster
	turns  []uint32 // indices of members
	cursor *atomic.Uint64
}

func (p *roundRobin) Pick(r Request) (*Backend, bool) {
	if len(p.turns) == 0 {
		return nil, false
	}
	if r.Prefer == 0 && r.Tried.n == 0 {
		if b := p.turn(); b.ready() {
			return b, true
		} else if p.standing(b, &r) == clean {
			return p.walk(b, &r)
		}
		return p.walk(nil, &r)
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	return p.walk(nil, &r)
}

// turn takes the next turn.
func (p *roundRobin) turn() *Backend {
	at := (p.cursor.Add(1) - 1) % uint64(len(p.turns))
	return p.slots[p.turns[at]].backend
}

// walk takes turns until one may be chosen, beginning with b unless nil. A long
// row of turns that are no good (a zone is gone) is walked without the shared
// cursor, which then jumps.
func (p *roundRobin) walk(b *Backend, r *Request) (*Backend, bool) {
	d := newDice(r.Rand)
	for range p.patience {
		if b == nil {
			b = p.turn()
		}
		if p.standing(b, r) == clean && p.admits(b, &d, r.Now) {
			return b, true
		}
		b = nil
	}
	n := uint64(len(p.turns))
	start := p.cursor.Add(1) - 1
	best, line := b, excluded
	for k := range n {
		b = p.slots[p.turns[(start+k)%n]].backend
		s := p.standing(b, r)
		if s < line {
			best, line = b, s
		}
		if s == clean && p.admits(b, &d, r.Now) {
			p.cursor.Add(k)
			return b, true
		}
	}
	return best, line < excluded
}

// maxTurns bounds the sequence of n members.
func maxTurns(n int) uint64 { return uint64(max(8*n, 1<<14)) }

// turnWeights reduces weights to turns: divided by their greatest common
// divisor, and scaled down when there are too many.
func turnWeights(weights []uint32) []uint64 {
	var divisor, sum uint64
	for _, w := range weights {
		divisor = gcd(divisor, uint64(w))
		sum += uint64(w)
	}
	turns := make([]uint64, len(weights))
	limit := maxTurns(len(weights))
	for i, w := range weights {
		if sum/divisor <= limit {
			turns[i] = uint64(w) / divisor
			continue
		}
		// w x limit / sum, rounded to nearest.
		hi, lo := bits.Mul64(uint64(w), limit)
		lo, carry := bits.Add64(lo, sum/2, 0)
		quotient, _ := bits.Div64(hi+carry, lo, sum)
		turns[i] = max(quotient, 1)
	}
	return turns
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"sync/atomic"
)

// bound keeps loads within a factor of the average (V. Mirrokni, M. Thorup,
// M. Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018): a
// backend may hold
//
//	ceil(factor x (requests in flight + 1) x weight / sum of weights)
//
// requests, the one to be placed included, and passes further keys on to the
// next in their own order. Some backend is always below that, because together
// they may hold more than there are. The average is over those who may take work
// now: the requests and weights of members that are out, full, suspect or
// unreachable do not count. A weight counts as far as its share: a newcomer at
// a tenth is bounded to a tenth, and does not pull the bound of the others down.
//
// Example: factor 1.25, ten backends of weight 1, 19 requests in flight, one to
// place. Each may hold ceil(1.25 x 20 / 10) = 3. With five of the ten broken and
// the 19 on the others, each may hold ceil(1.25 x 20 / 5) = 5.
//
// Several requests placed at the very same moment do not see each other, so the
// bound may be exceeded by as many as that.
type bound struct {
	factor float64 // 0: no bound
	total  *Total

	_ [64]byte
	// Of a large set, kept for a tick of the caller's clock; written by picks.
	mass    atomic.Uint64 // tick << 32 | weights x shares as float32 bits
	foreign atomic.Int64  // of what total counts, not on members that count
}

// exactBound is the size up to which the average is found anew at every pick.
const exactBound = 64

// fits reports whether a member that is not full may take one more request, with
// an allowance for each unit of weight.
func (k *keyed) fits(i int, b *Backend, now Instant, allowance float64) bool {
	own := float64(k.weights[i])
	if !k.panicked {
		own *= b.ShareAt(now)
	}
	n := b.wholeLoad(now)
	return n <= 0 || float64(n) < allowance*own // n + 1 <= ceil(x) is n < x
}

// allowance is how many requests the bound grants for each unit of weight.
func (k *keyed) allowance(now Instant) float64 {
	mass, inFlight := k.average(now)
	// The product with a weight would come out a little too large at times where
	// it ought to be a whole number.
	const exact = 1 - 1e-9
	return k.bound.factor * float64(inFlight+1) / mass * exact
}

// average returns what the average is made of: the weights times shares of all
// members that may take work now, and their requests in flight. In a large set
// the members are visited once in 2^23 ns (8.4 ms) and the requests come from
// the pool's total in between.
func (k *keyed) average(now Instant) (mass float64, inFlight int64) {
	if len(k.slots) <= exactBound || k.bound.total == nil {
		return k.visit(now)
	}
	tick := uint64(uint32(now>>topTick)) << 32
	word := k.bound.mass.Load()
	if word == 0 || word&(0xffffffff<<32) != tick {
		mass, inFlight = k.visit(now)
		k.bound.foreign.Store(k.bound.total.InFlight() - inFlight)
		k.bound.mass.Store(tick | uint64(math.Float32bits(float32(mass))))
		return mass, inFlight
	}
	return float64(math.Float32frombits(uint32(word))), max(0, k.bound.total.InFlight()-k.bound.foreign.Load())
}

func (k *keyed) visit(now Instant) (mass float64, inFlight int64) {
	for i := range k.slots {
		b := k.slots[i].backend
		n := b.inFlight.Load()
		switch {
		case b.status.Load() == readyStatus && n < b.limit.Load():
			mass += float64(k.weights[i])
		case k.standing(b, &k.nothing) != clean:
			continue
		case k.panicked:
			mass += float64(k.weights[i])
		default:
			mass += float64(k.weights[i]) * b.ShareAt(now)
		}
		inFlight += n
		if b.ghost.Load() != 0 {
			inFlight += b.wholeLoad(now) - n
		}
	}
	return mass, inFlight
}

// wholeLoad is Load in whole requests: what failed attempts still charge counts
// here as well, or a backend that fails at once would be below the bound always
// and get the keys of all the others.
func (b *Backend) wholeLoad(now Instant) int64 {
	if b.ghost.Load() == 0 {
		return b.inFlight.Load()
	}
	return int64(math.Round(b.Load(now)))
}

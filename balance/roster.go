// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
)

// roster is what every picker is built on: the members of a Set that may get
// work at all, in a form that can be drawn from by weight in constant time.
// Who of them may be chosen now is the matter of candidate.go.
//
// Constant after newRoster but for top.
type roster struct {
	slots    []slot
	weights  []uint32 // as in slots
	sum      uint64   // of weights
	most     uint64   // the largest weight
	equal    bool     // all weights are the same
	panicked bool
	patience int      // unfruitful draws before a pick looks at everyone
	index    []uint32 // open addressing by BackendID; index+1, 0 is empty

	_   [64]byte
	top atomic.Uint64 // the largest share, see topShare; written by picks
}

func newRoster(s *Set) *roster {
	ro := &roster{panicked: s.panicked, equal: true}
	for _, m := range s.members {
		if m.Weight == 0 || m.Backend == nil {
			continue
		}
		ro.slots = append(ro.slots, slot{backend: m.Backend})
		ro.weights = append(ro.weights, m.Weight)
		ro.sum += uint64(m.Weight)
		ro.most = max(ro.most, uint64(m.Weight))
		ro.equal = ro.equal && m.Weight == ro.weights[0]
	}
	ro.slots, ro.weights = slices.Clip(ro.slots), slices.Clip(ro.weights)
	// A rejected draw costs some nanoseconds and looking at everyone about two
	// for each member, so a small pool gives up early.
	ro.patience = min(max(len(ro.slots), 4), 32)
	if !ro.equal {
		fillAlias(ro.slots, ro.weights, ro.sum)
	}
	ro.fillIndex()
	return ro
}

// draw returns the index of a member, by nominal weight, from 64 random bits:
// the upper bits name the column, what is left of them the side of the cut.
func (ro *roster) draw(random uint64) int {
	i, fraction := bits.Mul64(random, uint64(len(ro.slots)))
	if ro.equal {
		return int(i)
	}
	if s := &ro.slots[i]; uint32(fraction>>32) >= s.cut {
		return int(s.other)
	}
	return int(i)
}

// fillIndex builds a table of at least twice as many places as members; the
// ids are hashes already.
func (ro *roster) fillIndex() {
	if len(ro.slots) == 0 {
		return
	}
	ro.index = make([]uint32, 1<<bits.Len(uint(2*len(ro.slots)-1)))
	mask := uint64(len(ro.index) - 1)
	for i := range ro.slots {
		at := uint64(ro.slots[i].backend.hash) & mask
		for ro.index[at] != 0 {
			at = (at + 1) & mask
		}
		ro.index[at] = uint32(i) + 1
	}
}

// find returns the index of the member with that id, or -1.
func (ro *roster) find(id BackendID) int {
	if len(ro.index) == 0 {
		return -1
	}
	mask := uint64(len(ro.index) - 1)
	for at := uint64(id) & mask; ro.index[at] != 0; at = (at + 1) & mask {
		if i := int(ro.index[at]) - 1; ro.slots[i].backend.hash == id {
			return i
		}
	}
	return -1
}

// heaviestFirst returns the indices of all members by descending weight, or nil
// when all weights are equal.
func (ro *roster) heaviestFirst() []uint32 {
	if ro.equal {
		return nil
	}
	order := make([]uint32, len(ro.slots))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(ro.weights[b], ro.weights[a]), cmp.Compare(a, b))
	})
	return order
}

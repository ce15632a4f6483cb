// SPDX-License-Identifier: Apache-2.0

package balance

import "math/bits"

// slot is one column of the alias table and one member at once: 16 bytes, so
// that a draw costs one cache line, two when it ends at the other member.
type slot struct {
	backend *Backend
	cut     uint32 // the column belongs to this member below cut/2^32, above it
	other   uint32 // to the member with this index
}

// fillAlias turns weights into the alias table of M. D. Vose, "A linear
// algorithm for generating random numbers with a given distribution" (IEEE
// Transactions on Software Engineering 17(9), 1991; the method is A. J.
// Walker's). A draw is one random column and one comparison, whatever the
// weights. All arithmetic is on integers, so no member is lost to rounding.
//
// Example: weights 5, 1, 1, sum 7, in units where a column holds 7 and the
// members bring 15, 3, 3. The second column takes its own 3 and 4 of the first,
// which has 11 left; the third takes 3 and 4 more, which leaves 7: one column.
//
//	column   0        1            2
//	cut      always   3/7          3/7
//	other    0        0            0
//
// The first is drawn with 1/3 (1 + 4/7 + 4/7) = 5/7.
func fillAlias(slots []slot, weights []uint32, sum uint64) {
	n := uint64(len(slots))
	rest := make([]uint64, n) // n times the weight; below 2^64 for any n below 2^32
	var small, large []uint32
	for i, w := range weights {
		rest[i] = uint64(w) * n
		if rest[i] < sum {
			small = append(small, uint32(i))
		} else {
			large = append(large, uint32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		// rest < sum, so the quotient fits 32 bits.
		cut, _ := bits.Div64(rest[s]>>32, rest[s]<<32, sum)
		slots[s].cut, slots[s].other = uint32(cut), l
		rest[l] -= sum - rest[s]
		if rest[l] < sum {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	// What is left holds exactly one column each.
	for _, i := range append(small, large...) {
		slots[i].cut, slots[i].other = 0, i
	}
}

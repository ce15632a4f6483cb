// SPDX-License-Identifier: Apache-2.0

package balance

import "math/bits"

// bitmap is a set of up to scanMax small numbers.
type bitmap [scanMax / 64]uint64

func (m *bitmap) set(i int)      { m[i>>6&(len(m)-1)] |= 1 << (i & 63) }
func (m *bitmap) unset(i int)    { m[i>>6&(len(m)-1)] &^= 1 << (i & 63) }
func (m *bitmap) has(i int) bool { return m[i>>6&(len(m)-1)]>>(i&63)&1 != 0 }
func (m *bitmap) empty() bool    { return m[0]|m[1]|m[2]|m[3] == 0 }

// fill puts the first n numbers into an empty set.
func (m *bitmap) fill(n int) {
	for at := range m {
		m[at] = ^uint64(0) >> (64 - min(64, max(0, n-at<<6)))
	}
}

// next returns the first member of the set at or after i, or -1.
func (m *bitmap) next(i int) int {
	for at := i >> 6; at < len(m); at++ {
		word := m[at]
		if at == i>>6 {
			word &= ^uint64(0) << (i & 63)
		}
		if word != 0 {
			return at<<6 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

func (m *bitmap) count() int {
	return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) + bits.OnesCount64(m[2]) + bits.OnesCount64(m[3])
}

// nth returns the n-th member of the set, counted from 0, or -1.
func (m *bitmap) nth(n int) int {
	for at, word := range m {
		c := bits.OnesCount64(word)
		if n >= c {
			n -= c
			continue
		}
		// Halve what the member lies in, six times.
		base := at << 6
		for half := 32; half > 0; half >>= 1 {
			if c := bits.OnesCount64(word & (1<<half - 1)); n >= c {
				n -= c
				word >>= half
				base += half
			}
		}
		return base
	}
	return -1
}

// SPDX-License-Identifier: Apache-2.0

package balance

import "math/bits"

// dice turns the one random word of a Request into as many as a pick needs:
// the word itself first, then the splitmix64 sequence that starts at it.
type dice struct {
	state  uint64
	rolled bool
}

func newDice(random uint64) dice { return dice{state: random} }

// next returns 64 random bits.
func (d *dice) next() uint64 {
	if !d.rolled {
		d.rolled = true
		return d.state
	}
	x := splitmix64(d.state)
	d.state += splitmixGamma
	return x
}

// below returns a number in [0, n), n > 0, by multiply-high: the random word
// is read as a fraction of 2^64 and n is multiplied by it. The bias is at most
// n/2^64, and there is no division (Lemire, "Fast random integer generation in
// an interval", 2019).
func (d *dice) below(n uint64) uint64 {
	hi, _ := bits.Mul64(d.next(), n)
	return hi
}

// unit returns a number in [0, 1).
func (d *dice) unit() float64 { return float64(d.next()>>11) / (1 << 53) }

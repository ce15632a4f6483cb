// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
)

// Stream is a sequence of random numbers: the counter of splitmix64 (Steele, Lea
// and Flood, OOPSLA 2014). Streams of different names are independent of each
// other. Not safe for concurrent use.
type Stream struct{ state uint64 }

const gamma = 0x9e3779b97f4a7c15

// newStream returns the stream of a name under a seed.
func newStream(seed uint64, name string) *Stream {
	h := mix(seed)
	for i := range len(name) {
		h = mix(h ^ uint64(name[i]))
	}
	return &Stream{h}
}

func mix(x uint64) uint64 {
	x += gamma
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Uint64 returns 64 random bits.
func (s *Stream) Uint64() uint64 {
	x := mix(s.state)
	s.state += gamma
	return x
}

// Float64 returns a number in [0, 1).
func (s *Stream) Float64() float64 { return float64(s.Uint64()>>11) / (1 << 53) }

// IntN returns a number in [0, n); n must be above 0.
func (s *Stream) IntN(n int) int {
	hi, _ := bits.Mul64(s.Uint64(), uint64(n))
	return int(hi)
}

// Exp returns an exponentially distributed number with mean 1.
func (s *Stream) Exp() float64 { return -math.Log(1 - s.Float64()) }

// Norm returns a normally distributed number with mean 0 and variance 1 (Box and
// Muller, 1958; the second of the pair is not kept, so that a draw never depends
// on the one before).
func (s *Stream) Norm() float64 {
	return math.Sqrt(2*s.Exp()) * math.Cos(2*math.Pi*s.Float64())
}

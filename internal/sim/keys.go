// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"sort"
)

// Keys are the keys of requests, for hash policies. The zero value: none.
type Keys struct {
	N    int     // distinct ones; 0: requests have none
	Skew float64 // exponent of their Zipf distribution: the nth is asked for 1/n^Skew as often; 0: all alike
	Salt uint64  // other salts give other keys, which hash policies place elsewhere; 0: those of KeyHash
}

// zipf draws keys.
type zipf struct {
	n    int
	cdf  []float64 // nil: all alike
	salt uint64
}

func newZipf(k Keys) *zipf {
	if k.N <= 0 {
		return nil
	}
	z := &zipf{n: k.N, salt: k.Salt}
	if k.Skew <= 0 {
		return z
	}
	z.cdf = make([]float64, k.N)
	sum := 0.0
	for i := range z.cdf {
		sum += math.Pow(float64(i+1), -k.Skew)
		z.cdf[i] = sum
	}
	for i := range z.cdf {
		z.cdf[i] /= sum
	}
	return z
}

// draw returns the hash of a key.
func (z *zipf) draw(s *Stream) uint64 {
	i := 0
	if z.cdf == nil {
		i = s.IntN(z.n)
	} else {
		i = min(sort.SearchFloat64s(z.cdf, s.Float64()), z.n-1)
	}
	if z.salt != 0 {
		return mix(KeyHash(i) ^ z.salt)
	}
	return KeyHash(i)
}

// KeyHash returns the hash of the nth key, from 0: the most frequent first.
func KeyHash(n int) uint64 { return mix(uint64(n) ^ 0x4b455953) }

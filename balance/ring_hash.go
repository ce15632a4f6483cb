// SPDX-License-Identifier: Apache-2.0

package balance

import "math/bits"

// NewRingHash returns the policy "ring_hash": consistent hashing (D. Karger et
// al., "Consistent hashing and random trees", STOC 1997) with many points for
// each backend, as ketama does it. Backends and keys are hashed onto a circle; a
// key belongs to the first point at or after it.
//
// Example: points A at 10 and 70, B at 40. Keys from 11 to 40 are B's, all others
// A's; a backend with its only point at 25 would take 11 to 25 from B.
//
// A backend of weight w has about VirtualNodes x w / p points, at least one, and
// p is the largest power of two that does not exceed the average weight: with
// equal weights of 1 that is VirtualNodes each, with equal weights of 100 it is
// 1.56 times as many. So a weight can be changed, and a backend come and go,
// without a change to anybody else's points, unless the average weight crosses a
// power of two. The ring has at most 4 million points: p is doubled until it
// fits.
//
// Shares are as even as chance makes them: with 160 points they deviate by 8 %
// (one standard deviation), the largest of a hundred backends has about 1.23
// times its part. For even shares take maglev, or more points, at 12 to 16 bytes each.
// No key moves that does not have to: it goes to who comes, or from who goes.
//
// A key whose backend may not be chosen, or does not yet have the share for it,
// goes on along the circle, where it would be without that backend. A key whose
// backend is full, suspect, over the bound or tried goes to where further hashes
// of the key lead on the circle; along the circle the next one would inherit the
// whole load of an arc. Only when many in a row may not be chosen everyone is
// looked at, in rendezvous order.
func NewRingHash(cfg HashConfig) Policy {
	cfg = cfg.completed()
	return withLearning(ringHashPolicy{hashPolicy{"ring_hash", cfg}, hashPoint}, cfg.Fallback)
}

type ringHashPolicy struct {
	hashPolicy
	point pointFunc
}

// pointFunc returns the position of a backend's n-th point.
type pointFunc func(b *Backend, n int) uint32

func hashPoint(b *Backend, n int) uint32 {
	return uint32(splitmix64(uint64(b.hash)+uint64(n)*splitmixGamma) >> 32)
}

func (p ringHashPolicy) Build(s *Set) Picker {
	r := &ringHash{}
	r.init(s, p.cfg)
	r.lay(p.point, ringPoints(r.weights, r.sum, p.cfg.VirtualNodes))
	return r
}

type ringHash struct {
	keyed
	// The points in their order: position << 32 | index of the member. All that
	// begin with the same bits (above shift) are between two of the starts.
	points []uint64
	starts []uint32
	shift  uint
}

func (p *ringHash) Pick(r Request) (*Backend, bool) {
	if !r.HasKey {
		return p.fallback.Pick(r)
	}
	if len(p.points) == 0 {
		return nil, false
	}
	key := splitmix64(r.Key)
	if i := p.owner(p.seek(uint32(key >> 32))); p.plain(i, &r) {
		return p.slots[i].backend, true
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	s := p.newSearch(&r)
	for n := range probes * rounds {
		i := p.follow(&s, uint32(s.probe(n)>>32))
		if i >= 0 && p.consider(&s, i) {
			break
		}
	}
	return p.result(&s)
}

// maxSteps bounds how far the circle is followed from one place.
const maxSteps = 32

// follow goes along the circle from a position to the first member that may be
// chosen at all and whose share admits the key; -1 when there is none for long.
func (p *ringHash) follow(s *search, position uint32) int {
	at, last := p.seek(position), -1
	for range min(maxSteps, len(p.points)) {
		i := p.owner(at)
		if b := p.slots[i].backend; i != last &&
			p.standing(b, s.r) != excluded && p.admitsKey(s.key, b, s.r.Now) {
			return i
		}
		last = i
		if at++; at == len(p.points) {
			at = 0
		}
	}
	return -1
}

// seek returns the index of the first point at or after a position.
func (p *ringHash) seek(position uint32) int {
	at := int(p.starts[position>>p.shift])
	for at < len(p.points) && uint32(p.points[at]>>32) < position {
		at++
	}
	if at == len(p.points) {
		return 0
	}
	return at
}

func (p *ringHash) owner(at int) int { return int(uint32(p.points[at])) }

// lay places the points: counted by their first bits, put where those belong,
// and put in order there, which are one or two each.
func (p *ringHash) lay(point pointFunc, counts []int) {
	n := 0
	for _, c := range counts {
		n += c
	}
	if n == 0 {
		return
	}
	width := min(bits.Len(uint(n)), 31)
	p.shift = uint(32 - width)
	p.starts = make([]uint32, 1<<width+1)
	for i, c := range counts {
		for k := range c {
			p.starts[point(p.slots[i].backend, k)>>p.shift+1]++
		}
	}
	for i := 1; i < len(p.starts); i++ {
		p.starts[i] += p.starts[i-1]
	}
	p.points = make([]uint64, n)
	put := make([]uint32, 1<<width)
	for i, c := range counts {
		for k := range c {
			position := point(p.slots[i].backend, k)
			first := p.starts[position>>p.shift]
			at := first + put[position>>p.shift]
			put[position>>p.shift]++
			word := uint64(position)<<32 | uint64(i)
			for ; at > first && p.points[at-1] > word; at-- {
				p.points[at] = p.points[at-1]
			}
			p.points[at] = word
		}
	}
}

// maxPoints bounds the ring unless there are more members than that.
const maxPoints = 1 << 22

// ringPoints returns how many points each member has.
func ringPoints(weights []uint32, sum uint64, virtualNodes int) []int {
	counts := make([]int, len(weights))
	if len(weights) == 0 {
		return counts
	}
	for shift := bits.Len64(sum/uint64(len(weights))) - 1; ; shift++ {
		unit, total := uint64(1)<<shift, 0
		for i, w := range weights {
			counts[i] = max(1, int((uint64(w)*uint64(virtualNodes)+unit/2)/unit))
			total += counts[i]
		}
		if total <= max(maxPoints, len(weights)) {
			return counts
		}
	}
}

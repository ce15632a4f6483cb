// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"math/bits"
)

// keyed is what the pickers of the hash policies share: who of the candidates
// that a key has, in the key's own order, takes the request. The order is the
// policy's, the rules are candidate.go's.
type keyed struct {
	*roster
	fallback Picker
	ids      []uint64 // of the members, in their order (by hash)
	spill    int
	bound    bound
	nothing  Request // never written: has tried nobody
}

func (k *keyed) init(s *Set, cfg HashConfig) {
	k.roster, k.fallback, k.spill = newRoster(byHash(s)), cfg.Fallback.Build(s), cfg.Spill
	k.ids = make([]uint64, len(k.slots))
	k.bound.factor = cfg.BoundedLoad
	for i, s := range k.slots {
		k.ids[i] = uint64(s.backend.hash)
		if k.bound.total == nil {
			k.bound.total = s.backend.total
		}
	}
}

// plain reports that nothing needs to be weighed: a first attempt, nobody
// preferred, and the member that the key leads to is ready and has room.
func (k *keyed) plain(i int, r *Request) bool {
	if r.Prefer != 0 || r.Tried.n != 0 {
		return false
	}
	b := k.slots[i].backend
	return b.ready() && (k.bound.factor == 0 || b.wholeLoad(r.Now) <= 0 || k.fits(i, b, r.Now, k.allowance(r.Now)))
}

// probes is how many candidates of a key are looked at together, and rounds how
// often, before everyone is.
const (
	probes = maxSpill + 1
	rounds = 4
)

// search is one pick that has got complicated.
type search struct {
	r         *Request
	key       uint64  // well mixed
	allowance float64 // of the bound, for each unit of weight; infinite without one
	saturated bool    // the key's backend is full or over the bound
	hand      hand    // those that take the request: one, or some to compare
}

func (k *keyed) newSearch(r *Request) search {
	s := search{r: r, key: splitmix64(r.Key), allowance: math.Inf(1)}
	if k.bound.factor != 0 {
		s.allowance = k.allowance(r.Now)
	}
	return s
}

// probe returns the n-th place where the key looks for a backend; the 0-th is
// the key's own.
func (s *search) probe(n int) uint64 {
	if n == 0 {
		return s.key
	}
	return splitmix64(s.key + uint64(n)*splitmixGamma)
}

// consider offers the request to the next member in the key's order and reports
// whether the search is over.
func (k *keyed) consider(s *search, i int) bool {
	b := k.slots[i].backend
	st := k.standing(b, s.r)
	if st != clean && st != full || !k.admitsKey(s.key, b, s.r.Now) {
		return false
	}
	if st == full || !k.fits(i, b, s.r.Now, s.allowance) {
		s.saturated = true
		return false
	}
	if !contains(s.hand.list(), i) {
		s.hand.add(i)
	}
	return !s.saturated || s.hand.n >= k.spill
}

// result returns the least loaded of those found, the first in the key's order
// when they are equal; when nobody was, everyone is asked.
func (k *keyed) result(s *search) (*Backend, bool) {
	if s.hand.n == 0 {
		return k.surveyKey(s)
	}
	best := int(s.hand.members[0])
	for _, i := range s.hand.list()[1:] {
		if k.lighter(int(i), best, s.r.Now) {
			best = int(i)
		}
	}
	return k.slots[best].backend, true
}

// admitsKey throws the coin that a share stands for. It falls the same way
// whenever the same key and backend meet, so while a share grows a key comes to
// the backend once and stays.
func (k *keyed) admitsKey(key uint64, b *Backend, now Instant) bool {
	if b.status.Load() == readyStatus {
		return true
	}
	s := k.relativeShare(b, now)
	return s >= 1 || coin(key, b) < s
}

// coin is a number in [0, 1) that only the key and the backend decide. It is
// independent of the backend's place in the key's order.
func coin(key uint64, b *Backend) float64 {
	const salt = 0x2545f4914f6cdd1d
	return float64(mix(key+salt, uint64(b.hash))>>11) / (1 << 53)
}

// mix hashes a key and an id, both of them hashes already, by folding the
// product of two words that differ in a constant (W. Yi's wyrand).
func mix(key, id uint64) uint64 {
	x := key ^ id
	hi, lo := bits.Mul64(x, x^0xe7037ed1a0b428db)
	return hi ^ lo
}

// judgement orders members of one standing.
type judgement uint8

const (
	admitted judgement = iota // takes the key
	refused                   // its share does not reach to the key
	over                      // has its bound of requests already
)

// surveyKey looks at every member: the first in rendezvous order among those of
// the best standing there is whose share admits the key and who are within the
// bound. If none is admitted the share counts as weight, which is where throwing
// coins would lead in the end; if all are over the bound (which happens when the
// others were tried, or others place requests meanwhile) the least loaded is
// taken. That makes the promises of standing absolute.
func (k *keyed) surveyKey(s *search) (*Backend, bool) {
	best, line, class, least := -1, excluded, over, math.Inf(1)
	for i := range k.slots {
		b := k.slots[i].backend
		st := k.standing(b, s.r)
		if st == excluded || st > line {
			continue
		}
		c, v := k.judge(s, i, b, st)
		if st < line || c < class || c == class && v < least {
			best, line, class, least = i, st, c, v
		}
	}
	if best < 0 {
		return nil, false
	}
	return k.slots[best].backend, true
}

func (k *keyed) judge(s *search, i int, b *Backend, st standing) (judgement, float64) {
	weight, share := float64(k.weights[i]), k.relativeShare(b, s.r.Now)
	switch {
	case st == clean && !k.fits(i, b, s.r.Now, s.allowance):
		return over, b.Load(s.r.Now) / (weight * share)
	case share >= 1 || coin(s.key, b) < share:
		return admitted, score(mix(s.key, k.ids[i]), weight)
	}
	return refused, score(mix(s.key, k.ids[i]), weight*share)
}

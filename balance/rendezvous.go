// SPDX-License-Identifier: Apache-2.0

package balance

import "math"

// NewRendezvous returns the policy "rendezvous": each backend bids for each key,
// and the highest bid gets it (D. Thaler, C. Ravishankar, "Using name-based
// mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1),
// 1998). With u a hash of key and backend id in (0, 1), the least
//
//	-ln(u) / weight
//
// wins, which gives each exactly its weight (C. Schindelhauer, G. Schomaker,
// "Weighted distributed hash tables", SPAA 2005).
//
// Nothing but its own weight decides what a backend bids: one that comes takes
// its part from all others, one that goes leaves its keys to all others, a
// changed weight moves keys to or from that backend, and no other key ever
// moves. The next in the key's order is the next lower bid, so a key whose
// backend is skipped is where it would be without that backend.
//
// Example: weights 1 and 2, and a key with u = 0.7 and 0.5. The bids are
// 0.357 / 1 = 0.357 and 0.693 / 2 = 0.347: the second, heavier one has it.
//
// A pick looks at every backend, about a nanosecond each: up to a thousand that
// is nothing beside a request, with ten thousand maglev is the better choice. A
// hierarchy of bidders would make it logarithmic (W. Wang, C. Ravishankar, "Hash-
// based virtual hierarchies for scalable location service", 2009), but a backend
// that comes then also moves about as many keys between others as it takes, and
// that none move is what this policy is for.
func NewRendezvous(cfg HashConfig) Policy {
	cfg = cfg.completed()
	return withLearning(rendezvousPolicy{hashPolicy{"rendezvous", cfg}}, cfg.Fallback)
}

type rendezvousPolicy struct{ hashPolicy }

func (p rendezvousPolicy) Build(s *Set) Picker {
	r := &rendezvous{}
	r.init(s, p.cfg)
	return r
}

type rendezvous struct{ keyed }

func (p *rendezvous) Pick(r Request) (*Backend, bool) {
	if !r.HasKey {
		return p.fallback.Pick(r)
	}
	if len(p.slots) == 0 {
		return nil, false
	}
	key := splitmix64(r.Key)
	if i := p.highest(key); p.plain(i, &r) {
		return p.slots[i].backend, true
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	s := p.newSearch(&r)
	var first [probes]uint32
	for _, i := range p.first(key, &first) {
		if p.consider(&s, int(i)) {
			break
		}
	}
	return p.result(&s)
}

// highest returns the member with the highest bid for a key.
func (p *rendezvous) highest(key uint64) int {
	best := 0
	if p.equal {
		most := mix(key, p.ids[0])
		for i, id := range p.ids[1:] {
			if h := mix(key, id); h > most {
				best, most = i+1, h
			}
		}
		return best
	}
	least := math.Inf(1)
	weights := p.weights[:len(p.ids)]
	for i, id := range p.ids {
		h, w := mix(key, id), float64(weights[i])
		if missing(h) < least*w {
			if v := score(h, w); v < least {
				best, least = i, v
			}
		}
	}
	return best
}

// first fills list with the members that bid most, highest first.
func (p *rendezvous) first(key uint64, list *[probes]uint32) []uint32 {
	var bids [probes]float64
	n := 0
	weights := p.weights[:len(p.ids)]
	for i, id := range p.ids {
		h, w := mix(key, id), float64(weights[i])
		if n == probes && missing(h) >= bids[probes-1]*w {
			continue
		}
		v, at := score(h, w), n
		for at > 0 && v < bids[at-1] {
			at--
		}
		if at == probes {
			continue
		}
		n = min(n+1, probes)
		copy(bids[at+1:n], bids[at:n-1])
		copy(list[at+1:n], list[at:n-1])
		bids[at], list[at] = v, uint32(i)
	}
	return list[:n]
}

// score is what a member bids for a key, less being more: -ln(u) / weight, with
// u read from a hash.
func score(h uint64, weight float64) float64 { return -math.Log1p(-missing(h)) / weight }

// missing is 1 - u. It never exceeds -ln(u), which spares nearly all logarithms:
// whoever would lose with it would lose all the more with the logarithm.
func missing(h uint64) float64 { return (float64(^h>>12) + 0.5) / (1 << 52) }

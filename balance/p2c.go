// SPDX-License-Identifier: Apache-2.0

package balance

const (
	// maxChoices bounds what one pick compares unless it compares everyone.
	maxChoices = 32
	// maxRedraws bounds the draws that hit a member already in the hand.
	maxRedraws = 4
)

// NewP2C returns the policy "p2c", the default: draw two members by weight, take
// the one with less load for its weight, the first drawn when they are equal
// (M. Mitzenmacher, "The power of two choices in randomized load balancing",
// IEEE Transactions on Parallel and Distributed Systems 12(10), 2001: the
// longest queue falls from log n / log log n to log log n, and unlike the least
// loaded of all, two choices do not herd when counts are stale).
//
// The draws are without replacement, so that the weights hold: with one member
// of weight 5 among five of weight 1 the heavy one is in the hand with
// 1/2 + 1/2 x 5/9 = 0.78, wins its comparisons until its load is five times the
// other's, and gets 0.49 to 0.53 of the work at every load if it is five times as
// fast. (Two uniform draws would have it in the hand with 1/3, the most it could
// then ever get.) If it is as slow as the others but takes five at a time, load
// over weight still sees one request on it as more than none elsewhere, and it
// gets less while fewer requests than weights are in flight (0.38 at the worst,
// 0.49 from 70 % load on), where every backend has room. A draw
// that repeats a member is thrown again, 4 times at most; then the heaviest
// other candidate completes the hand, which happens when one weight dwarfs all
// the others.
//
// choices is how many are compared; less than 2 counts as 2. More than 32
// compares 32 (more gains nothing measurable) unless the set has no more
// members than that, up to 256; then it is the exact minimum of least_request.
//
// A member below full share which wins is accepted with that share s, else the
// next best of the hand is considered, then further draws. Among c > 2 choices an
// idle newcomer would win more than the 2/n of the picks that two choices give
// it, so when it is as light as t of them, itself included, it is accepted with
// min(s, s/(1-s) x max(t, 2)/c).
func NewP2C(choices int) Policy { return p2cPolicy{max(choices, 2)} }

type p2cPolicy struct{ choices int }

func (p2cPolicy) Name() string { return "p2c" }

func (p p2cPolicy) Build(s *Set) Picker {
	ro := newRoster(s)
	n := len(ro.slots)
	if p.choices >= n && n > maxChoices && n <= scanMax {
		return newLeast(ro, nil)
	}
	return &p2c{roster: ro, choices: min(p.choices, maxChoices, max(n, 1)), byWeight: ro.heaviestFirst()}
}

type p2c struct {
	*roster
	choices  int
	byWeight []uint32 // indices, heaviest first; nil when all are equal
}

func (p *p2c) Pick(r Request) (*Backend, bool) {
	if len(p.slots) == 0 {
		return nil, false
	}
	// The common case: two different members, nothing to be said about either.
	// What it cannot decide is decided again from the same random bits.
	if p.choices == 2 && r.Prefer == 0 && r.Tried.n == 0 {
		i, j := p.draw(r.Rand), p.draw(splitmix64(r.Rand))
		for again := uint64(1); j == i && again <= maxRedraws; again++ {
			j = p.draw(splitmix64(r.Rand + again*splitmixGamma))
		}
		a, b := p.slots[i].backend, p.slots[j].backend
		if i != j && a.ready() && b.ready() {
			if p.lighter(j, i, r.Now) {
				return b, true
			}
			return a, true
		}
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	return p.deal(&r)
}

// lighter reports whether member i has strictly less load for its weight than
// member j. Products instead of quotients keep equal ratios equal.
func (ro *roster) lighter(i, j int, now Instant) bool {
	a, b := ro.slots[i].backend, ro.slots[j].backend
	if a.ghost.Load()|b.ghost.Load() == 0 {
		la, lb := a.inFlight.Load(), b.inFlight.Load()
		if ro.equal {
			return la < lb
		}
		return la*int64(ro.weights[j]) < lb*int64(ro.weights[i])
	}
	return a.Load(now)*float64(ro.weights[j]) < b.Load(now)*float64(ro.weights[i])
}

// hand is what one pick compares: distinct members of one standing, in the
// order they were drawn.
type hand struct {
	members [maxChoices]uint32
	n       int
}

func (h *hand) list() []uint32 { return h.members[:h.n] }

func (h *hand) add(i int) {
	h.members[h.n] = uint32(i)
	h.n++
}

func (h *hand) remove(at int) {
	copy(h.members[at:h.n], h.members[at+1:h.n])
	h.n--
}

// deal is Pick without shortcuts.
func (p *p2c) deal(r *Request) (*Backend, bool) {
	d := newDice(r.Rand)
	var h hand
	if !p.drawHand(&h, &d, r) {
		return nil, false
	}
	// A single member in the hand is the last there is.
	for dealt := h.n; h.n > 0; {
		at := 0
		for k := 1; k < h.n; k++ {
			if p.lighter(int(h.members[k]), int(h.members[at]), r.Now) {
				at = k
			}
		}
		if dealt == 1 || p.admitsWinner(&h, at, dealt, &d, r.Now) {
			return p.slots[h.members[at]].backend, true
		}
		h.remove(at)
	}
	return p.spin(&d, r)
}

// admitsWinner throws the coin for the member at a place of the hand, which has
// the least load of it. See NewP2C for more than two choices.
func (p *p2c) admitsWinner(h *hand, at, dealt int, d *dice, now Instant) bool {
	winner := int(h.members[at])
	s := p.relativeShare(p.slots[winner].backend, now)
	if s >= 1 {
		return true
	}
	chance := s
	if dealt > 2 {
		ties := 0
		for _, i := range h.list() {
			if !p.lighter(winner, int(i), now) {
				ties++
			}
		}
		chance = min(s, s/(1-s)*float64(max(ties, 2))/float64(dealt))
	}
	return d.unit() < chance
}

// drawHand draws p.choices distinct members of the best standing there is, or
// as many as there are. It reports false when nobody may be chosen.
func (p *p2c) drawHand(h *hand, d *dice, r *Request) bool {
	misses, repeats := 0, 0
	for h.n < p.choices && misses < p.patience {
		i := p.draw(d.next())
		switch {
		case contains(h.list(), i):
			if repeats++; repeats <= maxRedraws {
				continue
			}
			if i = p.heaviestOther(h, d, r); i < 0 {
				return true
			}
			fallthrough
		case p.standing(p.slots[i].backend, r) == clean:
			h.add(i)
			repeats = 0
		default:
			misses++
		}
	}
	// Clean members are rare, or there are none: look at everyone, but in a large
	// set not for more than two choices.
	want := p.choices
	if len(p.slots) > maxChoices {
		want = 2
	}
	for line := clean; h.n < want; {
		i, s := p.survey(d, r, h.list(), false)
		if s == excluded || h.n > 0 && s != line {
			break
		}
		line = s
		h.add(i)
	}
	return h.n > 0
}

// heaviestOther returns the heaviest clean member outside the hand, or -1. Of
// equal members it is the next after a random one.
func (p *p2c) heaviestOther(h *hand, d *dice, r *Request) int {
	n, start := len(p.slots), 0
	if p.equal {
		start = int(d.below(uint64(n)))
	}
	for k := range n {
		i := start + k
		if i >= n {
			i -= n
		}
		if !p.equal {
			i = int(p.byWeight[i])
		}
		if !contains(h.list(), i) && p.standing(p.slots[i].backend, r) == clean {
			return i
		}
	}
	return -1
}

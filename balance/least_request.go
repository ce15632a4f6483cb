// SPDX-License-Identifier: Apache-2.0

package balance

import "math/bits"

const (
	scanMax    = 256 // up to here everyone is compared
	sampleSize = 16  // above, this many are drawn and compared
)

// NewLeastRequest returns the policy "least_request": the member with the least
// load for its weight, ties broken at random by weight.
//
// Up to 256 members it looks at all of them and the minimum is exact. Above, it
// is the best of 16 draws by weight, because a scan costs about 2 ns a member.
//
// An idle newcomer wins whenever it is admitted, so its share s does not bound
// its rate. A member below full share that would win alone is therefore admitted
// with
//
//	min(1, s/(1-s) x weight / sum of weights)
//
// which gives it s/(1-s) of what is fair. One that would tie with members who
// have, with it, the weight T wins with weight/T only, and is admitted with
//
//	min(s, s/(1-s) x T / sum of weights)
//
// Example: ten members of weight 1, nine of them busy, an idle newcomer at 0.1:
// admitted with 0.111 x 1/10, so it gets 1.1 % of the requests where 10 % are
// fair. With all ten idle it ties with T = 10: admitted with 0.1, chosen with
// 0.1, it gets 1 %.
//
// Like everything that looks for the minimum it herds when counts are stale:
// many balancers that do not see each other's requests send them to the same
// member. p2c does so much less.
func NewLeastRequest() Policy { return leastRequestPolicy{} }

type leastRequestPolicy struct{}

func (leastRequestPolicy) Name() string { return "least_request" }

func (leastRequestPolicy) Build(s *Set) Picker { return newLeastRequest(newRoster(s)) }

type leastRequest struct {
	*roster
	all []uint32 // every index, when few enough to compare
}

func newLeastRequest(ro *roster) *leastRequest {
	p := &leastRequest{roster: ro}
	if len(ro.slots) <= scanMax {
		p.all = make([]uint32, len(ro.slots))
		for i := range p.all {
			p.all[i] = uint32(i)
		}
	}
	return p
}

func (p *leastRequest) Pick(r Request) (*Backend, bool) {
	if len(p.slots) == 0 {
		return nil, false
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	c := contest{roster: p.roster, r: &r, d: newDice(r.Rand), list: p.all}
	var drawn [sampleSize]uint32
	if p.all == nil {
		c.list, c.drawn = p.sample(&c.d, &r, drawn[:0]), true
	}
	i := c.run()
	if i < 0 {
		return nil, false
	}
	return p.slots[i].backend, true
}

// sample draws up to sampleSize distinct clean members into list; when there
// are hardly any, the one best standing member that survey finds.
func (p *leastRequest) sample(d *dice, r *Request, list []uint32) []uint32 {
	for range sampleSize + p.patience {
		i := p.draw(d.next())
		if p.standing(p.slots[i].backend, r) != clean || contains(list, i) {
			continue
		}
		if list = append(list, uint32(i)); len(list) == sampleSize {
			return list
		}
	}
	if len(list) == 0 {
		if i, s := p.survey(d, r, nil, true); s != excluded {
			list = append(list, uint32(i))
		}
	}
	return list
}

// bitmap is a set of positions in a contest's list.
type bitmap [scanMax / 64]uint64

func (m *bitmap) set(i int)   { m[i>>6&(len(m)-1)] |= 1 << (i & 63) }
func (m *bitmap) unset(i int) { m[i>>6&(len(m)-1)] &^= 1 << (i & 63) }
func (m *bitmap) empty() bool { return m[0]|m[1]|m[2]|m[3] == 0 }

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

// contest finds the least loaded of a list.
type contest struct {
	*roster
	r     *Request
	d     dice
	list  []uint32 // indices of members, at most scanMax
	drawn bool     // by weight, so weight decides nothing but load/weight any more

	// The leaders have this load, and one of them this weight; the others have
	// the same load for their weight. No leaders: load 1, weight 0, which is
	// more than any member has.
	load    float64
	weight  float64
	leaders bitmap
}

// run returns the index of the winner, or -1 when nobody may be chosen.
func (c *contest) run() int {
	var odd bitmap // positions that need a second look
	var leaders bitmap
	load, weight := int64(1), int64(0)
	again := c.r.Tried.n != 0
	for pos, i := range c.list {
		b := c.slots[i].backend
		if !b.ready() || b.ghost.Load() != 0 || again && c.r.Tried.Has(b.hash) {
			odd.set(pos)
			continue
		}
		l, w := b.inFlight.Load(), int64(c.weights[i])
		switch mine, theirs := l*weight, load*w; {
		case mine < theirs:
			load, weight = l, w
			leaders = bitmap{}
			leaders.set(pos)
		case mine == theirs:
			leaders.set(pos)
		}
	}
	c.load, c.weight, c.leaders = float64(load), float64(weight), leaders
	if !odd.empty() && !c.settle(&odd) {
		return -1
	}
	if c.leaders.empty() {
		return -1
	}
	return c.winner()
}

// settle lets the odd ones into the contest: those who are not ready, have been
// tried, or carry a ghost. It reports false when nobody may be chosen.
func (c *contest) settle(odd *bitmap) bool {
	line, total := excluded, 0.0
	if !c.leaders.empty() {
		line = clean
	}
	for _, i := range c.list {
		total += c.mass(i)
	}
	// Who stands in the foremost line?
	var front bitmap
	for pos := odd.next(0); pos >= 0; pos = odd.next(pos + 1) {
		s := c.standing(c.slots[c.list[pos]].backend, c.r)
		switch {
		case s >= excluded:
			total -= c.mass(c.list[pos])
		case s < line:
			line, front = s, bitmap{}
			fallthrough
		case s == line:
			front.set(pos)
		}
	}
	if line == excluded {
		return false
	}
	// Full members enter at once, the others are measured against them.
	for pos := front.next(0); pos >= 0; pos = front.next(pos + 1) {
		if c.relativeShare(c.slots[c.list[pos]].backend, c.r.Now) >= 1 {
			c.enter(pos)
			front.unset(pos)
		}
	}
	var admitted bitmap
	for pos := front.next(0); pos >= 0; pos = front.next(pos + 1) {
		if c.admitsNewcomer(pos, total) {
			admitted.set(pos)
		}
	}
	if admitted.empty() && c.leaders.empty() {
		admitted = front // the last are taken regardless
	}
	for pos := admitted.next(0); pos >= 0; pos = admitted.next(pos + 1) {
		c.enter(pos)
	}
	return true
}

// mass is what a member counts for where chances are divided.
func (c *contest) mass(i uint32) float64 {
	if c.drawn {
		return 1
	}
	return float64(c.weights[i])
}

// enter compares a member with the leaders.
func (c *contest) enter(pos int) {
	switch mine, theirs := c.against(pos); {
	case mine < theirs:
		i := c.list[pos]
		c.load, c.weight = c.slots[i].backend.Load(c.r.Now), float64(c.weights[i])
		c.leaders = bitmap{}
		c.leaders.set(pos)
	case mine == theirs:
		c.leaders.set(pos)
	}
}

// against returns two numbers that compare as the load for its weight of a
// member and that of the leaders do.
func (c *contest) against(pos int) (mine, theirs float64) {
	i := c.list[pos]
	return c.slots[i].backend.Load(c.r.Now) * c.weight, c.load * float64(c.weights[i])
}

// admitsNewcomer throws the coin described at NewLeastRequest. total is the mass
// of all members that are not excluded.
func (c *contest) admitsNewcomer(pos int, total float64) bool {
	i := c.list[pos]
	s := c.relativeShare(c.slots[i].backend, c.r.Now)
	if s >= 1 {
		return true
	}
	p := s / (1 - s) * c.mass(i) / total
	switch mine, theirs := c.against(pos); {
	case mine > theirs:
		return false // would not win
	case mine == theirs:
		p = c.mass(i)
		for at := c.leaders.next(0); at >= 0; at = c.leaders.next(at + 1) {
			p += c.mass(c.list[at])
		}
		p = min(s, s/(1-s)*p/total)
	}
	return c.d.unit() < p
}

// winner chooses among the leaders: by weight, or the first drawn.
func (c *contest) winner() int {
	first := c.leaders.next(0)
	if c.drawn || c.leaders.next(first+1) < 0 {
		return int(c.list[first])
	}
	if c.equal {
		return int(c.list[c.leaders.nth(int(c.d.below(uint64(c.leaders.count()))))])
	}
	var sum uint64
	for pos := first; pos >= 0; pos = c.leaders.next(pos + 1) {
		sum += uint64(c.weights[c.list[pos]])
	}
	at := c.d.below(sum)
	for pos := first; pos >= 0; pos = c.leaders.next(pos + 1) {
		w := uint64(c.weights[c.list[pos]])
		if at < w {
			return int(c.list[pos])
		}
		at -= w
	}
	return int(c.list[first])
}

func (m *bitmap) count() int {
	return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) + bits.OnesCount64(m[2]) + bits.OnesCount64(m[3])
}

// nth returns the n-th member of the set, counted from 0, or -1.
func (m *bitmap) nth(n int) int {
	for at, word := range m {
		if c := bits.OnesCount64(word); n >= c {
			n -= c
			continue
		}
		for range n {
			word &= word - 1
		}
		return at<<6 + bits.TrailingZeros64(word)
	}
	return -1
}

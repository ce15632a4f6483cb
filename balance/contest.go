// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"math/bits"
)

// lightest finds the least load among up to 64 members of equal weight: it
// returns the smaller of theirs and load, the positions of those that have
// exactly that, and the positions that are not as plain as that.
//
// This loop is what least_request costs, about 2 ns for each member. It is a
// function of its own so that all of it stays in registers.
func lightest(slots []slot, load int64) (least int64, ties, odd uint64) {
	bit := uint64(1)
	for i := range slots {
		b := slots[i].backend
		l, tie := b.inFlight.Load(), bit
		if b.status.Load()^readyStatus|b.ghost.Load() != 0 || l >= b.limit.Load() {
			odd |= bit
		} else {
			if l < load {
				load, ties = l, 0
			}
			if l > load {
				tie = 0
			}
			ties |= tie
		}
		bit += bit
	}
	return load, ties, odd
}

// Quotients of load and weight are compared in floating point, where equal ones
// may differ in the last bits: within these bounds they are equal. Two quotients
// that really differ do so by more while loads and weights stay below 2^24.
const (
	justBelow = 1 - 0x1p-48
	justAbove = 1 + 0x1p-48
)

// lightestFor is lightest for members of different weights: the least load for
// its weight, given and returned as the bounds of what is equal to it. parts are
// the weights' inverses: a division, or two products to compare, would cost more
// than everything else here.
func lightestFor(slots []slot, parts []float64, low, high float64) (newLow, newHigh float64, ties, odd uint64) {
	bit := uint64(1)
	parts = parts[:len(slots)]
	for i := range slots {
		b := slots[i].backend
		l, tie := b.inFlight.Load(), bit
		switch {
		case b.status.Load()^readyStatus|b.ghost.Load() != 0:
			odd |= bit
		case l >= b.limit.Load():
			odd |= bit
		default:
			load := float64(l) * parts[i]
			if load < low {
				low, high, ties = lead(load)
			}
			if load > high {
				tie = 0
			}
			ties |= tie
		}
		bit += bit
	}
	return low, high, ties, odd
}

// lead is a function so that the compiler makes its rare call a jump that the
// processor predicts. As conditional moves, each comparison would wait for the
// product of the one before.
//
//go:noinline
func lead(load float64) (low, high float64, ties uint64) {
	return load * justBelow, load * justAbove, 0
}

// compareAll returns the index of the least loaded of all members, at most
// scanMax, or -1 when nobody may be chosen.
func (p *leastRequest) compareAll(r *Request) int {
	c := contest{roster: p.roster, r: r, d: newDice(r.Rand), load: 1}
	if p.rates != nil {
		c.rated, c.outlook = true, p.rates.at(p.roster, nil, r.Now)
	}
	var odd bitmap
	anyOdd := r.Tried.n != 0
	switch {
	case anyOdd:
		odd.fill(len(p.slots)) // a second attempt: nobody is plain
	case c.rated:
		anyOdd = c.scanRated(&odd)
	default:
		anyOdd = c.scan(p.parts, &odd)
	}
	if anyOdd && !c.settle(&odd) {
		return -1
	}
	return c.winner()
}

// scan finds the leaders among all plain members and reports whether there are
// others.
func (c *contest) scan(parts []float64, odd *bitmap) (anyOdd bool) {
	load, low, high := int64(math.MaxInt64), math.MaxFloat64, math.MaxFloat64
	first := 0
	for block := range c.leaders {
		slots := c.slots[first:min(first+64, len(c.slots))]
		var ties, other uint64
		var better bool
		if parts == nil {
			was := load
			load, ties, other = lightest(slots, load)
			better = load != was
		} else {
			was := high
			low, high, ties, other = lightestFor(slots, parts[first:], low, high)
			better = high != was
		}
		if better {
			c.leaders = bitmap{}
		}
		c.leaders[block], odd[block] = ties, other
		anyOdd = anyOdd || other != 0
		if first += 64; first >= len(c.slots) {
			break
		}
	}
	if i := c.leaders.next(0); anyOdd && i >= 0 {
		c.load, c.weight = float64(c.slots[i].backend.inFlight.Load()), float64(c.weights[i])
	}
	return anyOdd
}

// scanRated is scan for peak_ewma.
func (c *contest) scanRated(odd *bitmap) (anyOdd bool) {
	equalTo := c.outlook.mean - band // from this level on a factor is 1 or more
	for i := range c.slots {
		b := c.slots[i].backend
		n := b.inFlight.Load()
		if b.status.Load() != readyStatus || n >= b.limit.Load() {
			odd.set(i)
			anyOdd = true
			continue
		}
		weight := float64(c.weights[i])
		load, known := float64(n)+c.outlook.unit*weight, estimate(b.estimate.Load())
		// Most are out of it already by their requests, without a look at how slow
		// they are.
		if load*c.weight > c.load*weight && (known == 0 || known.level() >= equalTo) {
			continue
		}
		if b.ghost.Load() != 0 {
			load += b.ghostAt(c.r.Now)
		}
		if known != 0 {
			load *= c.outlook.factor(known)
		}
		switch mine, theirs := load*c.weight, c.load*weight; {
		case mine < theirs:
			c.load, c.weight, c.leaders = load, weight, bitmap{}
			c.leaders.set(i)
		case mine == theirs:
			c.leaders.set(i)
		}
	}
	return anyOdd
}

// compareDrawn returns the index of the least loaded of a list of members that
// were drawn by weight, or -1 when the list is empty.
func (p *leastRequest) compareDrawn(list []uint32, d dice, r *Request) int {
	c := contest{roster: p.roster, r: r, d: d, list: list, load: 1}
	if p.rates != nil {
		c.rated, c.outlook = true, p.rates.at(p.roster, list, r.Now)
	}
	best := -1
	for _, i := range list {
		if c.rated || p.slots[i].backend.status.Load() != readyStatus {
			var all bitmap
			all[0] = 1<<len(list) - 1
			if !c.settle(&all) {
				return -1
			}
			return c.winner()
		}
		if best < 0 || p.lighter(int(i), best, r.Now) {
			best = int(i)
		}
	}
	return best
}

// contest is a comparison that has got complicated: some on the list are not
// ready, have been tried, carry a ghost, or are below full share.
type contest struct {
	*roster
	r    *Request
	d    dice
	list []uint32 // members by position, drawn by weight; nil: all, in order

	rated   bool // peak_ewma: load is what outlook says
	outlook outlook

	// The leaders have this load, and one of them this weight; the others have
	// the same load for their weight. No leaders: load 1, weight 0, which is
	// more than any member has.
	load    float64
	weight  float64
	leaders bitmap
}

// settle lets the odd ones into the contest: those who are not ready, have been
// tried, or carry a ghost. It reports false when nobody may be chosen.
func (c *contest) settle(odd *bitmap) bool {
	line, total := excluded, 0.0
	if !c.leaders.empty() {
		line = clean
	}
	if c.list != nil {
		total = float64(len(c.list))
	} else {
		total = float64(c.sum)
	}
	// Who stands in the foremost line?
	var front bitmap
	for pos := odd.next(0); pos >= 0; pos = odd.next(pos + 1) {
		s := c.standing(c.slots[c.at(pos)].backend, c.r)
		switch {
		case s >= excluded:
			total -= c.mass(pos)
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
		if c.relativeShare(c.slots[c.at(pos)].backend, c.r.Now) >= 1 {
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

// at returns the index of the member at a position.
func (c *contest) at(pos int) int {
	if c.list != nil {
		return int(c.list[pos])
	}
	return pos
}

// mass is what a member counts for where chances are divided. Having been drawn
// by weight, weight decides nothing but load/weight any more.
func (c *contest) mass(pos int) float64 {
	if c.list != nil {
		return 1
	}
	return float64(c.weights[pos])
}

// enter compares a member with the leaders.
func (c *contest) enter(pos int) {
	switch mine, theirs := c.against(pos); {
	case mine < theirs:
		i := c.at(pos)
		c.load, c.weight = c.loadOf(i), float64(c.weights[i])
		c.leaders = bitmap{}
		c.leaders.set(pos)
	case mine == theirs:
		c.leaders.set(pos)
	}
}

// against returns two numbers that compare as the load for its weight of a
// member and that of the leaders do.
func (c *contest) against(pos int) (mine, theirs float64) {
	i := c.at(pos)
	return c.loadOf(i) * c.weight, c.load * float64(c.weights[i])
}

// loadOf returns what is compared, before it is divided by the weight.
func (c *contest) loadOf(i int) float64 {
	if c.rated {
		return c.outlook.load(c.slots[i].backend, c.weights[i], c.r.Now)
	}
	return c.slots[i].backend.Load(c.r.Now)
}

// admitsNewcomer throws the coin described at NewLeastRequest. total is the mass
// of all members that are not excluded.
func (c *contest) admitsNewcomer(pos int, total float64) bool {
	i := c.at(pos)
	s := c.relativeShare(c.slots[i].backend, c.r.Now)
	if s >= 1 {
		return true
	}
	p := s / (1 - s) * c.mass(pos) / total
	switch mine, theirs := c.against(pos); {
	case mine > theirs:
		return false // would not win
	case mine == theirs:
		p = c.mass(pos)
		for at := c.leaders.next(0); at >= 0; at = c.leaders.next(at + 1) {
			p += c.mass(at)
		}
		p = min(s, s/(1-s)*p/total)
	}
	return c.d.unit() < p
}

// winner returns the index of one of the leaders: by weight, or the first drawn.
func (c *contest) winner() int {
	first := c.leaders.next(0)
	if c.list != nil || c.leaders.next(first+1) < 0 {
		return c.at(first)
	}
	if c.equal {
		return c.leaders.nth(int(c.d.below(uint64(c.leaders.count()))))
	}
	// With many leaders, as when the pool is idle, a draw from all is soon one of
	// them. With few, one of them drawn evenly is accepted by its weight.
	count := c.leaders.count()
	for range 4 {
		if 4*count > len(c.slots) {
			if i := c.draw(c.d.next()); c.leaders.has(i) {
				return i
			}
		} else if i := c.leaders.nth(int(c.d.below(uint64(count)))); c.d.below(c.most) < uint64(c.weights[i]) {
			return i
		}
	}
	var sum uint64
	for block, word := range c.leaders {
		for ; word != 0; word &= word - 1 {
			sum += uint64(c.weights[block<<6+bits.TrailingZeros64(word)])
		}
	}
	at := c.d.below(sum)
	for block, word := range c.leaders {
		for ; word != 0; word &= word - 1 {
			i := block<<6 + bits.TrailingZeros64(word)
			w := uint64(c.weights[i])
			if at < w {
				return i
			}
			at -= w
		}
	}
	return first
}

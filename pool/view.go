// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"

	"github.com/weirlb/weir/balance"
)

// view is what every request reads: immutable, published by one pointer.
type view struct {
	direct  balance.Picker // only, where nothing goes before it
	only    balance.Picker // the only one there is; nil: choose among tiers
	tiers   []choice       // those with members, in the order in which they are asked
	plan    *publication   // what it was made from
	members []*member      // all configured, in order, those of weight 0 included
	admit   float64        // most of the requests admitted; below 1 only while shedding or after nobody served
	idle    bool           // no member may take work, whatever its health
	keyed   bool           // requests with a key are divided by it
	// by are the members that sessions are kept on; nil: they are not, and what a
	// request prefers is between it and the policies.
	by map[balance.BackendID]*balance.Backend
}

// choice is a tier to choose, or a zone of one.
type choice struct {
	picker balance.Picker // of a zone, or of a tier without
	zones  []choice       // of a tier in which zones count, else nil
	upTo   float64        // chosen first when the request's number is below; ascending
	within float64        // the same, by capacity, for those whose own choice has nobody
	ramp   *zoneRamp      // of a zone
}

// newView puts a publication into the form that requests read. Tiers whose
// opinions are set aside are asked after those that need not.
func newView(pub *publication, keyed bool) *view {
	v := &view{plan: pub, members: pub.members, admit: min(pub.admit, ceiling(pub.gate)), idle: pub.idle, keyed: keyed, only: pub.tiers[0].groups[0].picker}
	pickers, sum := 0, 0.0
	for _, panicked := range []bool{false, true} {
		for i := range pub.tiers {
			t := &pub.tiers[i]
			if t.panicked != panicked {
				continue
			}
			c, n := t.choice()
			if n == 0 {
				continue
			}
			if pickers += n; n == 1 {
				v.only = c.picker
			}
			sum += t.load
			c.upTo = sum
			v.tiers = append(v.tiers, c)
		}
	}
	if pickers > 1 {
		v.only = nil
		if sum == 0 {
			sum = 1 // nobody serves anywhere: the first, in panic
			for i := range v.tiers {
				v.tiers[i].upTo = 1
			}
		}
		closeUp(v.tiers, sum)
	}
	if v.by = pub.bySession(); v.by == nil {
		v.direct = v.only
	}
	return v
}

// ceiling is below 1, however little, while a gate makes admission a matter of
// time, so that one comparison tells requests that something is to be looked at.
func ceiling(gate *balance.Ramp) float64 {
	if gate == nil {
		return 1
	}
	return math.Nextafter(1, 0)
}

// admitted returns the part of the requests that is admitted at an instant.
func (v *view) admitted(now balance.Instant) float64 {
	return min(v.plan.admit, v.plan.gate.At(now))
}

// choice returns a tier as requests see it, and how many pickers it has.
func (t *tierPlan) choice() (choice, int) {
	var zones []choice
	load, capacity := 0.0, 0.0
	for i := range t.groups {
		g := &t.groups[i]
		if len(g.takers) == 0 {
			continue
		}
		load += g.load
		capacity += g.capacity
		zones = append(zones, choice{picker: g.picker, upTo: load, within: capacity, ramp: &zoneRamp{members: g.takers}})
	}
	switch len(zones) {
	case 0:
		return choice{}, 0
	case 1:
		return zones[0], 1
	}
	closeUp(zones, load)
	return choice{zones: zones}, len(zones)
}

// closeUp scales cumulative probabilities so that the last of those that can be
// chosen ends at 1, however the sums were rounded.
func closeUp(list []choice, sum float64) {
	for i := range list {
		if list[i].upTo >= sum {
			list[i].upTo = 1
		} else {
			list[i].upTo /= sum
		}
	}
}

// Salts make the numbers for different decisions about one request independent
// of each other.
const (
	saltTier = 0x7165725f746f7021
	saltZone = 0x7a6f6e655f616c6c
	saltElse = 0x656c73655f77686f
	saltRamp = 0x736c6f775f7a6f6e
)

// flaw says why somebody else would be better than a backend that was picked,
// in the order in which policies avoid such backends; 0: nobody would.
func flaw(b *balance.Backend, r *balance.Request) (f int) {
	if r.Tried.Len() != 0 && r.Tried.Has(b.Hash()) {
		f = 4
	}
	if b.Unreachable() {
		f |= 2
	}
	if b.Full() {
		f |= 1
	}
	return f
}

// pick asks the policies. It does not reserve.
func (v *view) pick(r *balance.Request) (*balance.Backend, bool) {
	if v.by != nil && r.Prefer != 0 {
		if b := v.session(r); b != nil {
			return b, true
		}
	}
	if v.only != nil {
		return v.only.Pick(*r)
	}
	if r.Prefer != 0 {
		if b := v.preferred(r); b != nil {
			return b, true
		}
	}
	seed := r.Rand
	if v.keyed && r.HasKey {
		seed = r.Key // so that a key stays where it is
	}
	first := find(v.tiers, fraction(seed^saltTier))
	best, least := v.tiers[first].pick(r, seed)
	// Nobody, or nobody without a flaw: the other tiers, best first.
	for i := 0; least != 0 && i < len(v.tiers); i++ {
		if i == first {
			continue
		}
		if b, f := v.tiers[i].pick(r, seed); f < least {
			best, least = b, f
		}
	}
	return best, best != nil
}

// nobody is the flaw of no backend at all.
const nobody = 8

// pick asks a tier: the zone that the request's number says, then the others,
// beginning with one drawn by capacity.
func (c *choice) pick(r *balance.Request, seed uint64) (*balance.Backend, int) {
	if c.zones == nil {
		return ask(c.picker, r)
	}
	first := find(c.zones, fraction(seed^saltZone))
	best, least := ask(c.zones[first].picker, r)
	if least == 0 && c.admits(first, best, r.Now, seed) {
		return best, 0
	}
	// One that only its zone's slow start speaks against is taken if nobody else
	// is without a flaw.
	var spare *balance.Backend
	if least == 0 {
		spare, least = best, nobody
	}
	// Drawn from the capacity of the others: the range of the first is cut out.
	begins := 0.0
	if first > 0 {
		begins = c.zones[first-1].within
	}
	own := c.zones[first].within - begins
	u := fraction(seed^saltElse) * (c.zones[len(c.zones)-1].within - own)
	if u >= begins {
		u += own
	}
	at := 0
	for at < len(c.zones)-1 && u >= c.zones[at].within {
		at++
	}
	for range c.zones {
		if at != first {
			b, f := ask(c.zones[at].picker, r)
			if f == 0 && !c.admits(at, b, r.Now, seed) {
				if spare == nil {
					spare = b
				}
				f = nobody
			}
			if f < least {
				if best, least = b, f; f == 0 {
					break
				}
			}
		}
		if at++; at == len(c.zones) {
			at = 0
		}
	}
	if spare != nil && least != 0 {
		return spare, 0
	}
	return best, least
}

func ask(p balance.Picker, r *balance.Request) (*balance.Backend, int) {
	b, ok := p.Pick(*r)
	if !ok {
		return nil, nobody
	}
	return b, flaw(b, r)
}

// find returns the choice whose range a number in [0, 1) lies in.
func find(list []choice, u float64) int {
	for i := range list {
		if u < list[i].upTo {
			return i
		}
	}
	return 0
}

// anyTaker reports whether f says so of a member that may take work.
func (v *view) anyTaker(f func(m *balance.Member, panicked bool) bool) bool {
	for i := range v.plan.tiers {
		t := &v.plan.tiers[i]
		for k := range t.groups {
			for j := range t.groups[k].takers {
				if f(&t.groups[k].takers[j], t.panicked) {
					return true
				}
			}
		}
	}
	return false
}

// preferred looks for the sticky backend in all tiers and zones: a session that
// lives on a backend stays there, wherever new work goes.
func (v *view) preferred(r *balance.Request) *balance.Backend {
	for i := range v.tiers {
		t := &v.tiers[i]
		if t.zones == nil {
			if b, f := ask(t.picker, r); f == 0 && b.Hash() == r.Prefer {
				return b
			}
		}
		for k := range t.zones {
			if b, f := ask(t.zones[k].picker, r); f == 0 && b.Hash() == r.Prefer {
				return b
			}
		}
	}
	return nil
}

// fraction maps a number to [0, 1).
func fraction(x uint64) float64 { return float64(mix(x)>>11) / (1 << 53) }

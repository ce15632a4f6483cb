// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/weirlb/weir/balance"
)

// Zone keeps work in the balancer's own zone while that has the capacity. The
// zero value switches it off.
type Zone struct {
	Local   string // the zone this balancer runs in; "": off
	MinSize int    // with fewer serving backends a tier ignores zones; 0: no such bound
}

// Subset makes each balancer of a large fleet use a part of the backends only,
// see balance.Subset. The zero value switches it off.
type Subset struct {
	Size  int // backends per tier; 0: all
	Index int // this balancer's place among Count, from 0; meaningful when Count > 0
	Count int // balancers in the fleet; 0: unknown, the subset is drawn by Config.Instance
}

// Why the zones of a tier count, or do not.
const (
	zonesOff     = ""          // not configured
	zonesOn      = "on"        //
	zonesPanic   = "panic"     // opinions are set aside, and with them the zones
	zonesSmall   = "min_size"  // fewer serving members than Zone.MinSize
	zonesNoLocal = "not_local" // nobody serves in the balancer's own zone
	zonesSingle  = "one_zone"  // all members are in one zone
)

// zoneSum is what a tier has in one zone.
type zoneSum struct {
	name         string
	serving, low int
	full, left   float64 // weights, and what overload has left of them
}

// divide fills in a tier's groups: one for each zone while zones count, else one
// for all.
func (c *core) divide(t *tier, plan *tierPlan) {
	sums, local := c.zoneSums(t, plan)
	stable := c.keepsExcluded()
	one := group{load: 1}
	if plan.zoned == zonesOn {
		capacities := make([]float64, len(sums))
		sum := 0.0
		for i := range sums {
			capacities[i] = c.zoneCapacity(t, &sums[i])
			sum += capacities[i]
		}
		for i := range sums {
			capacities[i] /= sum
		}
		for i, load := range zoneLoads(capacities, local) {
			plan.groups = append(plan.groups, group{zone: sums[i].name, capacity: capacities[i], load: load})
		}
	}
	for _, m := range c.order {
		s := m.core
		if s.tier != t || !t.takes(s, stable) {
			continue
		}
		g := &one
		for i := range plan.groups {
			if plan.groups[i].zone == s.spec.Zone {
				g = &plan.groups[i]
			}
		}
		g.takers = append(g.takers, balance.Member{Backend: m.b, Weight: s.weight})
	}
	if plan.zoned != zonesOn {
		plan.groups = []group{one}
	}
}

// zoneSums adds up a tier's zones, sorted by name, and decides whether they
// count. Members without a zone are a zone of their own.
func (c *core) zoneSums(t *tier, plan *tierPlan) (sums []zoneSum, local int) {
	z := &c.cfg.Zone
	switch {
	case z.Local == "":
		plan.zoned = zonesOff
		return nil, -1
	case t.open:
		plan.zoned = zonesPanic
		return nil, -1
	case t.counts[serving]+t.floored < max(z.MinSize, 1):
		plan.zoned = zonesSmall
		return nil, -1
	}
	for _, m := range c.order {
		s := m.core
		if s.tier != t || s.class == out0 {
			continue
		}
		i := slices.IndexFunc(sums, func(z zoneSum) bool { return z.name == s.spec.Zone })
		if i < 0 {
			i = len(sums)
			sums = append(sums, zoneSum{name: s.spec.Zone})
		}
		switch w := float64(s.weight); {
		case s.class == serving:
			sums[i].serving++
			sums[i].low += btoi(s.low)
			sums[i].full += w
			sums[i].left += c.worth(m)
		case s.floored:
			sums[i].serving++
			sums[i].full += w
			sums[i].left += w
		}
	}
	slices.SortFunc(sums, func(a, b zoneSum) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	local = slices.IndexFunc(sums, func(s zoneSum) bool { return s.name == z.Local })
	switch {
	case local < 0 || sums[local].serving == 0:
		plan.zoned = zonesNoLocal
	case len(sums) == 1:
		plan.zoned = zonesSingle
	default:
		plan.zoned = zonesOn
	}
	return sums, local
}

// zoneCapacity is to a zone what capacity is to a tier.
func (c *core) zoneCapacity(t *tier, z *zoneSum) float64 {
	spent := c.remainsSpent(t.zones[z.name], z.low, z.serving) && z.left*c.factor() < z.full
	if spent != t.zones[z.name] {
		if t.zones == nil {
			t.zones = map[string]bool{}
		}
		t.zones[z.name] = spent
	}
	if spent {
		return z.left
	}
	return z.full
}

// zoneLoads divides a balancer's load over the zones of a tier, given the part
// of the tier's capacity that each has (sum 1) and which one is its own.
//
// What other balancers get cannot be known, so demand is taken to be the same in
// each of the Z zones, 1/Z. A zone with at least that much capacity keeps all its
// work; one with less keeps the part it has capacity for, and what exceeds it
// goes to the others in proportion to what they have above their own demand. So
// when demand really is even, each zone gets work exactly in proportion to its
// capacity, and no more leaves a zone than must. (Envoy's zone-aware routing,
// with even demand for its count of the balancers.)
//
// Example: capacities 0.2 (own), 0.5, 0.3; demand 1/3 each. 0.2 / (1/3) = 0.6
// stay; only the second has more than its demand, so it gets the other 0.4.
func zoneLoads(capacities []float64, local int) []float64 {
	loads := make([]float64, len(capacities))
	demand := 1 / float64(len(capacities))
	// Equal zones are equal, whatever the last bit of a division says.
	const slack = 1e-9
	loads[local] = 1
	if capacities[local] >= demand-slack {
		return loads
	}
	spare := 0.0
	for _, c := range capacities {
		if c > demand+slack {
			spare += c - demand
		}
	}
	if spare == 0 {
		return loads
	}
	loads[local] = capacities[local] / demand
	for i, c := range capacities {
		if c > demand+slack {
			loads[i] = (1 - loads[local]) * (c - demand) / spare
		}
	}
	return loads
}

// Slow start is about a tier, and policies see a zone at a time: to them a zone
// whose members all begin is one where nobody need be spared. So what a zone is
// given is admitted as if it were one backend that is as far as the furthest of
// its members, beside the furthest of the tier; the rest goes to other zones.
//
// Example: the own zone has one backend, which has come back and is at 0.1, the
// others are established. It gets a tenth of the work, then more.
type zoneRamp struct {
	members []balance.Member
	kept    atomic.Uint64 // tick << 32 | what top found, as float32 bits
}

const (
	rampExact = 64 // up to here it is found out at every pick,
	rampTick  = 23 // above once in 2^23 ns (8.4 ms), as policies do with shares
)

// admits throws the zone's coin for b, which its picker chose.
func (c *choice) admits(zone int, b *balance.Backend, now balance.Instant, seed uint64) bool {
	if b.ShareAt(now) >= 1 || b.Ramp() == nil {
		return true
	}
	own := c.zones[zone].ramp.top(now)
	if own >= 1 {
		return true
	}
	most := own
	for i := range c.zones {
		most = max(most, c.zones[i].ramp.top(now))
	}
	return own >= most || fraction(seed^saltRamp) < own/most
}

// top returns how far the furthest of the members that take work is.
func (z *zoneRamp) top(now balance.Instant) float64 {
	keep := len(z.members) > rampExact
	tick := uint64(uint32(now>>rampTick)) << 32
	if v := z.kept.Load(); keep && v != 0 && v&(0xffffffff<<32) == tick {
		return float64(math.Float32frombits(uint32(v)))
	}
	top := 0.0
	for i := range z.members {
		b := z.members[i].Backend
		if b.Admin() != balance.Enabled || b.Share() <= 0 {
			continue
		}
		if top = max(top, b.Ramp().At(now)); top >= 1 {
			break
		}
	}
	if keep {
		z.kept.Store(tick | uint64(math.Float32bits(float32(top))))
	}
	return top
}

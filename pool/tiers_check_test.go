// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// panickedFor reports whether the backend is published as one whose share does
// not count.
func (v *view) panickedFor(b *balance.Backend) bool {
	return v.anyTaker(func(m *balance.Member, panicked bool) bool { return m.Backend == b && panicked })
}

// naiveTier is a tier counted and judged from nothing but its members.
type naiveTier struct {
	level                                             int
	serving, opinion, fact, notReady, waiting, lately int
	mass, left, all                                   float64 // left: what overload has left of mass
	sure                                              float64 // mass without those that the floor keeps in
	low                                               int
	shared                                            bool
}

func (n *naiveTier) total() int { return n.serving + n.opinion + btoi(n.shared)*n.notReady }

// naiveTiers files the members by what they are, best tier first.
func (g *game) naiveTiers() []naiveTier {
	var out []naiveTier
	for level := range backupLevel + 1 {
		n := naiveTier{level: level}
		found := false
		for _, m := range g.p.core.order {
			s := m.core
			want := int(s.spec.Priority)
			if want == 0 && s.spec.Backup {
				want = backupLevel
			}
			if want != level {
				continue
			}
			found = true
			n.shared = s.tier.shared
			n.lately += btoi(s.notReady)
			if s.weight == 0 || m.b.Admin() != balance.Enabled {
				continue
			}
			w := float64(s.weight)
			n.all += w
			switch {
			case s.health.Share() > 0:
				n.serving++
				n.mass += w
				n.sure += w
				low := s.health.Reason() == health.ReasonOverloaded && m.b.Share() <= g.p.cfg.Overload.LeastShare()+1e-6
				n.low += btoi(low)
				if s.health.Reason() == health.ReasonOverloaded {
					w *= m.b.Share()
				}
				n.left += w
			case s.hasFact, s.returning && g.p.cfg.Panic.Then != ThenServe && s.health.Reason() != health.ReasonEjected:
				n.fact++
			case s.health.State() == health.StateNotReady:
				n.notReady++
			case s.health.Waiting():
				n.waiting++
				n.all -= w
			default:
				n.opinion++
			}
			if s.floored {
				n.mass += w
				n.left += w
			}
		}
		if found {
			out = append(out, n)
		}
	}
	return out
}

// checkTiers holds everything that is concluded about tiers to the members.
func (g *game) checkTiers() {
	c, rules := &g.p.core, g.p.cfg.Panic
	tiers := g.naiveTiers()
	if len(tiers) != len(c.tiers) {
		g.t.Fatalf("%d tiers, want %d", len(c.tiers), len(tiers))
	}
	anyone, reach := 0, 0.0
	for i := range tiers {
		n, t := &tiers[i], c.tiers[i]
		if t.level != n.level || t.counts != [classes]int{serving: n.serving, opinion: n.opinion, unreachable: n.fact, notReady: n.notReady, waiting: n.waiting} ||
			t.latelyLive != n.lately {
			g.t.Errorf("tier %d is counted %v lately %d, want %+v", t.level, t.counts, t.latelyLive, *n)
		}
		anyone += n.serving
		if n.all > 0 {
			reach += min(1, n.sure/n.all*1.4)
		}
	}
	said := false
	for i := range tiers {
		n, t := &tiers[i], c.tiers[i]
		others := anyone > n.serving && reach > 1-1e-9
		out := n.opinion + n.notReady + n.fact
		below := float64(n.serving) < rules.Threshold*float64(n.total())-1e-9
		nobody := n.serving == 0 && out > 0 && (rules.Floor > 0 || rules.Threshold > 0)
		want := !rules.Off && (rules.Then == ThenFailover && (below || nobody) || !others && (below || nobody && anyone == 0))
		if t.loud != want {
			g.t.Errorf("tier %d panics: %v, want %v: %+v of %d serving, reach %v", n.level, t.loud, want, *n, anyone, reach)
		}
		said = said || want
		g.checkFloor(t, n)
	}
	if c.alarm.said != said {
		g.t.Errorf("panic %v, want %v", c.alarm.said, said)
	}
	if !c.dirty {
		g.checkPlan(tiers)
	}
}

// checkFloor is the floor in other words.
func (g *game) checkFloor(t *tier, n *naiveTier) {
	rules := g.p.cfg.Panic
	if rules.Off || t.loud || n.serving == 0 {
		return
	}
	floored := 0
	for _, m := range g.p.core.order {
		floored += btoi(m.core.floored && m.core.tier == t)
	}
	if want := max(min(rules.Floor-n.serving, n.opinion+n.notReady), 0); floored != want {
		g.t.Errorf("the floor of %d keeps %d in, want %d: %+v", rules.Floor, floored, want, *n)
	}
}

// checkPlan follows a unit of water down the tiers, and a tier's down its zones.
func (g *game) checkPlan(tiers []naiveTier) {
	plan := g.p.view.Load().plan
	c := &g.p.core
	calm := false
	for i := range tiers {
		calm = calm || tiers[i].mass > 0 && !c.tiers[i].loud
	}
	for i := range tiers {
		// Whether it still is spent depends on what was; what that means does not.
		n, t := &tiers[i], c.tiers[i]
		if n.serving > 0 && n.low == n.serving && !t.spent && n.left*1.4 < n.mass || t.spent && n.left*1.4 >= n.mass {
			g.t.Errorf("tier %d is spent: %v, %+v", n.level, t.spent, *n)
		}
		if t.spent {
			n.mass = n.left
		}
	}
	left, sum := 1.0, 0.0
	want := make([]float64, len(tiers))
	for i := range tiers {
		n := &tiers[i]
		if n.all == 0 || calm && c.tiers[i].loud && g.p.cfg.Panic.Then == ThenFailover {
			continue
		}
		want[i] = min(left, 1.4*n.mass/n.all)
		left -= want[i]
		sum += want[i]
	}
	for i := range tiers {
		if sum > 0 {
			want[i] /= sum
		}
		if got := plan.tiers[i].load; math.Abs(got-want[i]) > 1e-9 {
			g.t.Errorf("tier %d gets %v, want %v: %+v", tiers[i].level, got, want[i], tiers[i])
		}
		g.checkZones(c.tiers[i], &plan.tiers[i])
	}
}

func (g *game) checkZones(t *tier, plan *tierPlan) {
	z := g.p.cfg.Zone
	mass, sum, local := map[string]float64{}, 0.0, false
	for _, m := range g.p.core.order {
		s := m.core
		if s.tier != t || s.weight == 0 || m.b.Admin() != balance.Enabled {
			continue
		}
		mass[s.spec.Zone] += 0
		if s.health.Share() > 0 || s.floored {
			w := float64(s.weight)
			if t.zones[s.spec.Zone] && s.health.Reason() == health.ReasonOverloaded && !s.floored {
				w *= m.b.Share()
			}
			mass[s.spec.Zone] += w
			sum += w
			local = local || s.spec.Zone == z.Local
		}
	}
	on := z.Local != "" && !t.open && local && len(mass) > 1 && t.counts[serving]+t.floored >= z.MinSize
	if on != (plan.zoned == zonesOn) {
		g.t.Errorf("zones of tier %d: %q, want on %v: %v", t.level, plan.zoned, on, mass)
	}
	if !on {
		return
	}
	demand := 1 / float64(len(mass))
	kept := min(1, mass[z.Local]/sum/demand)
	spare := 0.0
	for _, w := range mass {
		spare += max(w/sum-demand, 0)
	}
	for _, gr := range plan.groups {
		want := kept
		if gr.zone != z.Local {
			want = 0
			if kept < 1-1e-9 {
				want = (1 - kept) * max(mass[gr.zone]/sum-demand, 0) / spare
			}
		}
		if math.Abs(gr.load-want) > 1e-6 {
			g.t.Errorf("zone %q of tier %d gets %v, want %v: %v", gr.zone, t.level, gr.load, want, mass)
		}
		for _, m := range gr.takers {
			if owner, ok := m.Backend.Owner().(*member); !ok || owner.core.spec.Zone != gr.zone {
				g.t.Errorf("%s is in the picker of zone %q", m.Backend.ID(), gr.zone)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// defaultOverprovisioning is Envoy's factor: a tier bears its whole load as long
// as five in seven of it serve.
const defaultOverprovisioning = 1.4

// backupLevel is the tier of backups without a priority: after all of those.
const backupLevel = 256

func (s *Spec) level() int {
	if s.Backup && s.Priority == 0 {
		return backupLevel
	}
	return int(s.Priority)
}

// tier is the members of one priority, and what is concluded about them.
// Guarded by Pool.mu.
type tier struct {
	level  int
	size   int             // members, those that count nowhere included
	counts [classes]int    // members by class
	mass   [classes]uint64 // and their weights
	low    int             // serving members that overload has brought to the floor
	spent  bool            // all of them were, and have not come far enough since
	zones  map[string]bool // zones that are spent in this sense

	open        bool // opinions are set aside when the pickers are built
	loud        bool // and that is said aloud: it is a panic
	shared      bool // not_ready is taken for a shared dependency
	sharedWhy   string
	correlated  correlation // what its probes fail together for
	named       named
	total       int // members that the threshold counts against
	floored     int // members that the floor keeps in
	flooredMass uint64

	lately     []turned // members that turned not_ready within fall x interval
	latelyLive int      // of them, those that still are
}

// name is how a tier is called in words.
func (t *tier) name() string {
	if t.level == backupLevel {
		return "backup"
	}
	return fmt.Sprintf("priority %d", t.level)
}

// tierOf returns the tier of a spec, a new one if need be.
func (c *core) tierOf(s *Spec) *tier {
	level := s.level()
	i, ok := slices.BinarySearchFunc(c.tiers, level, func(t *tier, level int) int { return t.level - level })
	if !ok {
		c.tiers = slices.Insert(c.tiers, i, &tier{level: level})
	}
	return c.tiers[i]
}

// pruneTiers forgets the tiers that nobody belongs to any more.
func (c *core) pruneTiers() {
	for _, t := range c.tiers {
		t.size = 0
	}
	for _, m := range c.order {
		m.core.tier.size++
	}
	c.tiers = slices.DeleteFunc(c.tiers, func(t *tier) bool {
		c.alarm.together = c.alarm.together || t.size == 0 && t.correlated.kind != NotCorrelated
		return t.size == 0
	})
}

// file moves a member to another place in the counts of its tier.
func (t *tier) file(s *coreState, n class, weight uint32, low bool) {
	if s.class != out0 {
		t.counts[s.class]--
		t.mass[s.class] -= uint64(s.mass)
	}
	if n != out0 {
		t.counts[n]++
		t.mass[n] += uint64(weight)
	}
	t.low += btoi(low) - btoi(s.low)
	s.class, s.mass, s.low = n, weight, low
}

// enabled counts the members that could take work if all were well.
func (c *core) enabled() int {
	n := 0
	for _, t := range c.tiers {
		for _, v := range t.counts {
			n += v
		}
	}
	return n
}

// serving counts the members with a share.
func (c *core) serving() int {
	n := 0
	for _, t := range c.tiers {
		n += t.counts[serving]
	}
	return n
}

// overloaded reports that overload is what binds the member's share.
func (s *coreState) overloaded() bool { return s.health.Reason() == health.ReasonOverloaded }

// atFloor reports that overload leaves the member its least share.
func (c *core) atFloor(m *member) bool {
	return m.core.overloaded() && m.b.Share() <= c.cfg.Overload.LeastShare()+1e-6
}

func (c *core) factor() float64 {
	if f := c.cfg.Overprovisioning; f > 0 {
		return f
	}
	return defaultOverprovisioning
}

// capacity returns what of a tier's weight can be worked with. A backend that is
// ramping up or on probation counts in full: what it cannot take yet, its
// neighbours can. Neither does overload shrink a tier, as what one backend cannot
// take goes to the next in the tier; only when all of them are at the floor there
// is no next, and from then on until they have come back far enough to carry the
// tier's load the capacity is what overload has left of it. (If it were that only
// while all are at the floor, the load would jump back and forth.)
func (c *core) capacity(t *tier) float64 {
	full := float64(t.mass[serving] + t.flooredMass)
	t.spent = c.remainsSpent(t.spent, t.low, t.counts[serving])
	if !t.spent {
		return full
	}
	left := 0.0
	for _, m := range c.order {
		if m.core.tier == t && m.core.class == serving {
			left += c.worth(m)
		}
	}
	left += float64(t.flooredMass)
	if left*c.factor() >= full {
		t.spent = false
		return full
	}
	return left
}

func (c *core) remainsSpent(spent bool, low, serving int) bool {
	return serving > 0 && (spent || low == serving)
}

// worth is a serving member's weight, less what overload has taken.
func (c *core) worth(m *member) float64 {
	w := float64(m.core.weight)
	if m.core.overloaded() {
		w *= m.b.Share()
	}
	return w
}

// healthOf returns the part of a tier that serves, 0 to 1, by weight. Drained and
// disabled members are no part of it, nor are newcomers before their first probe:
// adding backends must not send work away.
func (c *core) healthOf(t *tier) float64 {
	left := c.capacity(t) // also where there is nobody: then it is spent no longer
	if all := t.known(); all > 0 {
		return min(left/all, 1)
	}
	return 0
}

// known returns the weight of the members that healthOf is about.
func (t *tier) known() float64 {
	all := uint64(0)
	for class, m := range t.mass {
		if class != int(waiting) {
			all += m
		}
	}
	return float64(all)
}

// reach returns which part of the load the tiers could take together if nobody
// were overloaded, 1 and above for all of it; those that only the floor keeps in
// are not counted on. Whether opinions are to be believed
// does not depend on how busy the others are: panic would come and go with it.
func (c *core) reach() float64 {
	sum := 0.0
	for _, t := range c.tiers {
		if all := t.known(); all > 0 {
			sum += min(float64(t.mass[serving])/all*c.factor(), 1)
		}
	}
	return sum
}

// tierLoads divides the load over tiers, best first, given what part of each
// serves. Tier by tier takes health x factor of the whole, at most what is left;
// when all of them together cannot take it, each gets more in proportion. These
// are the priority levels of Envoy ("Priority levels" in its load balancing
// documentation).
//
// Example: factor 1.4, healths 0.5, 1. The first takes 0.7, the second the
// remaining 0.3. With 0.5 and 0.1 it is 0.7 and 0.14 of the 0.84 that can be
// taken, so 0.83 and 0.17. All zero means that nobody serves.
func tierLoads(healths []float64, factor float64) []float64 {
	loads := make([]float64, len(healths))
	taken := 0.0
	for i, h := range healths {
		loads[i] = min(h*factor, 1-taken)
		taken += loads[i]
	}
	if taken > 0 && taken < 1 {
		for i := range loads {
			loads[i] /= taken
		}
	}
	return loads
}

// loads returns the part of the requests that each tier gets first. A tier that
// panics while the answer to panic is failover gets none as long as there is
// another that serves and does not panic.
func (c *core) loads() []float64 {
	healths := make([]float64, len(c.tiers))
	calm := false
	for i, t := range c.tiers {
		healths[i] = c.healthOf(t)
		calm = calm || healths[i] > 0 && !t.loud
	}
	if calm && c.cfg.Panic.Then == ThenFailover {
		for i, t := range c.tiers {
			if t.loud {
				healths[i] = 0
			}
		}
	}
	return tierLoads(healths, c.factor())
}

// publication is a membership to build pickers over.
type publication struct {
	tiers   []tierPlan
	members []*member
	idle    bool // the operator's word leaves nobody: all are drained, disabled or of weight 0
	admit   float64
	gate    *balance.Ramp // lets requests in little by little after nobody served; nil: all
	// sessions says that requests that prefer a member are asked for it first.
	sessions bool
}

// tierPlan is one tier of a publication.
type tierPlan struct {
	level    int
	load     float64 // part of the requests that it gets first
	panicked bool
	zoned    string // why zones count or not
	groups   []group
}

// group is the members of one picker: a tier, or a zone of one.
type group struct {
	zone     string
	capacity float64 // part of the tier's, while zones count
	load     float64 // part of the tier's
	takers   []balance.Member
	picker   balance.Picker // filled in by Pool.build; nil when there are no takers
}

// part names a group among all that there can be.
func (t *tierPlan) part(g *group) uint64 {
	return mix(uint64(t.level)) ^ uint64(balance.IDOf(g.zone))
}

func (p *publication) equal(q *publication) bool {
	return p.admit == q.admit && p.gate == q.gate && p.idle == q.idle && p.sessions == q.sessions && slices.Equal(p.members, q.members) &&
		slices.EqualFunc(p.tiers, q.tiers, func(a, b tierPlan) bool {
			return a.level == b.level && a.load == b.load && a.panicked == b.panicked && a.zoned == b.zoned &&
				slices.EqualFunc(a.groups, b.groups, func(a, b group) bool {
					return a.zone == b.zone && a.load == b.load && a.capacity == b.capacity && slices.Equal(a.takers, b.takers)
				})
		})
}

// kept returns a picker of the last publication that fits a group as it is.
func (p *publication) kept(t *tierPlan, g *group) balance.Picker {
	if p == nil {
		return nil
	}
	for i := range p.tiers {
		old := &p.tiers[i]
		if old.level != t.level || old.panicked != t.panicked {
			continue
		}
		for k := range old.groups {
			if o := &old.groups[k]; slices.Equal(o.takers, g.takers) {
				return o.picker
			}
		}
	}
	return nil
}

// panicked reports that some tier sets opinions aside.
func (p *publication) panicked() bool {
	return slices.ContainsFunc(p.tiers, func(t tierPlan) bool { return t.panicked })
}

// spread tells the members whether they are in whatever their share, for those
// who hand slots on without a pick.
func (p *publication) spread() {
	for _, m := range p.members {
		m.open.Store(false)
	}
	for i := range p.tiers {
		for k := range p.tiers[i].groups {
			for _, t := range p.tiers[i].groups[k].takers {
				if m, ok := t.Backend.Owner().(*member); ok {
					m.open.Store(p.tiers[i].panicked)
				}
			}
		}
	}
}

// compose gathers the members that the pickers are built over, and divides the
// load over the tiers and their zones.
func (c *core) compose() *publication {
	out := &publication{members: append([]*member(nil), c.order...), admit: 1, idle: c.enabled() == 0}
	loads := c.loads()
	for i, t := range c.tiers {
		plan := tierPlan{level: t.level, load: loads[i], panicked: t.open}
		c.divide(t, &plan)
		out.tiers = append(out.tiers, plan)
	}
	if len(out.tiers) == 0 {
		out.tiers = []tierPlan{{groups: make([]group, 1)}}
	}
	if c.alarm.shedding {
		out.admit = c.admit()
	}
	out.gate, out.sessions = c.gate, c.cfg.KeepSessions
	return out
}

// takes reports whether a member of a tier may take work. Open is panic: all that
// opinions exclude are in; of those who say themselves that they are not ready
// only when a shared dependency is suspected, or when nobody else is left; of
// those still awaiting their first probe only when nobody else at all is left.
func (t *tier) takes(s *coreState, stable bool) bool {
	n := &t.counts
	words := t.open && (t.shared || n[serving]+n[opinion] == 0)
	newcomers := t.open && n[serving]+n[opinion] == 0 && (!words || n[notReady] == 0)
	switch s.class {
	case out0:
		return false
	case serving:
		return true
	case opinion, unreachable:
		return t.open || s.floored || stable
	case notReady:
		return words || s.floored || stable && !t.open
	case waiting:
		return newcomers || stable && !t.open
	}
	return false
}

// keepsExcluded reports whether the policy wants excluded members in its set
// and skips them itself: hash policies, whose tables must not change with
// health.
func (c *core) keepsExcluded() bool {
	k, ok := c.cfg.Policy.(balance.Keeper)
	return ok && k.KeepsExcluded()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

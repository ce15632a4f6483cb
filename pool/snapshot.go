// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Snapshot is a pool at one instant, as plain values.
type Snapshot struct {
	Name            string
	At              balance.Instant
	Policy          string
	Panic           bool
	PanicWhy        string
	Then            Then
	Shared          bool       // a shared dependency is suspected (much of the pool says not_ready, traffic succeeds)
	Correlated      Correlated // what it is a sign of that probes fail together while traffic succeeds
	CorrelatedWhy   string
	Admit           float64 // part of the requests admitted; below 1 only while shedding
	Ready           bool
	Known           int // backends of the last Update; more than Members when there is a subset
	Members         int // of them, those this balancer uses
	Serving         int // of them, with a share above 0 and enabled
	Ejected         int
	InFlight        int64
	Queue           int // waiting now
	QueueLimit      int
	Adaptive        AdaptiveSnapshot
	Saturation      float64 // in flight over capacity, 0 without limits; 1 when requests queue, or nobody serves
	Requests        uint64  // client requests counted for the budget since the start
	Retries         uint64  // retries granted since the start
	BudgetRemaining float64 // part of the retry budget left, 0..1
	MeanLatency     time.Duration
	Publications    uint64 // how often pickers were rebuilt
	Detection       time.Duration
	DrainDeadline   time.Duration
	Tiers           []TierSnapshot // best first
	Backends        []BackendSnapshot
}

// BackendSnapshot is one backend at one instant.
type BackendSnapshot struct {
	Backend          *balance.Backend
	ID, URL, Zone    string
	Backup           bool
	Tier             int    // index in Snapshot.Tiers, -1 for one that was removed
	Removed          bool   // no longer a member; finishes what is in flight
	Weight           uint32 // in force
	NominalWeight    uint32 // as configured
	WeightOverridden bool
	WeightSince      balance.Instant // when overridden
	Admin            balance.Admin
	AdminOverridden  bool
	AdminSince       balance.Instant // when overridden; negative: before this process began
	Draining         bool            // no new work, in flight finishes
	DrainDeadline    balance.Instant // 0: none
	Sessions         bool            // draining, and getting the requests of its sessions
	DrainCut         int64           // requests that were in flight when it passed; of the latest drain
	Health           health.State
	Share            float64         // in force at At, a slow start included
	Reason           health.Reason   // what binds it
	SlowStartUntil   balance.Instant // 0: none under way
	Why              string          // last error or cause in words
	Since            balance.Instant
	Flips            int
	Ejections        int             // in a row, decides how long the next lasts
	EjectedUntil     balance.Instant // 0: not ejected
	Suspect          bool
	Unreachable      bool
	InFlight         int64
	Limit            int64
	Requests         uint64 // attempts with any outcome
	Failures         uint64 // of them, those that were the backend's fault
	P50, P99, EWMA   time.Duration
	Load             float64         // what it last said of its own load, 1 is capacity; meaningful when LoadAt is not 0
	LoadAt           balance.Instant // when, to the second
	LastCheck        Check
	History          []health.Change // oldest first, at most 16
}

// OverriddenSince returns when the latest part of the operator's word was said;
// negative: before this process began.
func (b *BackendSnapshot) OverriddenSince() balance.Instant {
	return latestWord(b.AdminOverridden, b.AdminSince, b.WeightOverridden, b.WeightSince)
}

// latestWord leaves out what was not said: the zero Instant is later than what
// was restored from another process.
func latestWord(admin bool, adminSince balance.Instant, weight bool, weightSince balance.Instant) balance.Instant {
	switch {
	case !weight:
		return adminSince
	case !admin:
		return weightSince
	}
	return max(adminSince, weightSince)
}

// TierSnapshot is one tier of a pool: the backends of one priority.
type TierSnapshot struct {
	Name     string // "priority N" or "backup"
	Priority int    // 256 for backups without a priority
	Members  int    // enabled, with a weight
	Serving  int
	Health   float64 // serving part by weight, less what overload has taken once all are at their floor
	Load     float64 // part of the requests that comes here first, 0 to 1
	Panic    bool    // opinions about its members are set aside, or (shed) its load is refused in part
	Spent    bool    // all were overloaded down to the floor, and have not come far enough since
	Zoned    string  // why zones count: "" not configured, "on", or why not: panic, min_size, not_local, one_zone
	Zones    []ZoneSnapshot
}

// ZoneSnapshot is one zone of a tier.
type ZoneSnapshot struct {
	Name     string // "" for members without a zone
	Local    bool   // the balancer's own
	Members  int    // enabled, with a weight
	Serving  int
	Capacity float64 // part of the tier's; 0 while zones do not count
	Demand   float64 // the part of the requests that its balancers are taken to have: 1 / number of zones
	Load     float64 // part of the tier's requests that comes here first; 0 while zones do not count
}

// Check is the last probe of a backend.
type Check struct {
	At      balance.Instant
	Done    bool // there was one
	OK      bool
	Outcome health.ProbeOutcome
	Cause   health.Cause
	Status  int
	Error   string
}

// Snapshot returns the pool as plain values. It takes the core's lock while it
// copies (some milliseconds for 10,000 backends); requests do not notice.
func (p *Pool) Snapshot() Snapshot {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.core
	s := Snapshot{
		Name: p.cfg.Name, At: now, Policy: p.cfg.Policy.Name(),
		Panic: c.alarm.said, PanicWhy: c.alarm.why, Then: p.cfg.Panic.Then,
		Correlated: c.alarm.correlated.kind, CorrelatedWhy: c.alarm.correlated.why,
		Admit: p.view.Load().admitted(now), Ready: p.ready.Load(),
		Members: len(c.order), Serving: c.serving(), Known: len(c.order) + len(c.outside),
		Queue: int(p.queue.length.Load()), QueueLimit: p.cfg.Limits.Queue,
		Adaptive: p.set.Load().adaptive.snapshot(&p.cfg.Limits.Adaptive),
		Requests: p.budget.Load().total(), Retries: p.budget.Load().retries.Load(), BudgetRemaining: p.budget.Load().remaining(now),
		MeanLatency: time.Duration(c.stats.mean), Publications: p.builds.Load(),
		Detection: p.cfg.Active.Detection(), DrainDeadline: p.cfg.DrainDeadline,
		Backends: make([]BackendSnapshot, 0, len(c.order)+len(c.leaving)),
	}
	s.Tiers = c.snapshotTiers(p.view.Load().plan)
	for _, t := range c.tiers {
		s.Shared = s.Shared || t.shared
	}
	var busy, room int64
	for _, m := range c.order {
		b := c.snapshot(now, m)
		s.Ejected += btoi(b.EjectedUntil != 0)
		s.InFlight += b.InFlight
		if m.core.class == serving {
			busy, room = busy+b.InFlight, room+b.Limit
		}
		s.Backends = append(s.Backends, b)
	}
	gone := len(s.Backends)
	for _, m := range c.leaving {
		b := c.snapshot(now, m)
		s.InFlight += b.InFlight
		s.Backends = append(s.Backends, b)
	}
	slices.SortFunc(s.Backends[gone:], func(a, b BackendSnapshot) int { return cmp.Compare(a.ID, b.ID) })
	s.Saturation = p.saturation(&s, busy, room)
	return s
}

// saturation is the largest part of any limit that is in flight, of so much in
// flight on the backends that serve and the room that they have. Where nobody
// serves there is nothing to be had: that is no idle pool, and who scales by this
// figure would make it smaller yet.
func (p *Pool) saturation(s *Snapshot, busy, room int64) float64 {
	l := &p.cfg.Limits
	limited := l.PoolRequests > 0 || l.BackendRequests > 0 || s.Adaptive.Bounds()
	if s.Queue > 0 || limited && s.Serving == 0 {
		return 1
	}
	most := 0.0
	if room > 0 {
		most = float64(busy) / float64(room)
	}
	if n := l.PoolRequests; n > 0 {
		most = max(most, float64(p.inFlight.Load())/float64(n))
	}
	if a := &s.Adaptive; a.Bounds() {
		most = max(most, float64(a.InFlight)/float64(max(a.Limit, 1)))
	}
	return min(most, 1)
}

// snapshotTiers describes the tiers: their members now, and how requests are
// divided over them, which is what was published last.
func (c *core) snapshotTiers(plan *publication) []TierSnapshot {
	out := make([]TierSnapshot, len(c.tiers))
	for i, t := range c.tiers {
		s := &out[i]
		*s = TierSnapshot{Name: t.name(), Priority: t.level, Panic: t.loud, Spent: t.spent, Health: c.healthOf(t), Serving: t.counts[serving]}
		for _, n := range t.counts {
			s.Members += n
		}
		for k := range plan.tiers {
			if p := &plan.tiers[k]; p.level == t.level && len(plan.members) > 0 {
				s.Load, s.Zoned = p.load, p.zoned
			}
		}
		c.snapshotZones(t, s, plan)
	}
	return out
}

func (c *core) snapshotZones(t *tier, s *TierSnapshot, plan *publication) {
	if c.cfg.Zone.Local == "" {
		return
	}
	for _, m := range c.order {
		if m.core.tier != t || m.core.class == out0 {
			continue
		}
		name := m.core.spec.Zone
		i := slices.IndexFunc(s.Zones, func(z ZoneSnapshot) bool { return z.Name == name })
		if i < 0 {
			i = len(s.Zones)
			s.Zones = append(s.Zones, ZoneSnapshot{Name: name, Local: name == c.cfg.Zone.Local})
		}
		s.Zones[i].Members++
		s.Zones[i].Serving += btoi(m.core.class == serving)
	}
	slices.SortFunc(s.Zones, func(a, b ZoneSnapshot) int { return cmp.Compare(a.Name, b.Name) })
	for i := range s.Zones {
		z := &s.Zones[i]
		z.Demand = 1 / float64(len(s.Zones))
		for k := range plan.tiers {
			for j := range plan.tiers[k].groups {
				if g := &plan.tiers[k].groups[j]; plan.tiers[k].level == t.level && plan.tiers[k].zoned == zonesOn && g.zone == z.Name {
					z.Capacity, z.Load = g.capacity, g.load
				}
			}
		}
	}
}

// snapshot copies one member.
func (c *core) snapshot(now balance.Instant, m *member) BackendSnapshot {
	s, h := m.core, &m.core.health
	b := BackendSnapshot{
		Backend: m.b, ID: m.b.ID(), URL: m.b.Address(), Zone: s.spec.Zone,
		Backup: s.spec.Backup, Tier: slices.Index(c.tiers, s.tier), Removed: s.leaving,
		Weight: s.weight, NominalWeight: s.spec.Weight,
		Admin: m.b.Admin(), Draining: s.drain, DrainDeadline: s.deadline, DrainCut: s.cut, Sessions: m.keeps.Load(),
		Health: h.State(), Share: m.b.ShareAt(now), Reason: h.Reason(), Why: h.Why(), Since: h.Since(), Flips: h.Flips(),
		Ejections: h.Ejections(), Suspect: m.b.Suspect(), Unreachable: m.b.Unreachable(),
		InFlight: m.b.InFlight(), Limit: m.b.Limit(),
		EWMA: c.latencyOf(now, m), LastCheck: s.last, History: h.History(),
	}
	if load, at, ok := m.lastReport(); ok {
		b.Load, b.LoadAt = load, max(at, 1)
	}
	if until, ok := h.Ejected(); ok {
		b.EjectedUntil = until
	}
	if r := m.b.Ramp(); r != nil && now < r.Start.Add(r.Window) {
		b.SlowStartUntil = r.Start.Add(r.Window)
		if b.Share < h.Share() {
			b.Reason = health.ReasonSlowStart
		}
	}
	if o := c.overrides[b.ID]; o != nil && !s.leaving {
		b.AdminOverridden, b.AdminSince = o.hasAdmin, o.adminSince
		b.WeightOverridden, b.WeightSince = o.hasWeight, o.weightSince
	}
	b.Requests, b.Failures = m.requests()
	var from *histogramCopy
	if s.hist != nil {
		from = &s.hist[0]
	}
	b.P50, b.P99 = m.hist.quantiles(from)
	switch {
	case s.leaving:
		b.Share, b.Reason, b.Tier = 0, health.None, -1
	case b.Admin != balance.Enabled:
		b.Share, b.Reason = 0, health.ReasonOverride
	case s.floored:
		b.Reason = health.ReasonFloor
	case s.tier.open && s.tier.loud && h.Share() == 0 && !s.hasFact:
		b.Reason = health.ReasonPanic
	}
	return b
}

// latencyOf is a member's mean latency, the answers since the last look at
// everyone's figures included: with little traffic that is seconds ago.
func (c *core) latencyOf(now balance.Instant, m *member) time.Duration {
	s := m.core
	n, sum := m.timed()-s.seenAnswers, m.latency.Load()-s.seenLatency
	if n == 0 {
		return time.Duration(s.ewma)
	}
	mean := float64(sum) / float64(n)
	if s.ewma == 0 {
		return time.Duration(mean)
	}
	weight := 1 - math.Exp(-now.Sub(c.stats.last).Seconds()/ewmaTime.Seconds())
	return time.Duration(s.ewma + max(weight, 0)*(mean-s.ewma))
}

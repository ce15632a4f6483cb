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
	Shared          bool    // a shared dependency is suspected (much of the pool says not_ready, traffic succeeds)
	Admit           float64 // part of the requests admitted; below 1 only while shedding
	Ready           bool
	Members         int // configured
	Serving         int // of them, with a share above 0 and enabled
	Ejected         int
	InFlight        int64
	Queue           int // waiting now
	QueueLimit      int
	Saturation      float64 // in flight over capacity, 0 without limits; 1 when requests queue
	Requests        uint64  // client requests counted for the budget since the start
	Retries         uint64  // retries granted since the start
	BudgetRemaining float64 // part of the retry budget left, 0..1
	MeanLatency     time.Duration
	Publications    uint64 // how often pickers were rebuilt
	Detection       time.Duration
	DrainDeadline   time.Duration
	Backends        []BackendSnapshot
}

// BackendSnapshot is one backend at one instant.
type BackendSnapshot struct {
	Backend          *balance.Backend
	ID, URL, Zone    string
	Backup           bool
	Removed          bool   // no longer a member; finishes what is in flight
	Weight           uint32 // in force
	NominalWeight    uint32 // as configured
	WeightOverridden bool
	WeightSince      balance.Instant // when overridden
	Admin            balance.Admin
	AdminOverridden  bool
	AdminSince       balance.Instant // when overridden
	Draining         bool            // no new work, in flight finishes
	DrainDeadline    balance.Instant // 0: none
	Health           health.State
	Share            float64
	Reason           health.Reason
	Why              string // last error or cause in words
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
	LastCheck        Check
	History          []health.Change // oldest first, at most 16
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
		Panic: c.alarm.said, PanicWhy: c.alarm.why, Then: p.cfg.Panic.Then, Shared: c.alarm.shared,
		Admit: p.view.Load().admit, Ready: p.ready.Load(),
		Members: len(c.order), Serving: c.counts[0][serving] + c.counts[1][serving],
		Queue: int(p.queue.length.Load()), QueueLimit: p.cfg.Limits.Queue,
		Requests: p.budget.total(), Retries: p.budget.retries.Load(), BudgetRemaining: p.budget.remaining(now),
		MeanLatency: time.Duration(c.stats.mean), Publications: p.builds.Load(),
		Detection: p.cfg.Active.Detection(), DrainDeadline: p.cfg.DrainDeadline,
		Backends: make([]BackendSnapshot, 0, len(c.order)+len(c.leaving)),
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
	if room > 0 {
		s.Saturation = float64(busy) / float64(room)
	}
	if n := p.cfg.Limits.PoolRequests; n > 0 {
		s.Saturation = max(s.Saturation, float64(p.inFlight.Load())/float64(n))
	}
	if s.Queue > 0 {
		s.Saturation = 1
	}
	s.Saturation = min(s.Saturation, 1)
	return s
}

// snapshot copies one member.
func (c *core) snapshot(now balance.Instant, m *member) BackendSnapshot {
	s, h := m.core, &m.core.health
	b := BackendSnapshot{
		Backend: m.b, ID: m.b.ID(), URL: m.b.Address(), Zone: s.spec.Zone,
		Backup: s.backup, Removed: s.leaving,
		Weight: s.weight, NominalWeight: s.spec.Weight,
		Admin: m.b.Admin(), Draining: s.drain, DrainDeadline: s.deadline,
		Health: h.State(), Share: m.b.Share(), Reason: h.Reason(), Why: h.Why(), Since: h.Since(), Flips: h.Flips(),
		Ejections: h.Ejections(), Suspect: m.b.Suspect(), Unreachable: m.b.Unreachable(),
		InFlight: m.b.InFlight(), Limit: m.b.Limit(),
		EWMA: c.latencyOf(now, m), LastCheck: s.last, History: h.History(),
	}
	if until, ok := h.Ejected(); ok {
		b.EjectedUntil = until
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
		b.Share, b.Reason = 0, health.None
	case b.Admin != balance.Enabled:
		b.Share, b.Reason = 0, health.ReasonOverride
	case s.floored:
		b.Reason = health.ReasonFloor
	case c.alarm.open && c.alarm.said && !s.backup && h.Share() == 0 && s.class != unreachable:
		b.Reason = health.ReasonPanic
	}
	return b
}

// latencyOf is a member's mean latency, the answers since the last look at
// everyone's figures included: with little traffic that is seconds ago.
func (c *core) latencyOf(now balance.Instant, m *member) time.Duration {
	s := m.core
	n, sum := m.answers.Load()-s.seenAnswers, m.latency.Load()-s.seenLatency
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

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// rememberFor is how long what was saved of a backend that the pool does not have
// waits for it: discovery may find it a moment after the start.
const rememberFor = time.Minute

// restoring is the event of a Restore.
type restoring struct {
	saved *Saved
	base  balance.Instant // when it was exported
	out   Restored
}

// Restore takes in what another process's pool knew when it called Export, gap
// ago. It is an event like any other, meant for the time between the first Update
// and Start: backends go on from where they were, with the same identity (id and
// address) only. Those that the pool does not have are left out, but if they are
// added within a minute they count as the ones that were saved; the operator's
// word waits for them for good. Probes go on at the pace that they had, and what
// was due in the gap is spread as the first probes of new backends are.
//
// What cannot be true is refused, record by record, and settings are the pool's
// own: what they have switched off is forgotten. What a second call says of a
// backend takes the place of what the first one said.
func (p *Pool) Restore(s Saved, gap time.Duration) Restored {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Restored{}
	}
	now := p.now()
	r := restoring{saved: &s, base: now.Add(-min(max(gap, 0), time.Duration(health.AgeMost)))}
	if reason := s.check(); reason != "" {
		r.out.Refused = append(r.out.Refused, reason)
		s = s.OnlyOverrides()
	} else {
		p.budget.Load().restore(r.base, &s.Budget)
	}
	p.step(event{kind: evRestore, restoring: &r})
	p.poke()
	return r.out
}

// remembered is what waits for backends to come.
type remembered struct {
	backends map[identity]*SavedBackend
	base     balance.Instant
	until    balance.Instant
}

func (c *core) restore(now balance.Instant, r *restoring) {
	s := r.saved
	for i := range s.Overrides {
		if err := c.restoreOverride(r.base, &s.Overrides[i]); err != nil {
			r.out.refuse("override of "+s.Overrides[i].ID, err)
			continue
		}
		r.out.Overrides++
	}
	known := make(map[identity]*SavedBackend, len(s.Backends))
	for i := range s.Backends {
		b := &s.Backends[i]
		if err := b.check(); err != nil {
			r.out.refuse("backend "+b.ID, err)
			continue
		}
		known[identity{b.ID, b.URL}] = b
	}
	late := 0
	for _, m := range c.order {
		// First, as it decides whether the member takes work.
		if o := c.overrides[m.core.spec.ID]; o != nil {
			c.notice(m, Notice{Kind: Overridden, Why: o.String() + ", as before the start"})
			c.respec(m, m.core.spec, true)
		}
		if b := known[m.core.spec.identity()]; b != nil {
			delete(known, m.core.spec.identity())
			r.out.Backends++
			c.restoreMember(now, r.base, m, b, &late)
		}
	}
	r.out.Unknown = len(known)
	c.remembered = remembered{known, r.base, now.Add(rememberFor)}
	if s.Stats.Next.Known() { // the pool was more than overrides
		c.restorePool(now, r)
	}
	// At once: requests must not meet an old weight because something was
	// published a moment ago.
	c.published, c.composed = now.Add(-time.Second), now.Add(-time.Second)
	c.alarm.stale, c.dirty, c.stats.inWindow = true, true, false
}

// remember gives a new member what was saved of it, if anything was.
func (c *core) remember(now balance.Instant, m *member, late *int) {
	c.forgetRemembered(now)
	r := &c.remembered
	id := m.core.spec.identity()
	if b := r.backends[id]; b != nil {
		delete(r.backends, id)
		c.restoreMember(now, r.base, m, b, late)
	}
}

// forgetRemembered gives up those that have not come in time.
func (c *core) forgetRemembered(now balance.Instant) {
	if r := &c.remembered; r.backends != nil && (len(r.backends) == 0 || now >= r.until) {
		*r = remembered{}
	}
}

func (r *Restored) refuse(what string, err error) {
	r.Refused = append(r.Refused, fmt.Sprintf("%s: %v", what, err))
}

func (c *core) restoreOverride(base balance.Instant, s *SavedOverride) error {
	if err := s.check(); err != nil {
		return err
	}
	o := &override{}
	if s.Admin != "" {
		o.admin, o.hasAdmin = balance.Draining, true
		if s.Admin == balance.Disabled.String() {
			o.admin = balance.Disabled
		}
		o.adminSince, o.deadline = min(s.AdminSince.At(base), c.now), time.Duration(s.DeadlineNS)
	}
	if s.Weight != nil {
		o.weight, o.hasWeight, o.weightSince = *s.Weight, true, min(s.WeightSince.At(base), c.now)
	}
	c.overrides[s.ID] = o
	return nil
}

// String says an override in words.
func (o *override) String() string {
	said := ""
	if o.hasAdmin {
		said = o.admin.String()
	}
	if o.hasWeight {
		if said != "" {
			said += ", "
		}
		said += fmt.Sprintf("weight %d", o.weight)
	}
	return said
}

// restoreMember makes a member what it was at base. Requests may be writing
// meanwhile, if Restore comes late: then some of what they count is lost.
func (c *core) restoreMember(now, base balance.Instant, m *member, b *SavedBackend, late *int) {
	s := m.core
	s.since = b.Added.At(base)
	c.restoreCounts(base, m, b)
	mode := m.mode.Load() &^ (modeCauses | modeSlowAsk)
	mode |= uint32(btoi(b.ByShare)*modeShare | btoi(b.BySlow)*modeSlow | btoi(b.Slow.Asked)*modeSlowAsk)
	m.mode.Store(mode)
	s.health.Restore(now, base, &b.Health)
	s.pressure.Restore(now, base, &c.cfg.Overload, &b.Pressure)
	s.health.SetOverload(now, s.pressure.Share(), "settings changed") // else this is what it says already
	if l := b.Check; l != nil {
		cause, _ := health.CauseOf(l.Cause)
		s.last = Check{At: l.At.At(base), Done: true, OK: l.OK, Outcome: outcomeOf(l.Outcome), Cause: cause, Status: l.Status, Error: l.Error}
	}
	s.took, s.idle = b.Took, now
	if b.Idle.Known() {
		s.idle = b.Idle.At(base)
	}
	c.restoreFacts(now, base, m, &b.Facts)
	if s.floored {
		s.floored = false // reckoned anew
	}
	m.b.SetShare(s.health.Share())
	c.judge(now, m, func(h *health.Machine) { h.Tick(now) })
	c.restoreNews(base, m, b)
	c.restoreRamp(base, m, b)
	c.restoreLists(base, m, b)
	c.restoreProbe(now, base, m, &b.Probe, late)
	if !s.moved { // it may take work here though it did not there, or the other way round
		s.moved = true
		c.moved = append(c.moved, m)
	}
}

// restoreFacts brings back what connections have shown.
func (c *core) restoreFacts(now, base balance.Instant, m *member, f *SavedFacts) {
	s := m.core
	cause, _ := health.CauseOf(f.Cause)
	m.connCause.Store(uint32(cause))
	m.lastConn.Store(instantOr(f.LastConn, base, now, math.MinInt64))
	s.byWork, s.hasFact, s.returning = f.Accused.Known(), false, f.Out
	if s.byWork {
		s.accused = min(f.Accused.At(base), now)
	}
	c.timers.stop(m, timerFact)
	m.b.SetUnreachable(false)
	if f.Failed.Known() {
		c.setFact(now, m, min(f.Failed.At(base), now))
	}
	ends := now.Add(health.FactTime)
	switch {
	case f.Ends.Known():
		c.timers.set(m, timerFact, min(f.Ends.At(base), ends))
	case s.byWork || s.health.Suspect() && !c.cfg.Active.Enabled: // nothing else would end it
		c.timers.set(m, timerFact, ends)
	}
}

// restoreNews keeps it no longer news than it was that a member is not_ready.
func (c *core) restoreNews(base balance.Instant, m *member, b *SavedBackend) {
	s := m.core
	if !s.notReady {
		return
	}
	if !b.NotReady.Known() {
		s.notReady = false
		s.tier.latelyLive--
		return
	}
	for i := len(s.tier.lately) - 1; i >= 0; i-- {
		if l := &s.tier.lately[i]; l.m == m {
			l.at = min(b.NotReady.At(base), c.now)
			break
		}
	}
	slices.SortStableFunc(s.tier.lately, func(a, b turned) int { return int(min(max(a.at-b.at, -1), 1)) })
}

func (c *core) restoreRamp(base balance.Instant, m *member, b *SavedBackend) {
	r := b.Ramp.ramp(base, c.now)
	if r == nil || m.core.class != serving {
		c.endRamp(m)
		return
	}
	m.b.SetRamp(r)
	c.timers.set(m, timerRamp, r.Start.Add(r.Window))
}

// ramp returns the ramp that was saved; nil: none, or it is over.
func (s *SavedRamp) ramp(base, now balance.Instant) *balance.Ramp {
	if !s.Start.Known() {
		return nil
	}
	r := &balance.Ramp{Start: min(s.Start.At(base), now), Window: time.Duration(s.WindowNS), From: s.From}
	if now >= r.Start.Add(r.Window) {
		return nil
	}
	return r
}

// restoreLists puts a member on the lists of those that are looked at.
func (c *core) restoreLists(base balance.Instant, m *member, b *SavedBackend) {
	s, st := m.core, &c.stats
	m.shareAsk.Store(b.Windows.Asked && b.Windows.Watched)
	if b.Windows.Watched && !s.watched {
		s.watched = true
		st.watch = append(st.watch, m)
	}
	listed := b.Signs.Listed || s.pressure.Share() < 1
	m.signs.ask.Store(b.Signs.Asked && listed)
	if listed && !s.pressure.listed {
		s.pressure.listed = true
		st.strained = append(st.strained, m)
	}
	if b.Slow.Suspected.Known() && !slices.Contains(st.slow, m) {
		s.slowAt = b.Slow.Suspected.At(base)
		st.slow = append(st.slow, m)
	}
}

// restoreProbe goes on probing at the pace that there was.
func (c *core) restoreProbe(now, base balance.Instant, m *member, p *SavedProbe, late *int) {
	s := m.core
	if s.round {
		s.round = false
		c.awaited--
	}
	s.probes = p.Count
	s.ownFails, s.ownPasses = p.OwnFails, p.OwnPasses
	if s.passed, s.failRun = p.Passed, p.Failed; s.failRun > 0 {
		s.failSince = min(p.Failing.At(base), now)
	}
	if p.Started.Known() {
		s.started = min(p.Started.At(base), now)
		m.probed.Store(int64(s.started))
	}
	if !c.cfg.Active.Enabled || s.leaving {
		c.timers.stop(m, timerProbe)
		return
	}
	if p.First && !c.ready {
		s.round = true
		c.awaited++
	}
	s.again = p.Again
	if s.probing {
		return
	}
	at := now // one was under way: its result is lost
	if p.Next.Known() {
		at = min(p.Next.At(base), now.Add(c.cfg.Active.Interval*2))
	}
	if at <= now {
		at = now
		if *late++; *late > spreadProbes {
			at = c.spread(now, *late)
		}
	}
	c.timers.set(m, timerProbe, at)
}

// restorePool brings back what concerns the pool as a whole.
func (c *core) restorePool(now balance.Instant, r *restoring) {
	s := r.saved
	all := c.updated && len(c.order) == r.out.Backends
	c.ready = c.ready || s.Ready && all
	c.lit, c.dark, c.served, c.proven = s.Lit, s.Dark, s.Served, true
	if gate := s.Ramp.ramp(r.base, now); gate != nil && c.cfg.SlowStart.PoolRamp > 0 {
		c.gate = gate
	}
	if a := c.hot.set.Load().adaptive; a != nil && s.Adaptive.Limit > 0 {
		a.knee.restore(&c.cfg.Limits.Adaptive, now, r.base, &s.Adaptive)
		a.publish(&c.cfg.Limits.Adaptive)
	}
	for i := range s.Tiers {
		x := &s.Tiers[i]
		for _, t := range c.tiers {
			if t.level != x.Level {
				continue
			}
			t.shared, t.spent, t.zones, t.sharedWhy = x.Shared, x.Spent, nil, "as before the start"
			for _, z := range x.Zones {
				if t.zones == nil {
					t.zones = map[string]bool{}
				}
				t.zones[z] = true
			}
			t.restoreNamed(now, r.base, x)
		}
	}
	c.restoreStats(now, r.base, &s.Stats)
}

// instantOr returns when something happened, not after now, or what stands for
// never.
func instantOr(a health.Age, base, now balance.Instant, never int64) int64 {
	if !a.Known() {
		return never
	}
	return int64(min(a.At(base), now))
}

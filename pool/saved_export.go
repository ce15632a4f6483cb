// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"math"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Export returns what the pool knows now, for Restore in another process. What
// requests have reported until now is weighed first. It takes the core's lock
// while it copies, as Snapshot does; requests do not notice.
func (p *Pool) Export() Saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		for m := p.takeMarked(); m != nil; {
			rest := m.next
			m.next = nil // before the marks, as in Advance
			p.step(event{kind: evCrossed, m: m, marks: m.marks.Swap(0)})
			m = rest
		}
	}
	return p.core.export(p.now())
}

// Activity returns a number that changes whenever something has happened that an
// Export would show: requests, probes, what falls due, somebody's word. That time
// has passed is nothing that happened.
func (p *Pool) Activity() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.core.happened + p.budget.Load().total()
	for _, m := range p.core.order {
		all, _ := m.requests()
		n += all
	}
	return n
}

// age is health.AgeOf for what may never have happened.
func age(now, at balance.Instant, ever bool) health.Age {
	if !ever {
		return 0
	}
	return health.AgeOf(now, at)
}

// agePast is age for what requests write: never is the least instant there is.
func agePast(now balance.Instant, at int64) health.Age {
	return age(now, balance.Instant(at), at != math.MinInt64)
}

func (c *core) export(now balance.Instant) Saved {
	s := Saved{
		Budget: c.hot.budget.Load().export(now), Stats: c.exportStats(now),
		Ready: c.ready, Lit: c.lit, Dark: c.dark, Served: c.served,
	}
	if c.gate != nil {
		s.Ramp = exportRamp(now, c.gate)
	}
	if a := c.hot.set.Load().adaptive; a != nil {
		s.Adaptive = a.knee.export(now)
	}
	for id, o := range c.overrides {
		s.Overrides = append(s.Overrides, o.export(now, id))
	}
	slices.SortFunc(s.Overrides, func(a, b SavedOverride) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range c.tiers {
		x := SavedTier{Level: t.level, Shared: t.shared, Spent: t.spent}
		t.exportNamed(now, &x)
		for name, spent := range t.zones {
			if spent {
				x.Zones = append(x.Zones, name)
			}
		}
		slices.Sort(x.Zones)
		if x.Shared || x.Spent || x.Zones != nil || x.Named > 0 {
			s.Tiers = append(s.Tiers, x)
		}
	}
	turnedAt := map[*member]balance.Instant{}
	for _, t := range c.tiers {
		for _, l := range t.lately {
			if l.m.core.notReady && l.m.core.tier == t {
				turnedAt[l.m] = l.at // the latest counts
			}
		}
	}
	s.Backends = make([]SavedBackend, len(c.order))
	for i, m := range c.order {
		m.export(now, &s.Backends[i])
		if at, ok := turnedAt[m]; ok {
			s.Backends[i].NotReady = health.AgeOf(now, at)
		}
	}
	return s
}

func (o *override) export(now balance.Instant, id string) SavedOverride {
	out := SavedOverride{ID: id}
	if o.hasAdmin {
		out.Admin, out.AdminSince, out.DeadlineNS = o.admin.String(), health.AgeOf(now, o.adminSince), int64(o.deadline)
	}
	if o.hasWeight {
		w := o.weight
		out.Weight, out.WeightSince = &w, health.AgeOf(now, o.weightSince)
	}
	return out
}

func exportRamp(now balance.Instant, r *balance.Ramp) SavedRamp {
	return SavedRamp{Start: health.AgeOf(now, r.Start), WindowNS: int64(r.Window), From: r.From}
}

func (m *member) export(now balance.Instant, out *SavedBackend) {
	s, mode, run := m.core, m.mode.Load(), m.run.Load()
	untimed := m.untimed.Load() // first, as it is written last
	*out = SavedBackend{
		ID: s.spec.ID, URL: s.spec.URL,
		Health: s.health.Export(now), Pressure: s.pressure.Export(now),
		Learned: m.b.Learned(now),
		Added:   health.AgeOf(now, s.since), Changed: health.AgeOf(now, balance.Instant(m.since.Load())),
		LastGood: agePast(now, m.lastGood.Load()), Idle: age(now, s.idle, !s.took), Took: s.took,
		BadRun: uint32(run), ConnRun: uint32(run >> 32), GoodRun: m.goodRun.Load(),
		ByShare: mode&modeShare != 0, BySlow: mode&modeSlow != 0,
		Count: SavedCount{
			Answers: m.answers.Load(), LatencyNS: m.latency.Load(), Failed: m.failed.Load(), Faults: m.faults.Load(),
			Others: m.others.Load(), ServerErrors: m.serverErrors.Load(), Failings: m.failings.count.Load(),
			Untimed: untimed, BadTimed: m.badTimed.Load(), BadLatencyNS: m.badLatency.Load(),
		},
		Slow: SavedSlow{
			LimitNS: m.slowness.limit.Load(), Count: m.slowness.count.Load(), Run: m.slowness.run.Load(),
			Who: m.slowness.who.export(), Asked: mode&modeSlowAsk != 0,
			Suspected: age(now, s.slowAt, mode&modeSlowAsk != 0),
		},
		Probe: SavedProbe{
			Started: age(now, s.started, s.probes > 0), Count: s.probes, Again: s.again, First: s.round,
			Passed: s.passed, Failed: s.failRun, Failing: age(now, s.failSince, s.failRun > 0), OwnFails: s.ownFails, OwnPasses: s.ownPasses,
			Next: age(now, s.timers[timerProbe].at, s.timers[timerProbe].pos != 0),
		},
	}
	if l := &s.last; l.Done {
		out.Check = &SavedCheck{At: health.AgeOf(now, l.At), OK: l.OK, Outcome: l.Outcome.String(), Status: l.Status, Error: l.Error}
		if l.Cause != health.CauseNone {
			out.Check.Cause = l.Cause.String()
		}
	}
	if r := m.b.Ramp(); r != nil {
		out.Ramp = exportRamp(now, r)
	}
	m.exportFacts(now, &out.Facts)
	m.exportWindows(&out.Windows)
	m.exportSigns(now, &out.Signs)
}

func (m *member) exportFacts(now balance.Instant, f *SavedFacts) {
	s := m.core
	f.Failed, f.LastConn = age(now, s.fact, s.hasFact), agePast(now, m.lastConn.Load())
	f.Accused, f.Out = age(now, s.accused, s.byWork), s.returning
	f.Ends = age(now, s.timers[timerFact].at, s.timers[timerFact].pos != 0)
	if c := health.Cause(m.connCause.Load()); c != health.CauseNone {
		f.Cause = c.String()
	}
}

func (m *member) exportWindows(w *SavedWindows) {
	s := m.core
	for i, b := range s.base {
		w.Base[i] = SavedTally{b.answers, b.bad, b.faults, b.failures}
	}
	w.Errors, w.ErrorsTwo = m.errWho.export(), s.errTwoBefore
	w.Fails, w.FailsTwo = m.failings.who.export(), s.failTwoBefore
	w.Watched, w.Asked, w.EWMA = s.watched, m.shareAsk.Load(), s.ewma
	w.SeenAnswers, w.SeenLatencyNS, w.SeenBad, w.SeenBadNS = s.seenAnswers, s.seenLatency, s.seenBad, s.seenBadLatency
	var from, before histogramCopy
	if s.hist != nil {
		from, before, w.Turned = s.hist[0], s.hist[1], true
	}
	for i := range m.hist {
		// Modulo 2^32, as they are counted.
		if n := m.hist[i].Load() - from[i]; n != 0 {
			w.Hist = append(w.Hist, [2]uint32{uint32(i), n})
		}
		if n := before[i] - from[i]; n != 0 {
			w.HistBefore = append(w.HistBefore, [2]uint32{uint32(i), n})
		}
	}
}

func (m *member) exportSigns(now balance.Instant, g *SavedSigns) {
	x := &m.core.pressure
	*g = SavedSigns{
		Count: m.signs.count.Load(), Two: x.before, Who: m.signs.who.export(),
		Since: age(now, balance.Instant(m.signs.since.Load()), m.signs.since.Load() != 0), AskedNS: m.signs.asked.Load(),
		Listed: x.listed, Asked: m.signs.ask.Load(),
	}
	for i, b := range x.base {
		g.Base[i] = [2]uint64{b.answers, b.signs}
	}
}

func (a *addresses) export() SavedAddresses {
	s := SavedAddresses{Two: a.two.Load()}
	if !s.Two {
		s.First = a.first.Load() // with two it means nothing
	}
	return s
}

func (b *budget) export(now balance.Instant) SavedBudget {
	s := SavedBudget{WindowNS: int64(b.part) * budgetSlots, Requests: b.total(), Retries: b.retries.Load()}
	part := b.partOf(now)
	for i := range b.slots {
		slot := &b.slots[i]
		x := SavedBudgetPart{Ago: part - slot.part.Load(), Retries: slot.retries.Load()}
		for j := range slot.requests {
			x.Requests += slot.requests[j].n.Load()
		}
		if x.Ago >= 0 && x.Ago < budgetSlots && (x.Requests > 0 || x.Retries > 0) {
			s.Parts = append(s.Parts, x)
		}
	}
	slices.SortFunc(s.Parts, func(a, b SavedBudgetPart) int { return cmp.Compare(a.Ago, b.Ago) })
	return s
}

func (c *core) exportStats(now balance.Instant) SavedStats {
	st := &c.stats
	s := SavedStats{
		Last: age(now, st.last, st.ever), Next: age(now, st.next, c.started), Turned: age(now, st.shareAt, st.ever),
		Compared: age(now, st.outliersAt, st.outliersAt != 0),
		Mean:     st.mean, MeanNS: c.hot.mean.Load(), HistAt: st.histAt & math.MaxInt32, Clients: c.hot.clients.export(), Two: st.twoBefore,
		Refused: c.hot.refused.Load(), MeanAt: age(now, st.meanAt, st.meanAt != 0),
	}
	for _, x := range st.sums {
		s.Sums = append(s.Sums, SavedSum{health.AgeOf(now, x.at), x.good, x.bad})
	}
	if c.dark {
		s.Dark = SavedSum{Good: st.darkSince.good, Bad: st.darkSince.bad}
	}
	return s
}

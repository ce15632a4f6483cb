// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// spreadProbes is how many first probes may start together; in larger pools
// they are spread.
const spreadProbes = 256

// identity is what makes a backend: the same id at another address is another
// one.
type identity struct{ id, url string }

func (s *Spec) identity() identity { return identity{s.ID, s.URL} }

// update brings the membership to what specs say. The first spec of an id
// counts.
func (c *core) update(now balance.Instant, specs []Spec) {
	specs = c.subset(specs)
	first := c.cfg.First && !c.updated
	c.updated = true
	c.updates++
	order := make([]*member, 0, len(specs))
	fresh := 0
	for i := range specs {
		s := &specs[i]
		m, added := c.byID[s.ID], false
		switch {
		case m != nil && m.core.seen == c.updates:
			continue // named twice
		case m != nil && m.core.spec.URL == s.URL:
		case c.leaving[s.identity()] != nil:
			m = c.leaving[s.identity()]
			c.revive(now, m)
		default:
			m = c.add(now, *s, first, &fresh)
			added = true
		}
		m.core.seen = c.updates
		c.byID[s.ID] = m
		order = append(order, m)
		if m.core.spec != *s || m.core.class == out0 || m.core.tier != c.tierOf(s) {
			c.respec(m, *s, false)
		}
		if added {
			c.remember(now, m, &fresh)
		}
	}
	for _, m := range c.order {
		if m.core.seen != c.updates {
			if c.byID[m.core.spec.ID] == m {
				delete(c.byID, m.core.spec.ID)
			}
			c.remove(now, m)
		}
	}
	c.dirty = c.dirty || !c.ever || !slices.Equal(order, c.order)
	c.order = order
	c.pruneTiers()
	c.alarm.stale, c.stats.inWindow = true, false
}

// add makes a new member. Its first probe is due at once; in a large pool the
// first probes are spread by half a millisecond each, up to an interval.
func (c *core) add(now balance.Instant, s Spec, first bool, fresh *int) *member {
	m := c.attach(s)
	c.seq++
	m.seq = c.seq
	st := m.core
	st.spec, st.tier, st.since = Spec{ID: s.ID, URL: s.URL}, c.tierOf(&s), now
	st.health.Init(now, &c.cfg.Active, &c.cfg.Passive, first)
	m.since.Store(int64(now))
	m.b.SetShare(st.health.Share())
	c.establish(m, first)
	m.b.SetLimit(c.cfg.Limits.BackendRequests)
	c.setMode(m)
	if c.cfg.Active.Enabled {
		at := now
		if *fresh++; *fresh > spreadProbes {
			at = c.spread(now, *fresh)
		}
		c.timers.set(m, timerProbe, at)
		if !c.ready {
			st.round = true
			c.awaited++
		}
	}
	c.notice(m, Notice{Kind: Added, To: st.health.State(), Share: st.health.Share(), Reason: st.health.Reason()})
	return m
}

// spread returns when the nth of many probes begins that are due at once.
func (c *core) spread(now balance.Instant, n int) balance.Instant {
	return now.Add(min(time.Duration(n-spreadProbes)*500*time.Microsecond, c.cfg.Active.Interval))
}

// respec takes weight, zone and tier of a member from its spec, and what the
// operator says; again, when that was just said.
func (c *core) respec(m *member, s Spec, again bool) {
	st := m.core
	old := st.weight
	if t := c.tierOf(&s); t != st.tier {
		// Leave the counters of one tier before entering those of the other.
		st.weight = 0
		c.recount(m)
		if st.floored {
			st.floored = false // by the floor of the tier it leaves
			m.b.SetShare(st.health.Share())
		}
		st.tier, old = t, 0
		c.dirty = true
	}
	c.dirty = c.dirty || s.Zone != st.spec.Zone
	st.spec, st.weight = s, s.Weight
	o := c.overrides[s.ID]
	if o != nil && o.hasWeight {
		st.weight = o.weight
	}
	if st.weight != old {
		c.dirty = true
	}
	c.setAdmin(m, o, again)
	c.recount(m)
}

// setAdmin puts the operator's word into force; again, when it was just said.
func (c *core) setAdmin(m *member, o *override, again bool) {
	want := balance.Enabled
	var deadline time.Duration
	if o != nil && o.hasAdmin {
		want, deadline = o.admin, o.deadline
	}
	if m.b.Admin() == want && (!again || want == balance.Enabled) {
		return
	}
	keep := want == balance.Draining && c.cfg.KeepSessions
	if keep {
		m.keeps.Store(true) // before anybody can see that it drains
	}
	m.b.SetAdmin(want)
	if want == balance.Enabled {
		m.core.drain = false
		m.keeps.Store(false)
		c.noDeadline(m)
		c.setMode(m)
	} else {
		if want == balance.Disabled {
			deadline = -1
		}
		c.drain(m, deadline)
		if !keep {
			c.endSessions(m)
		}
	}
	c.recount(m)
}

// drain lets the work in flight finish. deadline 0 is the pool's, below 0 none.
// Said of a backend that drains already it moves the deadline; a removal moves
// it to no later than it was.
func (c *core) drain(m *member, deadline time.Duration) {
	s := m.core
	if deadline == 0 {
		deadline = c.cfg.DrainDeadline
	}
	already, before := s.drain, s.deadline
	s.drain, s.deadline = true, 0
	if !already {
		s.cut = 0
	}
	c.noDeadline(m)
	c.setMode(m)
	left, keep := m.b.InFlight(), m.keeps.Load()
	s.unempty = s.unempty && already || left > 0 || keep
	if !already && (left > 0 || !s.leaving) {
		c.notice(m, Notice{Kind: DrainBegan, Left: left, For: max(deadline, 0), Sessions: keep})
	}
	if !keep {
		c.do(effect{kind: doCloseIdle, m: m})
	}
	if left == 0 && !keep {
		if !already && !s.leaving {
			c.notice(m, Notice{Kind: DrainEmpty})
		}
		return
	}
	if deadline > 0 {
		s.deadline = c.now.Add(deadline)
	}
	if s.leaving && already && before != 0 && (s.deadline == 0 || before < s.deadline) {
		s.deadline = before
	}
	if s.deadline != 0 {
		c.setDeadline(m)
	}
}

// setDeadline waits for the deadline of a drain, and for the time before it in
// which tunnels are ended.
func (c *core) setDeadline(m *member) {
	c.timers.set(m, timerDrain, m.core.deadline)
	if c.cfg.DrainSpread > 0 {
		c.timers.set(m, timerLast, max(m.core.deadline.Add(-c.cfg.DrainSpread), c.now))
	}
}

func (c *core) noDeadline(m *member) {
	c.timers.stop(m, timerDrain)
	c.timers.stop(m, timerLast)
}

// drainEnding says that a drain's deadline is near.
func (c *core) drainEnding(m *member) {
	c.endSessions(m)
	if left := m.b.InFlight(); left > 0 && m.core.drain {
		c.notice(m, Notice{Kind: DrainEnding, Left: left, For: m.core.deadline.Sub(c.now)})
	}
}

// drainOver says that a drain's deadline has passed.
func (c *core) drainOver(m *member) {
	c.endSessions(m)
	if left := m.b.InFlight(); left > 0 && m.core.drain {
		m.core.cut += left
		c.notice(m, Notice{Kind: DrainOver, Left: left})
	}
}

// emptied takes the news that nothing is in flight on a watched member.
func (c *core) emptied(m *member) {
	s := m.core
	if s.gone || m.b.InFlight() != 0 || m.keeps.Load() || !s.drain && !s.leaving {
		return
	}
	if s.drain && s.unempty {
		s.unempty = false
		c.noDeadline(m)
		c.notice(m, Notice{Kind: DrainEmpty})
	}
	if s.leaving {
		c.retire(m)
	}
}

// remove takes a member out. It lives on until nothing is in flight on it.
func (c *core) remove(now balance.Instant, m *member) {
	c.endSessions(m)
	s := m.core
	s.leaving = true
	if s.round {
		s.round = false
		c.awaited--
	}
	for _, kind := range []int{timerProbe, timerEject, timerFact} {
		c.timers.stop(m, kind)
	}
	c.leaving[s.spec.identity()] = m
	s.floored = false
	m.b.SetAdmin(balance.Draining)
	c.recount(m)
	c.countOut(m)
	c.dirty = true
	c.notice(m, Notice{Kind: Removed, Left: m.b.InFlight()})
	grace := time.Duration(0)
	if s.spec.ID == c.dismissed {
		grace = c.grace
	}
	c.drain(m, grace)
	if m.b.InFlight() == 0 {
		c.retire(m)
	}
}

// dismiss takes an id out of the membership by somebody's word, and with it the
// operator's.
func (c *core) dismiss(now balance.Instant, id string, specs []Spec, deadline time.Duration) {
	c.dismissed, c.grace = id, deadline
	c.update(now, specs)
	c.dismissed, c.grace = "", 0
	if c.byID[id] != nil || c.outside[id] {
		return
	}
	delete(c.overrides, id)
	var of []*member // one address of an id may have followed another
	for _, m := range c.leaving {
		if m.core.spec.ID == id && deadline != 0 {
			of = append(of, m)
		}
	}
	slices.SortFunc(of, func(a, b *member) int { return cmp.Compare(a.seq, b.seq) })
	for _, m := range of {
		s := m.core
		s.deadline = now.Add(max(deadline, 0))
		if deadline > 0 {
			c.setDeadline(m)
			continue
		}
		c.noDeadline(m)
		c.drainOver(m)
	}
}

// retire forgets a removed member on which nothing is in flight.
func (c *core) retire(m *member) {
	m.core.gone = true
	c.noDeadline(m)
	delete(c.leaving, m.core.spec.identity())
	c.do(effect{kind: doGone, m: m})
}

// revive takes a removed member back that has not gone yet, with all that is
// known of it.
func (c *core) revive(now balance.Instant, m *member) {
	s := m.core
	delete(c.leaving, m.core.spec.identity())
	s.leaving, s.drain = false, false
	m.b.SetAdmin(balance.Enabled)
	m.shareAsk.Store(s.watched) // what was asked in between nobody has looked at
	m.signs.ask.Store(s.pressure.listed)
	c.noDeadline(m)
	c.judge(now, m, func(h *health.Machine) { h.Tick(now) })
	if last := balance.Instant(m.lastConn.Load()); last > s.fact {
		s.fact = last
	}
	if now.Sub(s.fact) < health.FactTime && (s.hasFact || int64(s.fact) == m.lastConn.Load()) {
		c.setFact(now, m, s.fact)
	} else {
		c.clearFact(now, m)
	}
	if c.cfg.Active.Enabled && !s.probing {
		c.timers.set(m, timerProbe, max(now, s.started.Add(c.cfg.Active.FastInterval)))
	}
	c.notice(m, Notice{Kind: Added, To: s.health.State(), Share: s.health.Share(), Reason: s.health.Reason(), Why: "revived"})
}

// override takes the operator's word about one id.
func (c *core) override(now balance.Instant, id string, w Override) {
	o := c.overrides[id]
	if o == nil {
		o = &override{}
		c.overrides[id] = o
	}
	var said []string
	if w.Admin != nil {
		o.admin, o.adminSince, o.deadline = *w.Admin, now, w.Deadline
		o.hasAdmin = *w.Admin != balance.Enabled
		said = append(said, w.Admin.String())
	}
	switch {
	case w.ResetWeight:
		o.hasWeight = false
		said = append(said, "weight reset")
	case w.Weight != nil:
		o.weight, o.hasWeight, o.weightSince = *w.Weight, true, now
		said = append(said, fmt.Sprintf("weight %d", *w.Weight))
	}
	if !o.hasAdmin && !o.hasWeight {
		delete(c.overrides, id)
	}
	m := c.byID[id]
	if m == nil {
		said = append(said, id+" is in the subsets of other balancers")
	}
	c.notice(m, Notice{Kind: Overridden, Why: strings.Join(said, ", ")})
	if m != nil {
		c.respec(m, m.core.spec, w.Admin != nil)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Slow start. Whoever takes work again after taking none begins small: a backend
// added later, after its first pass; one that recovered; one that the operator
// let back in; one whose discovery flapped. It does not matter for how long it was
// out: a restart takes no longer than a flap, and of the two only the restart
// leaves cold caches, which nobody tells us. So a flap of seconds begins anew.
//
// It does not begin
//
//   - at the process's first configuration: that is weir's start, not the fleet's;
//   - when a suspicion is cleared: nothing was taken away but a preference;
//   - for one that worked while it was out, because panic or the floor kept it in;
//   - at the end of an ejection, but at the end of the probation that follows, which
//     is smaller still.
//
// The ramp is a pure function of the time of a pick (balance.Ramp). Panicked sets
// ignore it as they ignore all shares, and where everybody ramps, as after a
// deploy of the whole pool, shares are relative and nobody is held back.

// establish makes a new member one that has always worked, or not.
func (c *core) establish(m *member, first bool) {
	m.core.took, m.core.idle = first, c.now
	if first { // some may not work at all: drained, or of weight 0
		m.core.moved = true
		c.moved = append(c.moved, m)
	}
}

// settleRamps looks at the members that moved to another class in this step.
func (c *core) settleRamps(now balance.Instant) {
	for _, m := range c.moved {
		s := m.core
		s.moved = false
		takes := s.class == serving
		if takes == s.took {
			continue
		}
		s.took = takes
		switch {
		case !takes:
			s.idle = now
			c.endRamp(m)
		case s.health.Probation():
		case c.workedMeanwhile(now, m):
		default:
			c.beginRamp(now, m, 0)
		}
	}
	clear(c.moved)
	c.moved = c.moved[:0]
	c.settlePoolRamp(now)
}

// workedMeanwhile reports that a member which was out has answered real requests
// begun since, and lately.
func (c *core) workedMeanwhile(now balance.Instant, m *member) bool {
	last := balance.Instant(m.lastGood.Load())
	return last >= m.core.idle && now.Sub(last) < health.FactTime
}

// beginRamp starts a member's slow start, at no less than a share it has proven
// already.
func (c *core) beginRamp(now balance.Instant, m *member, proven float64) {
	w := &c.cfg.SlowStart
	if w.Window <= 0 || w.From >= 1 {
		return
	}
	r := &balance.Ramp{Start: now, Window: w.Window, From: max(w.From, proven)}
	m.b.SetRamp(r)
	c.timers.set(m, timerRamp, now.Add(w.Window))
	c.notice(m, Notice{Kind: SlowStartBegan, Reason: health.ReasonSlowStart, Share: m.b.ShareAt(now), For: w.Window})
}

// endRamp ends it, in time or because the member went out.
func (c *core) endRamp(m *member) {
	m.b.SetRamp(nil)
	c.timers.stop(m, timerRamp)
}

// settlePoolRamp starts the ramp of the whole pool when somebody serves again
// after nobody did. A pool that has never given a good answer is starting, not
// coming back; and one that went on answering well in panic was never away, its
// checks were.
func (c *core) settlePoolRamp(now balance.Instant) {
	w := &c.cfg.SlowStart
	if w.PoolRamp <= 0 {
		return
	}
	if c.gate != nil && now >= c.gate.Start.Add(c.gate.Window) {
		c.gate, c.dirty = nil, true
	}
	switch serves := c.serving() > 0; {
	case serves && c.dark:
		c.lit = true // it may be over with the next event
		if c.dark = false; c.wentOn(now) {
			break
		}
		c.gate, c.dirty = &balance.Ramp{Start: now, Window: w.PoolRamp, From: w.From}, true
		c.notice(nil, Notice{Kind: SlowStartBegan, Reason: health.ReasonSlowStart, Share: w.From, For: w.PoolRamp, Why: "the pool had nobody left"})
	case serves:
		c.lit = true
	case c.lit:
		c.lit = false
		if c.served = c.served || c.anyGood(); c.served {
			c.dark, c.stats.darkSince = true, c.traffic()
		}
		c.dirty = c.dirty || c.gate != nil
		c.gate = nil
	}
}

// wentOn reports that real requests went well while nobody served, some of them
// begun lately and not just finished then.
func (c *core) wentOn(now balance.Instant) bool {
	return c.traffic().succeedsSince(c.stats.darkSince) &&
		slices.ContainsFunc(c.order, func(m *member) bool { return c.workedMeanwhile(now, m) })
}

// anyGood reports whether the pool has given a good answer. Members that left
// were asked when they did.
func (c *core) anyGood() bool {
	for _, m := range c.order {
		if m.answers.Load() > m.failed.Load() {
			return true
		}
	}
	for _, m := range c.leaving {
		if m.answers.Load() > m.failed.Load() {
			return true
		}
	}
	return false
}

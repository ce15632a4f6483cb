// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// class is how a member counts toward panic. Members that are draining,
// disabled or of weight 0 count nowhere (out0).
type class uint8

const (
	out0        class = iota
	serving           // has a share
	opinion           // excluded by probes, answers or latency: opinions
	unreachable       // excluded, and its last connection attempt failed: a fact; or on its way back from one
	notReady          // says so itself
	waiting           // unproven, gets nothing until its first pass
	classes
)

// classify says how a member counts now. One that was out of reach goes on
// counting as such after its fact is over, until it serves or something else
// speaks against it, where panic means less work instead of more: otherwise its
// first passed probe would make it an opinion for the time that its rise takes,
// and a fleet on its way back would be refused the requests that those left had
// served all along. Where panic serves, the first pass makes it one to be tried.
func (m *member) classify() class {
	s := m.core
	switch {
	case s.leaving || s.weight == 0 || m.b.Admin() != balance.Enabled:
		return out0
	case s.health.Share() > 0:
		return serving
	case s.hasFact, s.returning && m.p.cfg.Panic.Then != ThenServe && s.health.Reason() != health.ReasonEjected:
		return unreachable
	case s.health.State() == health.StateNotReady:
		return notReady
	case s.health.Waiting():
		return waiting
	default:
		return opinion
	}
}

// recount files a member under its present class. In comes and goes, so the
// view is out of date.
func (c *core) recount(m *member) {
	s := m.core
	now := m.classify()
	s.returning = now == unreachable
	c.proven = c.proven || now == serving && s.health.State() != health.StateUnproven
	low := now == serving && c.atFloor(m)
	left := float32(1) // of its weight
	if now == serving && s.overloaded() {
		left = float32(m.b.Share())
	}
	if now == s.class && s.weight == s.mass && low == s.low && left == s.left {
		return
	}
	s.left = left
	if now != s.class && !s.moved {
		s.moved = true
		c.moved = append(c.moved, m)
	}
	s.tier.file(s, now, s.weight, low)
	s.tier.turnedNotReady(c.now, m, now == notReady)
	c.dirty, c.alarm.stale = true, true
}

// alarm is what the pool as a whole concludes.
type alarm struct {
	stale    bool // a class has changed since the last look
	said     bool // some tier panics, and that was said aloud
	why      string
	shedding bool

	together   bool // it is to be looked at what fails together
	correlated correlation
}

// turned is when a member turned not_ready.
type turned struct {
	m  *member
	at balance.Instant
}

// reckon decides on panic, the floor and what follows, tier by tier.
//
// A tier panics when fewer than the threshold of it serve and the other tiers do
// not make up for it: they do when together they can take the whole load (then
// work goes to backends that are known to be good, and nobody's health need be
// doubted). Where the answer to panic is failover, that is what panicking means,
// so there the others are not asked.
func (c *core) reckon(now balance.Instant) {
	a := &c.alarm
	if !a.stale {
		return
	}
	a.stale = false
	serve, faithful := 0, false
	for _, t := range c.tiers {
		c.reckonShared(now, t)
		t.total = t.counts[serving] + t.counts[opinion] + btoi(t.shared)*t.counts[notReady]
		serve += btoi(t.counts[serving] > 0)
		faithful = faithful || t.total+t.counts[notReady] > 0
	}
	c.correlate(now) // said before what follows from it
	shedding, why, enough := false, "", c.reach() >= 1-1e-9
	for i, t := range c.tiers {
		others := serve > btoi(t.counts[serving] > 0)
		open, loud := c.doubts(t, serve == 0, others && enough)
		if loud && c.cfg.Panic.Then == ThenShed && faithful {
			shedding, open = true, false
		}
		c.dirty = c.dirty || open != t.open || loud != t.loud
		t.open, t.loud = open, loud
		if loud {
			why = t.lament(why, i == 0)
		}
	}
	c.dirty = c.dirty || shedding || a.shedding // admit moves with every change
	a.shedding = shedding
	if said := why != ""; said != a.said {
		a.said = said
		n := Notice{Kind: PanicEnded, Why: why}
		if said {
			n.Kind = PanicBegan
			if !c.proven && !c.anyGood() {
				n.Why += "; none has answered well since weir began: still starting, or never there?"
			}
		}
		c.notice(nil, n)
	}
	a.why = why
	for _, t := range c.tiers {
		c.reckonFloor(t, t.open || shedding && t.loud || c.cfg.Panic.Off)
	}
}

// doubts decides whether a tier sets opinions aside, and whether that is a panic.
// alone: nobody in the whole pool serves. helped: the other tiers can do without
// this one.
func (c *core) doubts(t *tier, alone, helped bool) (open, loud bool) {
	n, p := &t.counts, &c.cfg.Panic
	excluded := n[opinion] + n[unreachable] + n[notReady]
	below := float64(n[serving]) < p.Threshold*float64(t.total)-1e-9
	switch {
	case p.Off:
		return false, false
	case p.Then == ThenFailover && (below || n[serving] == 0 && excluded > 0 && (p.Floor > 0 || p.Threshold > 0)):
		return true, true
	case helped:
		return false, false
	case below:
		return true, true
	case alone && (p.Floor > 0 || p.Threshold > 0):
		// Nobody is left: rather an attempt than a refusal. Newcomers that
		// wait for their first probe are no alarm.
		return excluded+n[waiting] > 0, excluded > 0
	default:
		return false, false
	}
}

// lament adds to the words about a panic what a tier contributes.
func (t *tier) lament(why string, first bool) string {
	if why != "" {
		why += "; "
	}
	if !first {
		why += t.name() + ": "
	}
	all := t.total + t.counts[unreachable]
	if !t.shared {
		all += t.counts[notReady] // as many as the threshold leaves out, but the words are about the pool
	}
	why += fmt.Sprintf("%d of %d serving", t.counts[serving], all)
	if t.shared {
		why += ", not_ready from many at once while traffic succeeds: a shared dependency?"
	}
	return why
}

// admit returns the part of the requests that the serving members can take
// while shedding: at the threshold they carry 1/threshold of their usual load,
// and never more below it.
func (c *core) admit() float64 {
	sum := 0.0
	for _, t := range c.tiers {
		serves := float64(t.counts[serving])
		want := c.cfg.Panic.Threshold * float64(t.total)
		if serves == 0 || want <= 0 {
			sum += min(serves, 1)
		} else {
			sum += min(serves/want, 1)
		}
	}
	return min(sum, 1)
}

// reckonFloor keeps the floor: opinions never take a tier below so many
// serving members. The last excluded come back first; those that said so
// themselves only when no other opinion is left.
func (c *core) reckonFloor(t *tier, off bool) {
	n := &t.counts
	need := 0
	if !off && n[serving] > 0 {
		need = min(c.cfg.Panic.Floor-n[serving], n[opinion]+n[notReady])
	}
	if need <= 0 && t.floored == 0 {
		return
	}
	for _, m := range c.order {
		if s := m.core; s.tier == t && s.floored {
			s.floored = false
			m.b.SetShare(s.health.Share())
			c.dirty = true
		}
	}
	t.floored, t.flooredMass = 0, 0
	var back []*member
	for _, m := range c.order {
		if s := m.core; need > 0 && s.tier == t && (s.class == opinion || s.class == notReady) {
			back = append(back, m)
		}
	}
	slices.SortStableFunc(back, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.core.class, b.core.class), cmp.Compare(b.core.health.Since(), a.core.health.Since()))
	})
	for _, m := range back[:max(min(need, len(back)), 0)] {
		m.core.floored = true
		t.floored++
		t.flooredMass += uint64(m.core.weight)
		m.b.SetShare(1)
		c.dirty = true
	}
}

// turnedNotReady notes who turned not_ready, or no longer is.
func (t *tier) turnedNotReady(now balance.Instant, m *member, is bool) {
	s := m.core
	if s.notReady == is {
		return
	}
	s.notReady = is
	if !is {
		t.latelyLive--
		return
	}
	t.latelyLive++
	t.lately = append(t.lately, turned{m, now})
}

// fallWindow is the time in which probes take a backend out.
func (c *core) fallWindow() time.Duration {
	return time.Duration(max(c.cfg.Active.Fall, 1)) * c.cfg.Active.Interval
}

// reckonShared recognises a shared dependency: more than 1 - threshold of the
// pool turned not_ready within fall x interval while its traffic succeeds. A
// rolling restart turns them one after the other, and is believed.
func (c *core) reckonShared(now balance.Instant, t *tier) {
	n := &t.counts
	window := c.fallWindow()
	for len(t.lately) > 0 && now.Sub(t.lately[0].at) > window {
		m := t.lately[0].m
		t.lately = t.lately[1:]
		if m.core.tier == t && m.core.notReady && now.Sub(m.core.health.Since()) > window {
			m.core.notReady = false
			t.latelyLive--
		}
	}
	total := float64(n[serving] + n[opinion] + n[notReady])
	most := (1 - c.cfg.Panic.Threshold) * total
	switch {
	case !t.shared && n[notReady] > 0 && float64(t.latelyLive) > most+1e-9 && c.trafficSucceeds(now, window):
		t.shared = true
		t.sharedWhy = fmt.Sprintf("%d of %d turned not_ready within %v while traffic succeeds", t.latelyLive, int(total), window)
		t.correlated.why = "" // named anew, with these words
		c.dirty, c.alarm.together = true, true
	case t.shared && float64(n[notReady]) <= most+1e-9:
		t.shared = false
		c.dirty, c.alarm.together = true, true
	}
}

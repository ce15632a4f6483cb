// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
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
	unreachable       // excluded, and its last connection attempt failed: a fact
	notReady          // says so itself
	waiting           // unproven, gets nothing until its first pass
	classes
)

// classify says how a member counts now.
func (m *member) classify() class {
	s := m.core
	switch {
	case s.leaving || s.weight == 0 || m.b.Admin() != balance.Enabled:
		return out0
	case s.health.Share() > 0:
		return serving
	case s.hasFact:
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
	if now == s.class {
		return
	}
	tier := btoi(s.backup)
	if s.class != out0 {
		c.counts[tier][s.class]--
	}
	if now != out0 {
		c.counts[tier][now]++
	}
	if tier == 0 {
		c.turnedNotReady(m, now == notReady)
	}
	s.class = now
	c.dirty = true
	c.alarm.stale = true
}

// alarm is what the pool as a whole concludes.
type alarm struct {
	stale    bool // a class has changed since the last look
	open     bool // opinions are set aside when the pickers are built
	said     bool // and that was said aloud: it is a panic
	why      string
	shared   bool // not_ready is taken for a shared dependency
	total    int  // members that the threshold counts against
	shedding bool
	floored  int // members that the floor keeps in

	lately     []turned // members that turned not_ready within fall x interval
	latelyLive int      // of them, those that still are
}

// turned is when a member turned not_ready.
type turned struct {
	m  *member
	at balance.Instant
}

// reckon decides on panic, the floor and what follows.
func (c *core) reckon(now balance.Instant) {
	a := &c.alarm
	if !a.stale {
		return
	}
	a.stale = false
	c.reckonShared(now)
	n, p := &c.counts[0], &c.cfg.Panic
	total := n[serving] + n[opinion]
	if a.shared {
		total += n[notReady]
	}
	a.total = total
	excluded := n[opinion] + n[unreachable] + n[notReady]
	open, loud := false, false
	switch {
	case p.Off:
	case float64(n[serving]) < p.Threshold*float64(total)-1e-9:
		open, loud = true, true
	case n[serving] == 0 && (p.Floor > 0 || p.Threshold > 0):
		// Nobody is left: rather an attempt than a refusal. Newcomers that
		// wait for their first probe are no alarm.
		open, loud = excluded+n[waiting] > 0, excluded > 0
	}
	shedding := open && loud && p.Then == ThenShed && total+n[notReady] > 0
	if open != a.open || shedding != a.shedding {
		c.dirty = true
	}
	if shedding {
		c.dirty = true // admit moves with every change
		open = false
	}
	a.open, a.shedding = open, shedding
	if loud {
		a.why = fmt.Sprintf("%d of %d serving", n[serving], total+n[unreachable])
		if a.shared {
			a.why += ", not_ready from many at once while traffic succeeds: a shared dependency?"
		}
	}
	if loud != a.said {
		a.said = loud
		kind := PanicEnded
		if loud {
			kind = PanicBegan
		} else {
			a.why = ""
		}
		c.notice(nil, Notice{Kind: kind, Why: a.why})
	}
	c.reckonFloor(open || shedding || p.Off)
}

// admit returns the part of the requests that the serving members can take
// while shedding: at the threshold they carry 1/threshold of their usual load,
// and never more below it.
func (c *core) admit() float64 {
	serves := float64(c.counts[0][serving])
	want := c.cfg.Panic.Threshold * float64(c.alarm.total)
	if serves == 0 || want <= 0 {
		return min(serves, 1)
	}
	return min(serves/want, 1)
}

// reckonFloor keeps the floor: opinions never take the pool below so many
// serving members. The last excluded come back first; those that said so
// themselves only when no other opinion is left.
func (c *core) reckonFloor(off bool) {
	n, a := &c.counts[0], &c.alarm
	need := 0
	if !off && n[serving] > 0 {
		need = min(c.cfg.Panic.Floor-n[serving], n[opinion]+n[notReady])
	}
	if need <= 0 && a.floored == 0 {
		return
	}
	for _, m := range c.order {
		if m.core.floored {
			m.core.floored = false
			m.b.SetShare(m.core.health.Share())
			c.dirty = true
		}
	}
	a.floored = 0
	for ; a.floored < need; a.floored++ {
		var best *member
		for _, m := range c.order {
			if s := m.core; s.backup || s.floored || s.class != opinion && s.class != notReady {
				continue
			}
			if best == nil || m.core.class < best.core.class ||
				m.core.class == best.core.class && m.core.health.Since() > best.core.health.Since() {
				best = m
			}
		}
		if best == nil {
			return
		}
		best.core.floored = true
		best.b.SetShare(1)
		c.dirty = true
	}
}

// turnedNotReady notes who turned not_ready, or no longer is.
func (c *core) turnedNotReady(m *member, is bool) {
	s, a := m.core, &c.alarm
	if s.notReady == is {
		return
	}
	s.notReady = is
	if !is {
		a.latelyLive--
		return
	}
	a.latelyLive++
	a.lately = append(a.lately, turned{m, c.now})
}

// reckonShared recognises a shared dependency: more than 1 - threshold of the
// pool turned not_ready within fall x interval while its traffic succeeds. A
// rolling restart turns them one after the other, and is believed.
func (c *core) reckonShared(now balance.Instant) {
	a, n := &c.alarm, &c.counts[0]
	window := time.Duration(max(c.cfg.Active.Fall, 1)) * c.cfg.Active.Interval
	for len(a.lately) > 0 && now.Sub(a.lately[0].at) > window {
		m := a.lately[0].m
		a.lately = a.lately[1:]
		if m.core.notReady && now.Sub(m.core.health.Since()) > window {
			m.core.notReady = false
			a.latelyLive--
		}
	}
	total := float64(n[serving] + n[opinion] + n[notReady])
	most := (1 - c.cfg.Panic.Threshold) * total
	switch {
	case !a.shared && n[notReady] > 0 && float64(a.latelyLive) > most+1e-9 && c.trafficSucceeds(now, window):
		a.shared = true
		c.dirty = true
		c.notice(nil, Notice{Kind: SharedDependency, Why: fmt.Sprintf("%d of %d turned not_ready within %v while traffic succeeds", a.latelyLive, int(total), window)})
	case a.shared && float64(n[notReady]) <= most+1e-9:
		a.shared = false
		c.dirty = true
		c.notice(nil, Notice{Kind: SharedOver})
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// judge changes a member's verdict and draws the consequences: share and flags
// on the Backend, counters, notices, idle connections, timers.
func (c *core) judge(now balance.Instant, m *member, change func(*health.Machine)) {
	s := m.core
	h := &s.health
	state, share := h.State(), h.BaseShare()
	change(h)
	changed := h.State() != state || h.BaseShare() != share
	if changed && (h.BaseShare() != share || !strainedOnly(state, h.State())) {
		// What is under way says nothing about the state that begins now.
		m.since.Store(int64(now))
		m.run.Store(0)
		m.goodRun.Store(0)
		c.forgetWindows(m)
		if h.BaseShare() <= 0 {
			c.forgetPressure(now, m)
		}
	}
	m.b.SetSuspect(h.Suspect())
	c.setMode(m)
	c.countOut(m)
	if !s.floored {
		m.b.SetShare(h.Share())
	}
	c.recount(m)
	if until, ok := h.Ejected(); ok {
		c.timers.set(m, timerEject, until)
	} else {
		c.timers.stop(m, timerEject)
	}
	if changed {
		c.notice(m, Notice{Kind: StateChanged, From: state, To: h.State(), Reason: h.Reason(), Share: h.Share(), Why: h.Why()})
	}
	if h.State() != state && (h.State() == health.StateNotReady || h.State() == health.StateBroken) {
		c.do(effect{kind: doCloseIdle, m: m})
	}
}

// strainedOnly reports that a change of state is one of headroom, which says
// nothing about failures.
func strainedOnly(a, b health.State) bool {
	return a == health.StateOverloaded && b == health.StateHealthy || a == health.StateHealthy && b == health.StateOverloaded
}

// setMode tells Done what to look out for.
func (c *core) setMode(m *member) {
	s := m.core
	mode := m.mode.Load() & (modeCauses | modeSlowAsk)
	if s.byWork || s.hasFact || s.health.Suspect() {
		mode |= modeAccused
	}
	if s.health.Probation() {
		mode |= modeProbation
	}
	if s.leaving || s.drain {
		mode |= modeWatch
	}
	if _, ejected := s.health.Ejected(); ejected || s.health.State() == health.StateBroken {
		mode |= modeOut
	}
	if s.hasFact {
		mode |= modeFact
	}
	m.mode.Store(mode)
}

// probe starts a probe.
func (c *core) probe(now balance.Instant, m *member) {
	s := m.core
	if s.leaving || s.probing || !c.cfg.Active.Enabled {
		return
	}
	s.probing, s.again, s.started = true, false, now
	s.probes++
	m.probed.Store(int64(now))
	c.do(effect{kind: doProbe, m: m})
}

// probed takes the result of a probe.
func (c *core) probed(now balance.Instant, m *member, r health.ProbeResult) {
	s := m.core
	if !s.probing {
		return
	}
	s.probing = false
	if s.leaving {
		return
	}
	if s.round && !r.Retry {
		s.round = false
		c.awaited--
	}
	if r.Retry {
		c.timers.set(m, timerProbe, max(now, s.started.Add(c.cfg.Active.FastInterval)))
		return
	}
	if r.Shared {
		s.started = min(s.started, r.Sent) // the next is due when it would be after that one
	}
	if r.HasLoad {
		m.reported(now, r.Load)
	}
	if r.Outcome == health.Pass && r.HasLoad && c.cfg.Overload.Exceeds(r.Load) {
		r.Outcome = health.Overloaded
	}
	s.failedTogether(&r)
	s.last = Check{At: now, Done: true, OK: r.Outcome == health.Pass || r.Outcome == health.Overloaded, Outcome: r.Outcome, Cause: r.Cause, Status: r.Status, Error: r.Error}
	c.probeStrained(now, m, &r)
	c.weighProbe(now, m, r)
	c.scheduleProbe(now, m)
}

// weighProbe brings a probe's result together with the facts.
func (c *core) weighProbe(now balance.Instant, m *member, r health.ProbeResult) {
	s := m.core
	nobody := r.Outcome == health.NoAnswer && (r.Cause == health.CauseRefused || r.Cause == health.CauseNoRoute ||
		r.Cause == health.CauseTimeout && !c.cfg.Active.HTTP)
	if !nobody && (r.Outcome == health.NoAnswer || r.Outcome == health.NotReady) {
		s.returning = false // in doubt for another reason
	}
	switch {
	case r.OnTrafficPort && nobody:
		c.setFact(now, m, now)
	case s.hasFact && r.Outcome != health.NoAnswer && r.OnTrafficPort && m.lastConn.Load() <= int64(r.Sent):
		c.clearFact(now, m)
	}
	if s.byWork {
		// Real traffic made it suspect: the probe that answers that question
		// began after the accusation, or found nobody either.
		switch {
		case r.Outcome == health.NoAnswer && (nobody || r.Sent >= s.accused):
			s.byWork = false
			why := fmt.Sprintf("a connection failed (%s) and so did the probe after it: %s", health.Cause(m.connCause.Load()), r.Cause)
			c.judge(now, m, func(h *health.Machine) {
				h.Probe(now, r, balance.Instant(m.lastGood.Load()))
				h.Break(now, health.Cause(m.connCause.Load()), why)
			})
			return
		case r.Outcome != health.NoAnswer && r.Sent >= s.accused:
			s.byWork = false
		case r.Outcome != health.NoAnswer:
			s.again = true
			return // sent before the accusation: says nothing about it
		}
	}
	c.judge(now, m, func(h *health.Machine) {
		h.Probe(now, r, balance.Instant(m.lastGood.Load()))
		if r.OnTrafficPort && nobody && h.Share() > 0 {
			h.SetSuspect(now, true, r.Cause)
		}
	})
}

// scheduleProbe sets the next probe after a result: FastInterval after the
// start of the last one in a streak, the jittered interval otherwise, never
// overlapping, and within the life of a fact so that it stays one.
func (c *core) scheduleProbe(now balance.Instant, m *member) {
	s, a := m.core, &c.cfg.Active
	if !a.Enabled || s.leaving || s.probing {
		return
	}
	at := s.started.Add(a.Jittered(mix(uint64(m.b.Hash()) ^ c.cfg.Instance ^ s.probes)))
	switch {
	case s.again:
		at = now
	case s.health.Fast():
		at = s.started.Add(a.FastInterval)
	case s.hasFact:
		at = min(at, s.started.Add(health.FactTime*4/5))
	}
	c.timers.set(m, timerProbe, max(at, now))
}

// probeSoon asks for a probe at once.
func (c *core) probeSoon(now balance.Instant, m *member) {
	if m.core.probing {
		m.core.again = true
		return
	}
	c.probe(now, m)
	c.timers.stop(m, timerProbe)
}

// setFact notes a failed connection attempt at an instant.
func (c *core) setFact(now balance.Instant, m *member, at balance.Instant) {
	s := m.core
	s.fact, s.hasFact = at, true
	for old := m.lastConn.Load(); old < int64(at) && !m.lastConn.CompareAndSwap(old, int64(at)); {
		old = m.lastConn.Load()
	}
	m.b.SetUnreachable(true)
	c.timers.set(m, timerFact, at.Add(health.FactTime))
	c.setMode(m)
	c.recount(m)
}

// clearFact ends a fact. Done stores lastConn, then the flag, then reads the
// mode; here it is the other way round, so that none of its facts is lost.
func (c *core) clearFact(now balance.Instant, m *member) {
	s := m.core
	s.hasFact = false
	c.setMode(m)
	m.b.SetUnreachable(false)
	if last := balance.Instant(m.lastConn.Load()); last > s.fact && now.Sub(last) < health.FactTime {
		c.setFact(now, m, last)
		return
	}
	if !s.byWork {
		c.timers.stop(m, timerFact)
	}
	c.recount(m)
}

// factOver ends a fact, and with it a suspicion that no probe settled.
func (c *core) factOver(now balance.Instant, m *member) {
	s := m.core
	if s.hasFact {
		c.clearFact(now, m)
		if s.hasFact {
			return // there is a newer one
		}
	}
	s.byWork = false
	c.unsuspect(now, m)
}

// unsuspect ends a suspicion, also one that the core has not heard of yet.
func (c *core) unsuspect(now balance.Instant, m *member) {
	if m.core.health.Suspect() {
		c.judge(now, m, func(h *health.Machine) { h.SetSuspect(now, false, health.CauseNone) })
	}
	m.b.SetSuspect(false)
	c.setMode(m)
}

// crossed takes thresholds that requests crossed.
func (c *core) crossed(now balance.Instant, m *member, marks uint32) {
	if marks&markEmpty != 0 {
		c.emptied(m)
	}
	if marks&markMean != 0 {
		c.firstMean(now)
	}
	if m.core.leaving {
		return
	}
	if marks&markReachable != 0 {
		c.reachable(now, m)
	}
	if marks&markConnect != 0 {
		c.connectFailed(now, m)
	}
	if marks&markProven != 0 && m.core.health.Probation() {
		m.mode.And(^uint32(modeCauses))
		c.judge(now, m, func(h *health.Machine) { h.Prove(now) })
		if m.core.class == serving { // it may say meanwhile that it is not ready
			c.beginRamp(now, m, health.ProbationShare)
		}
	}
	if marks&markRelapse != 0 && m.core.health.Probation() {
		c.eject(now, m, "failed on probation", m.mode.Load()&modeCauses)
	}
	if marks&markBad != 0 {
		c.badInARow(now, m)
	}
	if marks&markShare != 0 {
		c.watch(now, m)
	}
	if marks&markStrained != 0 {
		c.lookAtPressure(now, m)
	}
}

// reachable takes an answer from an accused backend.
func (c *core) reachable(now balance.Instant, m *member) {
	m.core.byWork = false
	if m.core.hasFact {
		c.clearFact(now, m)
	}
	c.unsuspect(now, m)
}

// connectFailed takes failed connection attempts of real requests. The first
// makes a backend suspect: skipped while others exist, probed at once. That
// probe or as many failures in a row as configured break it, whatever part of
// the pool is broken already: these are facts.
func (c *core) connectFailed(now balance.Instant, m *member) {
	s := m.core
	cause := health.Cause(m.connCause.Load())
	if last := balance.Instant(m.lastConn.Load()); cause.Fact() && (!s.hasFact || last > s.fact) {
		c.setFact(now, m, last)
	}
	if !c.cfg.Passive.Enabled || s.health.State() == health.StateBroken {
		m.b.SetSuspect(s.health.Suspect())
		return
	}
	run := int(m.run.Load() >> 32)
	if run == 0 { // of before the last change, or settled meanwhile
		m.b.SetSuspect(s.health.Suspect())
		return
	}
	need := max(c.cfg.Passive.ConsecutiveConnect, 1)
	if s.health.Probation() {
		need = 1
	}
	if run >= need {
		s.byWork = false
		if s.health.Probation() && c.cfg.Active.Enabled {
			c.ejectFor(now, m, "failed on probation: "+cause.String())
			return
		}
		c.judge(now, m, func(h *health.Machine) {
			h.Break(now, cause, fmt.Sprintf("%d connections in a row failed: %s", run, cause))
		})
		if c.cfg.Active.Enabled && !s.probing {
			c.timers.set(m, timerProbe, max(now, s.started.Add(c.cfg.Active.FastInterval)))
		}
		return
	}
	s.byWork, s.accused = true, now
	c.judge(now, m, func(h *health.Machine) { h.SetSuspect(now, true, cause) })
	if !s.hasFact {
		c.timers.set(m, timerFact, now.Add(health.FactTime))
	}
	if c.cfg.Active.Enabled {
		c.probeSoon(now, m)
	}
}

// badInARow takes bad answers in a row.
func (c *core) badInARow(now balance.Instant, m *member) {
	run := uint32(m.run.Load())
	if run < uint32(max(c.cfg.Passive.Consecutive, 1)) {
		return
	}
	if !c.eject(now, m, fmt.Sprintf("%d bad answers in a row", run), 0) {
		m.run.And(^uint64(1<<32 - 1)) // ask again after as many more
	}
}

// eject takes a member out on opinions, unless too many are out already. cause,
// flags of modeCauses, says what ends its probation beside bad answers.
func (c *core) eject(now balance.Instant, m *member, why string, cause uint32) bool {
	if !c.mayEject(m) {
		return false
	}
	m.mode.And(^uint32(modeCauses))
	m.mode.Or(cause)
	c.ejectFor(now, m, why)
	return true
}

func (c *core) mayEject(m *member) bool {
	return c.cfg.Passive.Enabled && m.core.class == serving && c.outByWork < c.cfg.Passive.MayEject(c.enabled())
}

func (c *core) ejectFor(now balance.Instant, m *member, why string) {
	var d time.Duration
	c.judge(now, m, func(h *health.Machine) { d = h.Eject(now, why) })
	c.notice(m, Notice{Kind: EjectedNow, Reason: health.ReasonEjected, Why: m.core.health.Why(), For: d})
}

// countOut counts the members that real requests have taken out.
func (c *core) countOut(m *member) {
	_, ejected := m.core.health.Ejected()
	out := !m.core.leaving && (ejected || m.core.health.BrokenByFact())
	if out != m.core.outByWork {
		m.core.outByWork = out
		c.outByWork += 2*btoi(out) - 1
	}
}

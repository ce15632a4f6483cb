// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/balance"
)

// historyMax bounds the history of one backend.
const historyMax = 16

// A Machine holds the verdict on one backend. Start it with Init. Three sides
// vote: the word (probes and facts), the ejection (answers to real requests) and
// the headroom (signs of overload); the share is the least that any grants.
type Machine struct {
	active  *Active
	passive *Passive

	// The word: what probes and facts say.
	word    State
	full    bool   // unproven with full share
	failing bool   // the last probe failed
	suspect bool   // one connection attempt failed, verdict still out
	cause   Cause  // why the word is broken
	fact    bool   // the word was broken by traffic, not by probes
	passes  int    // in a row
	fails   []sent // failed probes in a row that still count toward fall
	odd     State  // while out: what the last failed probes say instead of word
	oddRun  int    // how often in a row
	waited  int    // failed probes while waiting for the first pass

	// The ejection: what answers to real requests say.
	ejected   bool
	until     balance.Instant
	probation bool
	level     int             // ejections in a row
	proven    balance.Instant // when the last probation was passed

	// The headroom: what a Pressure grants. It never takes a backend out.
	lost float64 // 1 - share

	// The verdict, composed of all.
	state     State
	base      float64 // the share without the headroom
	share     float64
	reason    Reason
	why       string
	lastError string          // of a probe that has not decided anything
	since     balance.Instant // of state and share
	flips     int
	history   []Change
}

// sent is a failed probe of the current streak.
type sent struct {
	at   balance.Instant
	firm bool // never outvoted: the backend's own word, or a fact
}

// Init starts a machine. With first the backend belongs to the process's first
// configuration and is unproven with full share; without, it gets nothing
// until its first pass (unless InitialUp). Without active checks it is
// healthy at once.
func (m *Machine) Init(now balance.Instant, a *Active, p *Passive, first bool) {
	*m = Machine{active: a, passive: p, word: StateUnproven, full: first || a.InitialUp}
	if !a.Enabled {
		m.word = StateHealthy
	}
	m.state, m.base, m.share, m.reason = m.compose()
	m.since = now
}

// Reconfigured brings the verdict in line with settings that were switched on or
// off. Without active checks what probes and facts said is forgotten; without
// passive ones ejections end. Whoever waited for a first pass no longer does
// when nothing probes. It reports whether state or share changed.
func (m *Machine) Reconfigured(now balance.Instant) bool {
	if !m.active.Enabled {
		m.word, m.cause, m.fact, m.odd, m.oddRun = StateHealthy, CauseNone, false, 0, 0
		m.failing, m.suspect, m.passes, m.waited, m.fails = false, false, 0, 0, m.fails[:0]
	}
	if !m.passive.Enabled {
		m.ejected, m.probation, m.level = false, false, 0
	}
	return m.refresh(now, "settings changed")
}

// State returns the state in force.
func (m *Machine) State() State { return m.state }

// Share returns the admission share that health grants.
func (m *Machine) Share() float64 { return m.share }

// BaseShare returns the share as it would be with all the headroom there is: what
// decides whether a backend counts as serving. Overload never does.
func (m *Machine) BaseShare() float64 { return m.base }

// SaysOverloaded reports that the last probe was answered so.
func (m *Machine) SaysOverloaded() bool { return m.word == StateOverloaded }

// Reason returns what binds the share, None at full share without a doubt.
func (m *Machine) Reason() Reason { return m.reason }

// Why returns the cause of the last change in words.
func (m *Machine) Why() string { return m.why }

// Since returns when the state last changed, or the share for another reason than
// overload.
func (m *Machine) Since() balance.Instant { return m.since }

// Flips returns how often the state has changed. That a backend which nobody
// knew proved good is no change of its state.
func (m *Machine) Flips() int { return m.flips }

// History returns the last changes, oldest first. The slice is a copy.
func (m *Machine) History() []Change { return append([]Change(nil), m.history...) }

// Ejected reports an ejection in force, and when it ends.
func (m *Machine) Ejected() (until balance.Instant, ok bool) { return m.until, m.ejected }

// Ejections returns how many ejections in a row are held against the backend.
func (m *Machine) Ejections() int { return m.level }

// Probation reports that an ejection ended and real successes are awaited.
func (m *Machine) Probation() bool { return m.probation }

// Suspect reports that one connection attempt failed and the verdict is out.
func (m *Machine) Suspect() bool { return m.suspect }

// Waiting reports an unproven backend that gets nothing until its first pass.
func (m *Machine) Waiting() bool { return m.word == StateUnproven && !m.full }

// BrokenByFact reports that failed connections of real traffic broke it.
func (m *Machine) BrokenByFact() bool { return m.word == StateBroken && m.fact }

// Fast reports that a state is about to change, so that probes follow each
// other at FastInterval: a falling or a rising streak.
func (m *Machine) Fast() bool {
	switch {
	case m.suspect:
		return true
	case m.word == StateNotReady || m.word == StateBroken:
		return m.passes > 0
	case m.Waiting():
		return m.waited > 0 && m.waited < m.fall()
	default:
		return len(m.fails) > 0
	}
}

func (m *Machine) fall() int { return max(m.active.Fall, 1) }
func (m *Machine) rise() int { return max(m.active.Rise, 1) }

// Probe takes the result of a probe. lastGood is when the latest real request
// that succeeded began: it outvotes a probe that was sent before it and got no
// answer. It reports whether state or share changed.
func (m *Machine) Probe(now balance.Instant, r ProbeResult, lastGood balance.Instant) bool {
	if r.Retry {
		return false
	}
	if r.Outcome == Pass || r.Outcome == Overloaded {
		return m.passed(now, r)
	}
	changed := m.failed(now, r, lastGood)
	if m.reason == ReasonProbeFailing && m.share > 0 && !changed {
		m.why = m.lastError // the latest, though nothing has changed
	}
	return changed
}

func (m *Machine) passed(now balance.Instant, r ProbeResult) bool {
	if m.BrokenByFact() && r.Sent < m.since {
		return false // sent before the connections failed
	}
	m.fails, m.oddRun, m.waited = m.fails[:0], 0, 0
	m.failing, m.suspect = false, false
	m.passes++
	to := StateHealthy
	why := "probe passed"
	if r.Outcome == Overloaded {
		to, why = StateOverloaded, "the probe was answered: overloaded"
	}
	if m.word == StateNotReady || m.word == StateBroken {
		if m.passes < m.rise() {
			return m.refresh(now, m.why)
		}
		why = fmt.Sprintf("%d of %d probes passed", m.passes, m.rise())
	}
	m.word, m.cause, m.fact = to, CauseNone, false
	return m.refresh(now, why)
}

func (m *Machine) failed(now balance.Instant, r ProbeResult, lastGood balance.Instant) bool {
	m.passes, m.failing = 0, true
	verdict, why := StateBroken, r.Error
	if why == "" {
		why = "probe: " + r.Cause.String()
	}
	if r.Outcome == NotReady {
		verdict = StateNotReady
	}
	firm := verdict == StateNotReady || r.OnTrafficPort && (r.Cause == CauseRefused || r.Cause == CauseNoRoute)

	switch m.word {
	case StateNotReady, StateBroken:
		// Already out. Which of the two it is follows the same threshold.
		if m.odd != verdict {
			m.odd, m.oddRun = verdict, 0
		}
		if m.oddRun++; m.word != verdict && m.oddRun >= m.fall() {
			m.word, m.cause, m.fact = verdict, r.Cause, false
			return m.refresh(now, why)
		}
		return m.refresh(now, m.why)
	case StateUnproven:
		if !m.full {
			m.waited++
			return m.refresh(now, why)
		}
	}
	keep := m.fails[:0]
	for _, f := range append(m.fails, sent{r.Sent, firm}) {
		if f.firm || f.at >= lastGood {
			keep = append(keep, f)
		}
	}
	m.fails = keep
	need := m.fall()
	if m.word == StateUnproven {
		need = 1 // nothing is known in its favour
	}
	if len(m.fails) < need {
		if len(m.fails) == 0 {
			why += " (outvoted by real requests that succeeded)"
		}
		m.lastError = why
		return m.refresh(now, why)
	}
	why = fmt.Sprintf("%d of %d probes failed: %s", len(m.fails), need, why)
	m.word, m.cause, m.fact, m.suspect = verdict, r.Cause, false, false
	m.fails, m.odd, m.oddRun = m.fails[:0], verdict, 1
	return m.refresh(now, why)
}

// SetSuspect notes that one connection attempt of real traffic failed, or that
// the suspicion has passed.
func (m *Machine) SetSuspect(now balance.Instant, v bool, c Cause) {
	m.suspect = v && m.word != StateBroken && m.word != StateNotReady
	why := "reachable again"
	if v {
		why = "a connection failed: " + c.String()
	}
	m.refresh(now, why)
}

// Break takes the backend out on facts: connection attempts failed. With
// active checks it returns after Rise passes; without them it is held out for
// the ejection time, which is returned (zero otherwise).
func (m *Machine) Break(now balance.Instant, c Cause, why string) time.Duration {
	m.suspect = false
	if !m.active.Enabled {
		d := m.eject(now)
		m.cause = c
		m.refresh(now, fmt.Sprintf("%s; held out for %v", why, d))
		return d
	}
	m.word, m.cause, m.fact = StateBroken, c, true
	m.passes, m.fails, m.odd, m.oddRun = 0, m.fails[:0], StateBroken, 1
	m.refresh(now, why)
	return 0
}

// Eject takes the backend out on what its answers said and returns for how
// long: Eject, twice that, three times, up to MaxEject. An ejection is
// forgotten for each Eject served without fault after a probation.
func (m *Machine) Eject(now balance.Instant, why string) time.Duration {
	d := m.eject(now)
	if !m.active.Enabled {
		m.cause = CauseNone
	}
	m.refresh(now, fmt.Sprintf("%s; ejected for %v", why, d))
	return d
}

func (m *Machine) eject(now balance.Instant) time.Duration {
	if !m.probation && !m.ejected && m.level > 0 && m.passive.Eject > 0 {
		m.level = max(0, m.level-int(now.Sub(m.proven)/m.passive.Eject))
	}
	m.level++
	d := m.passive.ejection(m.level)
	m.ejected, m.probation, m.until = true, false, now.Add(d)
	return d
}

// Tick ends an ejection whose time has come: the backend is on probation.
func (m *Machine) Tick(now balance.Instant) bool {
	if !m.ejected || now.Before(m.until) {
		return false
	}
	m.ejected, m.probation = false, true
	if !m.active.Enabled {
		m.cause = CauseNone
	}
	return m.refresh(now, "ejection over, on probation")
}

// Prove ends a probation after Rise real successes.
func (m *Machine) Prove(now balance.Instant) bool {
	if !m.probation {
		return false
	}
	m.probation, m.proven = false, now
	return m.refresh(now, "proven by real requests")
}

// SetOverload puts the share that overload leaves into force, 0..1; it never takes
// a backend out, so that 0 is the caller's mistake. why is told of a decrease and
// of the end. It reports whether the state changed.
func (m *Machine) SetOverload(now balance.Instant, share float64, why string) bool {
	lost := 1 - min(max(share, 0), 1)
	if lost == m.lost {
		return false
	}
	less := lost > m.lost
	m.lost = lost
	changed := m.refresh(now, why)
	if less && m.reason == ReasonOverloaded {
		m.why = why
	}
	return changed
}

// compose derives state, share and reason from all sides; base is the share
// without the headroom.
func (m *Machine) compose() (state State, base, share float64, reason Reason) {
	state, base, reason = m.judged()
	share = base
	if m.lost > 0 && base > 0 {
		if state == StateHealthy {
			state = StateOverloaded
		}
		if 1-m.lost < base {
			share, reason = 1-m.lost, ReasonOverloaded
		}
	}
	return state, base, share, reason
}

// judged is compose without the headroom.
func (m *Machine) judged() (State, float64, Reason) {
	state, share, reason := m.word, 1.0, None
	switch m.word {
	case StateUnproven:
		reason = ReasonUnproven
		if !m.full {
			share = 0
		}
	case StateOverloaded:
		reason = ReasonOverloaded
	case StateNotReady:
		share, reason = 0, ReasonNotReady
	case StateBroken:
		share, reason = 0, ReasonProbeFailing
		if m.fact {
			reason = reasonOf(m.cause)
		}
	}
	switch {
	case m.ejected && share > 0:
		state, share, reason = StateBroken, 0, ReasonEjected
		if m.cause != CauseNone {
			reason = reasonOf(m.cause)
		}
	case m.probation && share > ProbationShare:
		share, reason = ProbationShare, ReasonProbation
	case share > 0 && m.suspect:
		reason = ReasonSuspect
	case share > 0 && m.failing:
		reason = ReasonProbeFailing
	}
	return state, share, reason
}

// refresh composes the verdict anew and reports whether state or share changed,
// the headroom's steps left out.
func (m *Machine) refresh(now balance.Instant, why string) bool {
	state, base, share, reason := m.compose()
	changed := state != m.state || base != m.base
	if changed {
		if len(m.history) == historyMax {
			m.history = append(m.history[:0], m.history[1:]...)
		}
		m.history = append(m.history, Change{At: now, From: m.state, To: state, Reason: reason, Why: why})
		if state != m.state && (m.state != StateUnproven || state != StateHealthy) {
			m.flips++
		}
		m.since = now
	}
	if changed || reason != m.reason {
		m.why = why
	}
	m.state, m.base, m.share, m.reason = state, base, share, reason
	return changed
}

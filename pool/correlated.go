// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Correlated says what it is a sign of that the probes of much of a pool fail
// together while its real requests succeed. The zero value is NotCorrelated.
type Correlated uint8

// What fails together.
const (
	NotCorrelated    Correlated = iota
	DependencyShared            // what the backends say of themselves hangs on something that they share
	CheckBroken                 // the check asks for what no backend gives
)

var correlatedNames = [...]string{"", "shared_dependency", "broken_check"}

// String returns the word used by the admin API and metrics; empty for
// NotCorrelated.
func (k Correlated) String() string {
	if int(k) < len(correlatedNames) {
		return correlatedNames[k]
	}
	return "unknown"
}

// CorrelatedKinds are the words that Correlated can be.
func CorrelatedKinds() []string { return correlatedNames[1:] }

// correlation is what a tier, or the pool, makes of its failing probes.
type correlation struct {
	kind Correlated
	why  string
}

// failedTogether counts a probe into the run of those that fail.
func (s *coreState) failedTogether(r *health.ProbeResult) {
	if r.Outcome == health.Pass || r.Outcome == health.Overloaded {
		s.passed, s.failRun = true, 0
		return
	}
	if s.failRun == 0 {
		s.failSince = r.Sent
	}
	s.failRun = min(s.failRun+1, maxFailRun)
}

const maxFailRun = 1000 // more is no more news; Fall is at most 100

// correlate names what fails together, tier by tier; the first tier that has a
// name for it speaks for the pool. It is looked at once a second while probes
// fail, and when a shared dependency is recognised or over.
func (c *core) correlate(now balance.Instant) {
	a := &c.alarm
	if !a.together {
		return
	}
	a.together = false
	var said correlation
	for _, t := range c.tiers {
		c.correlateTier(now, t)
		if said.kind == NotCorrelated {
			said = t.correlated
		}
	}
	was := a.correlated.kind
	a.correlated = said
	if was == said.kind {
		return
	}
	switch was {
	case DependencyShared:
		c.notice(nil, Notice{Kind: SharedOver})
	case CheckBroken:
		c.notice(nil, Notice{Kind: BrokenCheckOver})
	}
	switch said.kind {
	case DependencyShared:
		c.notice(nil, Notice{Kind: SharedDependency, Why: said.why})
	case CheckBroken:
		c.notice(nil, Notice{Kind: BrokenCheck, Why: said.why})
	}
}

// correlateTier decides for one tier. Two things are evidence: what reckonShared
// has found, and that more than 1 - threshold of the tier, and more than half of
// it, fail their checks for as long as would take them out while each of them
// answers real requests that began since (those that are out get some in panic,
// or as the floor). A pool that drains is neither: who takes no work answers
// nothing that began since. A name once given holds until no more than so many
// fail, or traffic fails as well.
func (c *core) correlateTier(now balance.Instant, t *tier) {
	n := &t.counts
	total := n[serving] + n[opinion] + n[notReady]
	most := max((1-c.cfg.Panic.Threshold)*float64(total), float64(total)/2) + 1e-9
	if c.cfg.Panic.Threshold < 0.5 {
		most = min(most, float64(total)-0.5)
	}
	var failing, against, wrong int
	var example string
	if c.cfg.Active.Enabled {
		for _, m := range c.order {
			s := m.core
			if s.tier != t || s.class == out0 || s.hasFact || s.failRun == 0 {
				continue
			}
			failing++
			if s.failRun < max(c.cfg.Active.Fall, 1) && s.class == serving {
				continue
			}
			if !t.shared && m.lastGood.Load() < max(int64(s.failSince), m.since.Load()) {
				continue
			}
			against++
			wrong += btoi(s.asksWrong())
			if example == "" {
				if example = s.last.Error; example == "" {
					example = s.last.Cause.String()
				}
			}
		}
	}
	kind := DependencyShared
	if wrong > against-wrong {
		kind = CheckBroken
	}
	switch {
	case t.shared:
		if t.correlated.kind == NotCorrelated {
			t.correlated = correlation{kind, t.sharedWhy}
		}
	case t.correlated.kind != NotCorrelated:
		if float64(failing) <= most || c.trafficFails(now, c.fallWindow()) {
			t.correlated = correlation{}
		}
	case float64(against) > most && c.trafficSucceeds(now, c.fallWindow()):
		t.correlated = correlation{kind, fmt.Sprintf("%d of %d fail their checks while real requests to them succeed: %s", against, total, example)}
	}
}

// asksWrong reports that a failing check is more likely to ask for the wrong
// thing than to hear of a dependency: it has never passed, or nobody is where it
// asks, or the answer says that the question is wrong.
func (s *coreState) asksWrong() bool {
	switch s.last.Cause {
	case health.CauseRefused, health.CauseNoRoute, health.CauseTLS, health.CauseMalformed:
		return true
	case health.CauseStatus:
		if s.last.Status >= 300 && s.last.Status <= 499 && s.last.Status != 429 || s.last.Status == 501 {
			return true
		}
	}
	return !s.passed
}

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

// failedTogether counts a probe into the run of those that fail, and a run that is
// over into how often the backend's probes fail by themselves.
func (s *coreState) failedTogether(r *health.ProbeResult) {
	if r.Outcome == health.Pass || r.Outcome == health.Overloaded {
		if s.tier.correlated.kind == NotCorrelated {
			s.ownFails += min(s.failRun, ownRun)
		}
		if s.ownPasses++; s.ownPasses+s.ownFails > ownProbes {
			s.ownPasses, s.ownFails = s.ownPasses/2, s.ownFails/2
		}
		s.passed, s.failRun = true, 0
		return
	}
	if s.failRun == 0 {
		s.failSince = r.Sent
	}
	s.failRun = min(s.failRun+1, maxFailRun)
}

const (
	maxFailRun = 1000 // more is no more news; Fall is at most 100
	ownProbes  = 64   // of which is known how often they fail by themselves
	ownRun     = 5    // failures of one run that count for that: a long one is an outage, not chance

	// One in a million: what failures that have nothing to do with each other bring
	// about more often than that is no evidence.
	tooRare = 13.8
	// A name holds for so long after too few fail for it, or the time that takes a
	// backend out where that is longer, and twice as long each time that it comes back
	// soon: checks on the edge of their timeout would give and take it all the time.
	correlatedHold  = 10 * time.Second
	correlatedHolds = 5 // doublings at most
	correlatedSoon  = 10 * time.Minute
)

// chances is how unlikely it is that a tier's probes fail as they do now if they
// fail each on its own.
type chances struct {
	sum     float64 // negative logarithm of the probability of the runs as they are
	n, k    int     // members, and those of them that fail
	surplus int     // failures beyond the first, of all runs
}

// add takes a member into account; fails: its run of failures is evidence. How
// often its probes fail by themselves is what they did before the run, and not
// known exactly: given f failures and g passes, with one failure in four assumed for
// a backend of which nothing is known (in ten if its check has never passed, as
// chance is hardly why), the next one fails with the probability
// (f+1) / (f+g+4), and the one after that, given that, with (f+2) / (f+g+5):
// Laplace's rule of succession.
func (x *chances) add(s *coreState, fails bool) {
	a, b := float64(s.ownFails+1), float64(s.ownPasses+3)
	if !s.passed {
		b = 9
	}
	x.n++
	x.sum -= math.Log(b / (a + b)) // it passes, or did before the run
	if !fails {
		return
	}
	x.k++
	x.surplus += s.failRun - 1
	// The product of (a+i) / (a+b+i) for i < run.
	run := float64(s.failRun)
	x.sum -= lgamma(a+run) - lgamma(a) - lgamma(a+b+run) + lgamma(a+b)
}

func lgamma(x float64) float64 { v, _ := math.Lgamma(x); return v }

// ways is the logarithm of the number of ways to choose k of n.
func ways(n, k int) float64 {
	return lgamma(float64(n+1)) - lgamma(float64(k+1)) - lgamma(float64(n-k+1))
}

// plausible reports that it is what happens now and then. Which members fail, and
// how their failures are spread over their runs, could have been different: k of n
// members, and s failures in k runs, of which C(s-1, k-1) are.
//
// Example: of 6 backends 4 fail. Where a third of many probes always has failed, one
// failure of each has the rarity 4 x ln(3) + 6 x ln(3/2) = 6.8, and there are 15 ways
// (ln 15 = 2.7): 4.1 is one time in 60. After six in a row of each it is
// 26.4 + 2.4 - 2.7 - ln C(23, 3) = 18.6, one in a hundred million. Where one in 64
// fails, two in a row of each are enough.
func (x *chances) plausible() bool {
	if x.k == 0 {
		return true
	}
	return x.sum-ways(x.n, x.k)-ways(x.k+x.surplus-1, x.k-1) < tooRare
}

// correlate names what fails together, tier by tier; the first tier that has a
// name for it speaks for the pool. It is looked at once a second while probes
// fail, and when a shared dependency is recognised or over.
func (c *core) correlate(now balance.Instant) {
	a := &c.alarm
	var said correlation
	for _, t := range c.tiers {
		if a.together {
			c.correlateTier(now, t)
		}
		if said.kind == NotCorrelated {
			said = t.correlated
		}
	}
	a.together = false
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
// or as the floor), and that chance does not explain it. A pool that drains is
// neither: who takes no work answers nothing that began since. A name once given
// holds until no more than so many have failed for a while, or traffic fails as
// well.
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
			if !c.evident(t, m) {
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
	was := t.correlated.kind
	if t.shared || was == NotCorrelated || float64(failing) > most && !c.odds(t, func(m *member) bool { return m.core.failRun > 0 }).plausible() {
		t.named.calm = now
	}
	switch {
	case t.shared:
		if was == NotCorrelated || t.correlated.why == "" {
			t.correlated = correlation{kind, t.sharedWhy}
		}
	case was != NotCorrelated:
		if now.Sub(t.named.calm) >= max(c.fallWindow(), t.named.hold()) || c.trafficFails(now, c.fallWindow()) {
			t.correlated = correlation{}
		}
	case float64(against) > most && c.trafficSucceeds(now, c.fallWindow()) && !c.odds(t, func(m *member) bool { return c.evident(t, m) }).plausible():
		t.correlated = correlation{kind, fmt.Sprintf("%d of %d fail their checks while real requests to them succeed: %s", against, total, example)}
	}
	t.named.turned(now, was, t.correlated.kind)
}

// odds returns how unlikely it is that the members of a tier for which fails says
// so fail at the same time.
func (c *core) odds(t *tier, fails func(*member) bool) *chances {
	x := &chances{}
	for _, m := range c.order {
		if s := m.core; s.tier == t && s.class != out0 && !s.hasFact {
			x.add(s, fails(m))
		}
	}
	return x
}

// evident reports that a member's failing checks say something about the tier's
// checks: they are as many as would take it out, and it answers requests.
func (c *core) evident(t *tier, m *member) bool {
	s := m.core
	return s.failRun > 0 && (s.failRun >= max(c.cfg.Active.Fall, 1) || s.class != serving) &&
		(t.shared || m.lastGood.Load() >= max(int64(s.failSince), m.since.Load()))
}

// named is how often a tier got a name for what fails together, of late.
type named struct {
	times int
	over  balance.Instant // when the last one went; meaningful when times is not 0
	calm  balance.Instant // since when too few fail for the one that there is
}

// turned notes that a name was given or taken.
func (n *named) turned(now balance.Instant, was, is Correlated) {
	switch {
	case was == NotCorrelated && is != NotCorrelated:
		if n.times > 0 && now.Sub(n.over) > correlatedSoon {
			n.times = 0
		}
		n.times = min(n.times+1, correlatedHolds+1)
	case was != NotCorrelated && is == NotCorrelated:
		n.over = now
	}
}

func (n *named) hold() time.Duration { return correlatedHold << max(n.times-1, 0) }

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

func (t *tier) exportNamed(now balance.Instant, x *SavedTier) {
	n := &t.named
	on := t.correlated.kind != NotCorrelated
	if n.times == 0 || !on && now.Sub(n.over) > correlatedSoon {
		return
	}
	x.Correlated, x.Why, x.Named = t.correlated.kind.String(), t.correlated.why, n.times
	x.Calm, x.Over = age(now, n.calm, on), age(now, n.over, !on)
}

func (t *tier) restoreNamed(now, base balance.Instant, x *SavedTier) {
	t.correlated, t.named = correlation{}, named{times: x.Named, calm: min(x.Calm.At(base), now), over: min(x.Over.At(base), now)}
	if i := slices.Index(correlatedNames[:], x.Correlated); i > 0 {
		t.correlated = correlation{Correlated(i), x.Why}
	}
}

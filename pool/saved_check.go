// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Bounds of what may be true.
const (
	savedCounts  = 1 << 62 // of anything that is counted; sums of two do not overflow
	savedNS      = int64(1) << 60
	savedText    = 1 << 10
	savedOutside = "what the pool as a whole had counted cannot be"
)

// check says what of the parts that concern the whole pool cannot be true; empty:
// it can be. Backends and overrides are checked one by one.
func (s *Saved) check() string {
	st := &s.Stats
	ok := validAges(st.Last, st.Next, st.Turned, st.Compared, st.MeanAt) && fine(st.Mean) && within(st.MeanNS) &&
		st.HistAt >= 0 && st.HistAt <= math.MaxInt32 && st.Refused < savedCounts && len(st.Sums) <= keepSums && st.Last.Known() == st.Turned.Known() &&
		s.Ramp.check() && s.Budget.check() && st.Dark.check() && s.Adaptive.check()
	for i := range st.Sums {
		ok = ok && st.Sums[i].check()
	}
	for i := range s.Tiers {
		ok = ok && s.Tiers[i].check()
	}
	if !ok {
		return savedOutside
	}
	return ""
}

func (s *SavedAdaptive) check() bool {
	return fine(s.Limit) && fine(s.Base) && validAges(s.Next, s.Shed)
}

func (s *SavedTier) check() bool {
	named := s.Correlated == "" || slices.Contains(CorrelatedKinds(), s.Correlated) && s.Named > 0 && s.Calm.Known()
	return named && validAges(s.Calm, s.Over) && s.Named >= 0 && s.Named <= correlatedHolds+1 && len(s.Why) <= 1<<16
}

func (s *SavedSum) check() bool {
	return s.At.Valid() && s.Good < savedCounts/2 && s.Bad < savedCounts/2
}

func (s *SavedRamp) check() bool {
	return s.Start.Valid() && within(s.WindowNS) && s.From >= 0 && s.From <= 1
}

func (s *SavedBudget) check() bool {
	ok := within(s.WindowNS) && s.Requests < savedCounts && s.Retries < savedCounts && len(s.Parts) <= budgetSlots
	for _, x := range s.Parts {
		ok = ok && x.Ago >= 0 && x.Ago < budgetSlots && within(x.Requests) && within(x.Retries)
	}
	return ok
}

func (s *SavedOverride) check() error {
	switch {
	case s.ID == "" || len(s.ID) > savedText:
		return errors.New("the id cannot be")
	case s.Admin != "" && s.Admin != balance.Draining.String() && s.Admin != balance.Disabled.String():
		return fmt.Errorf("admin cannot be %.20q", s.Admin)
	case s.Admin == "" && s.Weight == nil:
		return errors.New("nothing is overridden")
	case !validAges(s.AdminSince, s.WeightSince):
		return errors.New("its age cannot be")
	case s.DeadlineNS < -savedNS || s.DeadlineNS > savedNS:
		return errors.New("its deadline cannot be")
	}
	return nil
}

// check says what of a backend cannot be true.
func (s *SavedBackend) check() error {
	if s.ID == "" || len(s.ID) > savedText || s.URL == "" || len(s.URL) > savedText {
		return errors.New("the id or the address cannot be")
	}
	if err := s.Health.Check(); err != nil {
		return err
	}
	if err := s.Pressure.Check(); err != nil {
		return err
	}
	f, g := &s.Facts, &s.Signs
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"a time", validAges(s.Added, s.Changed, s.LastGood, s.NotReady, s.Idle, f.Failed, f.LastConn, f.Accused, f.Ends,
			s.Probe.Started, s.Probe.Next, s.Probe.Failing, g.Since, s.Slow.Suspected)},
		{"facts.cause", causeKnown(f.Cause)},
		{"check", s.Check.check()},
		{"ramp", s.Ramp.check()},
		{"count", s.Count.check()},
		{"windows", s.Windows.check(&s.Count)},
		{"signs", g.check(s.Count.Answers)},
		{"slow", within(s.Slow.LimitNS)},
		{"learned", fine(s.Learned.Level) && fine(s.Learned.Evidence)},
		{"probe", s.Probe.Count < savedCounts && s.Probe.Failed >= 0 && s.Probe.Failed <= maxFailRun && s.Probe.OwnFails >= 0 && s.Probe.OwnPasses >= 0 && max(s.Probe.OwnFails, s.Probe.OwnPasses) <= ownProbes &&
			s.Probe.Failing.Known() == (s.Probe.Failed > 0)},
	} {
		if !c.ok {
			return fmt.Errorf("%s cannot be", c.what)
		}
	}
	return nil
}

func (s *SavedCheck) check() bool {
	return s == nil || s.At.Valid() && causeKnown(s.Cause) && len(s.Error) <= 1<<16 && outcomeOf(s.Outcome).String() == s.Outcome
}

func (s *SavedCount) check() bool {
	return s.Answers < savedCounts && s.LatencyNS < savedCounts && s.Failed < savedCounts && s.Faults < savedCounts &&
		s.Others < savedCounts && s.ServerErrors < savedCounts && s.Failings < savedCounts &&
		s.Untimed <= s.Answers && s.BadTimed < savedCounts && s.BadLatencyNS < savedCounts
}

// check holds what was counted at the beginning of windows against what was
// counted at the end: the differences must not be below zero.
func (w *SavedWindows) check(n *SavedCount) bool {
	end := SavedTally{n.Answers, n.ServerErrors, n.Faults, n.Failings}
	ok := w.Base[0].atMost(&w.Base[1]) && w.Base[1].atMost(&end) && fine(w.EWMA) &&
		w.SeenAnswers <= n.Answers-n.Untimed && w.SeenLatencyNS <= n.LatencyNS && w.SeenBad <= n.BadTimed && w.SeenBadNS <= n.BadLatencyNS
	for _, list := range [][][2]uint32{w.Hist, w.HistBefore} {
		for _, x := range list {
			ok = ok && x[0] < histBuckets
		}
	}
	return ok
}

func (s *SavedTally) atMost(t *SavedTally) bool {
	return s.Answers <= t.Answers && s.Bad <= t.Bad && s.Faults <= t.Faults && s.Failures <= t.Failures
}

func (s *SavedSigns) check(answers uint64) bool {
	for i, end := range [2]uint64{answers, s.Count} {
		if s.Base[0][i] > s.Base[1][i] || s.Base[1][i] > end {
			return false
		}
	}
	return s.Count < savedCounts && within(s.AskedNS)
}

func validAges(ages ...health.Age) bool {
	for _, a := range ages {
		if !a.Valid() {
			return false
		}
	}
	return true
}

// fine reports that a figure is one that can be measured.
func fine(x float64) bool { return x >= 0 && x < 1e18 && !math.IsNaN(x) }

// within reports that a number of nanoseconds, or of anything else, is no less
// than none and can be reckoned with.
func within(n int64) bool { return n >= 0 && n <= savedNS }

func causeKnown(name string) bool {
	if name == "" {
		return true
	}
	_, ok := health.CauseOf(name)
	return ok
}

// outcomeOf returns the outcome of a name; NoAnswer for any that is unknown.
func outcomeOf(name string) health.ProbeOutcome {
	for _, o := range []health.ProbeOutcome{health.Pass, health.NotReady, health.Overloaded} {
		if o.String() == name {
			return o
		}
	}
	return health.NoAnswer
}

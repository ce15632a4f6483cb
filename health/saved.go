// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/balance"
)

// Age says when something happened, or will, in a form that means the same to
// another process: nanoseconds before the export, negative for what lies after it.
// Zero: never. The instant of the export itself counts as a nanosecond earlier.
type Age int64

// AgeMost bounds what an Age may say, either way: a hundred years. More is no time
// that anybody measured.
const AgeMost = Age(100 * 365 * 24 * time.Hour)

// AgeOf returns the age that an instant has at now, at most AgeMost.
func AgeOf(now, at balance.Instant) Age {
	if a := Age(now.Sub(at)); a != 0 {
		return min(max(a, -AgeMost), AgeMost)
	}
	return 1
}

// Known reports that it happened at all.
func (a Age) Known() bool { return a != 0 }

// Valid reports whether the age can be a measured one.
func (a Age) Valid() bool { return a >= -AgeMost && a <= AgeMost }

// At returns the instant, on the time line on which the export happened at base.
func (a Age) At(base balance.Instant) balance.Instant { return base.Add(-time.Duration(a)) }

// What a Saved may hold at most. Whatever is above was not written by a Machine.
const (
	savedText  = 1 << 10 // bytes of one text; longer ones are cut
	savedCount = 1 << 20 // of anything that is counted in a row
)

// Saved is a Machine for another process. Words stand for states, causes and
// reasons, so that a version that numbers them otherwise understands them.
type Saved struct {
	Word      string        `json:"word"` // what probes and facts say: a State
	Full      bool          `json:"full,omitempty"`
	Failing   bool          `json:"failing,omitempty"`
	Suspect   bool          `json:"suspect,omitempty"`
	Cause     string        `json:"cause,omitempty"`
	Fact      bool          `json:"fact,omitempty"`
	Passes    int           `json:"passes,omitempty"`
	Fails     []SavedFail   `json:"fails,omitempty"`
	Odd       string        `json:"odd,omitempty"`
	OddRun    int           `json:"odd_run,omitempty"`
	Waited    int           `json:"waited,omitempty"`
	Until     Age           `json:"until,omitempty"` // end of the ejection; 0: not ejected
	Probation bool          `json:"probation,omitempty"`
	Level     int           `json:"level,omitempty"`
	Proven    Age           `json:"proven,omitempty"`
	Lost      float64       `json:"lost,omitempty"`
	Why       string        `json:"why,omitempty"`
	LastError string        `json:"last_error,omitempty"`
	Since     Age           `json:"since"`
	Flips     int           `json:"flips,omitempty"`
	History   []SavedChange `json:"history,omitempty"` // oldest first
}

// SavedFail is one failed probe of a streak.
type SavedFail struct {
	Sent Age  `json:"sent"`
	Firm bool `json:"firm,omitempty"`
}

// SavedChange is a Change.
type SavedChange struct {
	At     Age    `json:"at"`
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
}

// Export returns what the machine knows at now.
func (m *Machine) Export(now balance.Instant) Saved {
	s := Saved{
		Word: m.word.String(), Full: m.full, Failing: m.failing, Suspect: m.suspect, Fact: m.fact,
		Passes: m.passes, OddRun: m.oddRun, Waited: m.waited, Probation: m.probation, Level: m.level,
		Lost: m.lost, Why: cut(m.why), LastError: cut(m.lastError), Since: AgeOf(now, m.since), Flips: m.flips,
	}
	if m.cause != CauseNone {
		s.Cause = m.cause.String()
	}
	if m.oddRun > 0 {
		s.Odd = m.odd.String()
	}
	for _, f := range m.fails {
		s.Fails = append(s.Fails, SavedFail{AgeOf(now, f.at), f.firm})
	}
	if m.ejected {
		s.Until = AgeOf(now, m.until)
	}
	if m.proven != 0 {
		s.Proven = AgeOf(now, m.proven)
	}
	for _, c := range m.history {
		s.History = append(s.History, SavedChange{AgeOf(now, c.At), c.From.String(), c.To.String(), c.Reason.String(), cut(c.Why)})
	}
	return s
}

// Check says what of it no Machine can have written, nil if it is all right.
func (s *Saved) Check() error {
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"word", known(stateNames[:], s.Word)},
		{"cause", s.Cause == "" || known(causeNames[:], s.Cause)},
		{"odd", s.Odd == "" || known(stateNames[:], s.Odd)},
		{"passes", counts(s.Passes)},
		{"odd_run", counts(s.OddRun) && (s.OddRun == 0) == (s.Odd == "")},
		{"waited", counts(s.Waited)},
		{"fails", len(s.Fails) <= savedCount},
		{"until", s.Until.Valid()},
		{"level", counts(s.Level)},
		{"proven", s.Proven.Valid()},
		{"lost", s.Lost >= 0 && s.Lost < 1},
		{"since", s.Since.Valid()},
		{"flips", s.Flips >= 0},
	} {
		if !c.ok {
			return fmt.Errorf("health: %s cannot be", c.what)
		}
	}
	for _, f := range s.Fails {
		if !f.Sent.Valid() {
			return errors.New("health: fails: a time cannot be")
		}
	}
	for i := range s.History {
		c := &s.History[i]
		if !c.At.Valid() || !known(stateNames[:], c.From) || !known(stateNames[:], c.To) || !known(reasonNames[:], c.Reason) {
			return errors.New("health: history: an entry cannot be")
		}
	}
	return nil
}

// Restore brings the machine, which must have been started by Init, to what
// another one knew whose export was at base. s must have passed Check. The
// settings are the machine's own: what they have switched off is forgotten, and an
// ejection lasts no longer than they allow. What has ended meanwhile, Tick ends.
func (m *Machine) Restore(now, base balance.Instant, s *Saved) {
	*m = Machine{
		active: m.active, passive: m.passive,
		word: State(index(stateNames[:], s.Word)), full: s.Full, failing: s.Failing, suspect: s.Suspect, fact: s.Fact,
		passes: s.Passes, odd: State(index(stateNames[:], s.Odd)), oddRun: s.OddRun, waited: s.Waited,
		cause: Cause(index(causeNames[:], s.Cause)), probation: s.Probation, level: s.Level,
		lost: s.Lost, lastError: cut(s.LastError), since: s.Since.At(base), flips: s.Flips,
	}
	for _, f := range s.Fails {
		m.fails = append(m.fails, sent{f.Sent.At(base), f.Firm})
	}
	if s.Proven.Known() {
		m.proven = s.Proven.At(base)
	}
	if s.Until.Known() {
		longest := now.Add(max(m.passive.MaxEject, m.passive.ejection(m.level)))
		m.ejected, m.probation, m.until = true, false, min(s.Until.At(base), longest)
	}
	for _, c := range s.History[max(len(s.History)-historyMax, 0):] {
		m.history = append(m.history, Change{
			At: c.At.At(base), From: State(index(stateNames[:], c.From)), To: State(index(stateNames[:], c.To)),
			Reason: Reason(index(reasonNames[:], c.Reason)), Why: cut(c.Why),
		})
	}
	m.state, m.base, m.share, m.reason = m.compose()
	m.why = cut(s.Why)
	if !m.active.Enabled && m.word != StateHealthy || !m.passive.Enabled && (m.ejected || m.probation || m.level > 0) {
		m.Reconfigured(now)
	}
}

// SavedPressure is a Pressure for another process. The zero value has lost
// nothing.
type SavedPressure struct {
	Lost  float64 `json:"lost,omitempty"`
	Cut   Age     `json:"cut,omitempty"`
	Cuts  uint64  `json:"cuts,omitempty"`
	Moved Age     `json:"moved,omitempty"`
	Hold  Age     `json:"hold,omitempty"`
}

// Export returns the pressure at now.
func (p *Pressure) Export(now balance.Instant) SavedPressure {
	s := SavedPressure{Lost: p.lost, Cuts: p.cuts}
	if p.cuts > 0 {
		s.Cut = AgeOf(now, p.cut)
	}
	if p.moved != 0 {
		s.Moved = AgeOf(now, p.moved)
	}
	if p.hold != 0 {
		s.Hold = AgeOf(now, p.hold)
	}
	return s
}

// Check says what of it no Pressure can have written.
func (s *SavedPressure) Check() error {
	if !(s.Lost >= 0 && s.Lost < 1) || !s.Cut.Valid() || !s.Moved.Valid() || !s.Hold.Valid() {
		return errors.New("overload: cannot be")
	}
	return nil
}

// Restore takes over what Export returned at base. s must have passed Check. The
// share does not fall below the floor that o asks for, and is held for no longer
// than a Retry-After may.
func (p *Pressure) Restore(now, base balance.Instant, o *Overload, s *SavedPressure) {
	*p = Pressure{cuts: s.Cuts}
	if s.Cuts > 0 {
		p.cut = min(s.Cut.At(base), now)
	}
	if s.Moved.Known() {
		p.moved = min(s.Moved.At(base), now)
	}
	if !o.Enabled {
		return
	}
	p.lost = min(s.Lost, 1-o.LeastShare())
	if s.Hold.Known() {
		p.hold = min(s.Hold.At(base), now.Add(RetryAfterMax))
	}
}

func counts(n int) bool { return n >= 0 && n <= savedCount }

func known(names []string, word string) bool { return slices.Contains(names, word) }

// index returns a word's number; 0 for one that is unknown.
func index(names []string, word string) int { return max(slices.Index(names, word), 0) }

// cut bounds a text, at the beginning of a character.
func cut(s string) string {
	if len(s) <= savedText {
		return s
	}
	n := savedText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// CauseOf returns the cause of a name that Cause.String gave.
func CauseOf(name string) (Cause, bool) {
	return Cause(index(causeNames[:], name)), known(causeNames[:], name)
}

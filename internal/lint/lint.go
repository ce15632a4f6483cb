// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/config"
)

// Severity says how bad a finding is.
type Severity uint8

// The severities. Errors are goals that the configuration itself states and
// misses, and certificates no client accepts; `weir run` serves all the same.
const (
	Note    Severity = iota + 1 // worth knowing
	Warning                     // will hurt some day; fails under --strict
	Error                       // fails weir check
)

// String is the word for people.
func (s Severity) String() string {
	return [...]string{"", "note", "warning", "error"}[s]
}

// MarshalText is String, for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Rule is one item of the checklist.
type Rule struct {
	Name     string // what check.silence calls it
	Severity Severity
	Title    string // what is wrong, in general
	Why      string // what it leads to, and where that is known from
	Fix      string // what settles it, in general

	// find looks at a plan. It is nil for what internal/config notices while it
	// reads; then settle makes the fix from the path of the place.
	find   func(v *view)
	settle func(v *view, path []string) []config.Edit
}

// Page is where the rule is explained, from the root of the repository.
func (r *Rule) Page() string { return "docs/lints/" + r.Name + ".md" }

// Finding is one place where a rule applies.
type Finding struct {
	Rule     *Rule
	Severity Severity // the rule's, unless the case is better or worse
	Place    config.Place
	What     string        // what is wrong here
	Edits    []config.Edit // the fix; empty when it lies outside the configuration
	Fragment string        // the fix as a piece of configuration; empty when it only removes
	Remove   []string      // what the fix removes, such as pools.app.ewma
	Steps    []string      // the fix as single changes, where a fragment would be too long
}

// Bounds on what is said: a generated file may have one mistake 10,000 times.
const (
	mostFindings = 20 // of one rule; the last says how many there are beside
	mostLines    = 60 // of a fragment
)

// Input is what the rules look at.
type Input struct {
	Plan    *config.Plan
	Outline *config.Outline
	// Now is the time that certificates are held against.
	Now time.Time
	// ReadFile reads certificates and lists of backends, as os.ReadFile does. A
	// certificate that it cannot read is left to others to report. Nil: no file is
	// looked at.
	ReadFile func(name string) ([]byte, error)
	// Detection is how long a silent backend of the pool can go unnoticed by
	// probes at worst.
	Detection func(*config.Pool) time.Duration
	// Learned is after how long a running weir has seen backends of a pool close
	// idle connections, those that are in no file included. Nil: none is asked.
	Learned func(pool string) []Idle
}

// Idle is when a backend was seen to close idle connections.
type Idle struct {
	Backend string
	After   time.Duration
}

// Run returns what the rules find, the worst first, then in the order of the
// text, without what check.silence names. It does not change the input.
func Run(in Input) []Finding {
	v := &view{Input: in}
	for i := range rules {
		r := &rules[i]
		if slices.Contains(in.Plan.Check.Silence, r.Name) {
			continue
		}
		v.apply(r)
	}
	slices.SortStableFunc(v.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity),
			in.Outline.Compare(a.Place.Pos, b.Place.Pos))
	})
	return v.findings
}

// apply adds what one rule finds.
func (v *view) apply(r *Rule) {
	v.rule, v.first, v.more = r, len(v.findings), 0
	if r.find != nil {
		r.find(v)
	}
	for _, w := range v.Plan.Warnings {
		switch {
		case r.find != nil || w.Name != r.Name:
		case v.full():
			v.more++
		default:
			path := v.Outline.PathOf(w.Pos)
			var edits []config.Edit
			if r.settle != nil && path != nil {
				edits = r.settle(v, path)
			}
			v.found(path, w.Text, edits...)
		}
	}
	if v.more > 0 {
		v.findings[len(v.findings)-1].What += fmt.Sprintf(" (and %d more like this)", v.more)
	}
}

// full reports whether enough is said of the rule at hand.
func (v *view) full() bool { return len(v.findings)-v.first >= mostFindings }

// Rules returns the checklist, sorted by name.
func Rules() []Rule {
	out := slices.Clone(rules)
	slices.SortFunc(out, func(a, b Rule) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Find returns the rule with the name, or nil.
func Find(name string) *Rule {
	for i := range rules {
		if rules[i].Name == name {
			return &rules[i]
		}
	}
	return nil
}

// rules is the checklist; set once, by init, because findings refer to it.
var rules []Rule

func init() {
	rules = slices.Concat(timeoutRules, frontRules, checkRules, healthRules, retryRules, limitRules, balanceRules, schemeRules, stickyRules, routeRules, nameRules, sourceRules, trustRules, proxyRules, slices.Concat(certificateRules, acmeRules))
}

// view is an input while rules look at it.
type view struct {
	Input
	rule     *Rule
	first    int // of the rule's findings
	more     int // findings of the rule beyond mostFindings
	findings []Finding
	leaves   map[string]*x509.Certificate // by file; nil: cannot be read
}

// found records a finding at a path.
func (v *view) found(path []string, what string, edits ...config.Edit) {
	v.foundAs(v.rule.Severity, path, what, edits...)
}

// foundAs is found with another severity than the rule's.
func (v *view) foundAs(s Severity, path []string, what string, edits ...config.Edit) {
	if v.full() {
		v.more++
		return
	}
	f := Finding{Rule: v.rule, Severity: s, Place: v.Outline.At(path...), What: what}
	if text, err := v.Outline.Fragment(edits...); err == nil && len(edits) > 0 {
		f.Edits = edits
		long := strings.Count(text, "\n") > mostLines
		for _, e := range edits {
			at := strings.Join(e.Path, ".")
			switch {
			case e.Value == "" && (long || !inList(e.Path)): // else the list is written without it
				f.Remove = append(f.Remove, at)
			case long:
				f.Steps = append(f.Steps, at+": "+e.Value)
			}
		}
		if !long {
			f.Fragment = text
		}
	}
	v.findings = append(v.findings, f)
}

func inList(path []string) bool {
	return slices.ContainsFunc(path[min(2, len(path)):], func(step string) bool { return strings.Trim(step, "0123456789") == "" })
}

// path joins steps and lists of them.
func path(steps ...any) []string {
	var out []string
	for _, s := range steps {
		switch s := s.(type) {
		case string:
			out = append(out, s)
		case []string:
			out = append(out, s...)
		case int:
			out = append(out, fmt.Sprint(s))
		}
	}
	return out
}

func write(at []string, value string) config.Edit { return config.Edit{Path: at, Value: value} }
func remove(at []string) config.Edit              { return config.Edit{Path: at} }

// removal settles a finding by removing what it is about, up to the given
// number of steps.
func removal(steps int) func(*view, []string) []config.Edit {
	return func(_ *view, at []string) []config.Edit {
		if len(at) < steps {
			return nil
		}
		return []config.Edit{remove(at[:steps])}
	}
}

// setting settles a finding by writing a value where it is.
func setting(value string) func(*view, []string) []config.Edit {
	return func(_ *view, at []string) []config.Edit { return []config.Edit{write(at, value)} }
}

// pools calls f for each pool and its path.
func (v *view) pools(f func(p *config.Pool, at []string)) {
	for i := range v.Plan.Pools {
		p := &v.Plan.Pools[i]
		f(p, path("pools", p.Name))
	}
}

// listeners calls f for each listener and its path.
func (v *view) listeners(f func(l *config.Listener, at []string)) {
	for i := range v.Plan.Listeners {
		l := &v.Plan.Listeners[i]
		f(l, path("listeners", l.Name))
	}
}

// routes calls f for each route that leads to a pool, and its path.
func (v *view) routes(f func(r *config.Route, p *config.Pool, at []string)) {
	v.listeners(func(l *config.Listener, at []string) {
		for i := range l.Routes {
			r := &l.Routes[i]
			here := path(at, "routes", i)
			if !v.Outline.Has(here...) {
				here = path(at, "pool")
			}
			if p := v.Plan.Pool(r.Pool); p != nil {
				f(r, p, here)
			}
		}
	})
}

// at returns the first of some paths that the text has, or the last.
func (v *view) at(paths ...[]string) []string {
	for _, p := range paths {
		if v.Outline.Has(p...) {
			return p
		}
	}
	return paths[len(paths)-1]
}

// dur shows a duration without units of zero.
func dur(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// part is a part of a duration as one would write it.
func part(d time.Duration, of int) string {
	d /= time.Duration(of)
	switch {
	case d > 10*time.Second:
		d = d.Truncate(time.Second)
	case d > time.Second:
		d = d.Truncate(100 * time.Millisecond)
	default:
		d = max(d.Truncate(time.Millisecond), time.Millisecond)
	}
	return dur(d)
}

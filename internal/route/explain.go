// SPDX-License-Identifier: Apache-2.0

package route

import (
	"github.com/weirlb/weir/internal/message"
)

// Condition is one of the conditions of a rule, in the order in which they are
// looked at.
type Condition uint8

// The conditions.
const (
	NoCondition Condition = iota
	OnHost
	OnPath // path or path_prefix
	OnSNI
	OnMethod
	OnHeader
	OnALPN  // of Names
	OnAsked // of Names: the client asked for TLS in another protocol first
)

// String returns the word used in explanations.
func (c Condition) String() string {
	return [...]string{"", "host", "path", "sni", "method", "header", "alpn", "starttls"}[min(c, OnAsked)]
}

// Verdict is what became of one rule.
type Verdict struct {
	Rule   Rule // as in Order
	Chosen bool
	// Holds says that all its conditions hold. A rule that holds and is not
	// chosen comes after the one that is, or after one that a careless reading of
	// a path without a normal form belongs to.
	Holds  bool
	Failed Condition // the first that does not hold
	Header Header    // it, when Failed is OnHeader
}

// Explanation is what Match does with a request, rule by rule.
type Explanation struct {
	Rules  []Verdict // in the order in which they are tried
	Number int       // Index of the chosen rule; -1 when there is none
	Routed []byte    // the path that is forwarded
	Err    *Error    // why the request cannot be routed at all
}

// Explain runs Match, and says of each rule whether it would match on its own and
// which of its conditions is the first that does not hold: it builds a table of
// that rule with more and more of its conditions and asks Match. Only r.Routed and
// r.Scratch change, as by Match.
func (t *Table) Explain(r *message.Request) Explanation {
	e := Explanation{Rules: make([]Verdict, len(t.order))}
	for i, rule := range t.order {
		v := &e.Rules[i]
		v.Rule = rule
		v.Failed, v.Header = failing(&rule, r)
		v.Holds = v.Failed == NoCondition
	}
	number, ok, err := t.Match(r)
	e.Number, e.Routed, e.Err = -1, r.Routed, err
	if ok && err == nil {
		e.Number = number
		for i := range e.Rules {
			if v := &e.Rules[i]; v.Rule.Index == number && v.Holds {
				v.Chosen = true
				break
			}
		}
	}
	return e
}

// failing returns the first condition of a rule that a request does not meet. A
// path without a normal form meets that of no rule but a raw one.
func failing(rule *Rule, r *message.Request) (Condition, Header) {
	part := Rule{Host: rule.Host}
	if !part.matches(&message.Request{Path: rootPath, Authority: r.Authority}) {
		return OnHost, Header{}
	}
	part.Raw, part.Path, part.PathPrefix = rule.Raw, rule.Path, rule.PathPrefix
	if !part.matches(r) {
		return OnPath, Header{}
	}
	if part.SNI = rule.SNI; !part.matches(r) {
		return OnSNI, Header{}
	}
	if part.Methods = rule.Methods; !part.matches(r) {
		return OnMethod, Header{}
	}
	for _, h := range rule.Headers {
		if part.Headers = []Header{h}; !part.matches(r) {
			return OnHeader, h
		}
	}
	return NoCondition, Header{}
}

// matches reports whether a table of this one rule matches.
func (r *Rule) matches(q *message.Request) bool {
	t, err := New([]Rule{*r})
	if err != nil {
		return false // only rules of a table that was built get here
	}
	_, ok, bad := t.Match(q)
	return ok && bad == nil
}

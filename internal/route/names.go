// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/message"
)

// NameRule is one route's conditions on a TLS ClientHello. All that are set must
// hold; the zero value takes every hello.
type NameRule struct {
	// SNI lists server names, exact or `*.example.com` for one or more labels before
	// example.com; the client must ask for one of them. Empty: any, and none.
	SNI []string
	// ALPN lists protocols, as on the wire; the client must offer one of them.
	// Empty: any, and none.
	ALPN []string
	// Asked says that the rule is for clients that asked for TLS in another protocol
	// first, too; other rules are only for those who began with it.
	Asked bool
	// Index is the caller's number for the rule; Match returns it.
	Index int
}

// Asking is what a client says in its hello.
type Asking struct {
	Name  string   // in lower case without trailing dot; empty: none
	ALPN  []string // nil: none
	Asked bool     // it asked for TLS first
}

// Names holds rules by name: exact names before wildcards, those with the longest
// first, before rules without a name; and as they were given. The first whose
// conditions all hold wins. It is immutable and safe for concurrent use.
type Names struct {
	rules []NameRule
	exact map[string][]*NameRule
	wild  map[string][]*NameRule // by what follows "*."
	any   []*NameRule
}

// NewNames builds a table. It fails on a name that is none.
func NewNames(rules []NameRule) (*Names, error) {
	t := &Names{rules: slices.Clone(rules), exact: map[string][]*NameRule{}, wild: map[string][]*NameRule{}}
	for i := range t.rules {
		r := &t.rules[i]
		names := r.SNI
		r.SNI = nil
		for _, n := range names {
			name, ok := cleanPattern(n)
			if !ok {
				return nil, fmt.Errorf("rule %d: sni %q is no name and no *.name", r.Index, n)
			}
			if slices.Contains(r.SNI, name) {
				continue
			}
			r.SNI = append(r.SNI, name)
			if rest, ok := strings.CutPrefix(name, "*."); ok {
				t.wild[rest] = append(t.wild[rest], r)
			} else {
				t.exact[name] = append(t.exact[name], r)
			}
		}
		if len(names) == 0 {
			t.any = append(t.any, r)
		}
	}
	return t, nil
}

// Match returns the Index of the rule that takes the client; ok is false when none
// does. Nothing is allocated.
func (t *Names) Match(a *Asking) (index int, ok bool) {
	if a.Name != "" {
		if r := firstName(t.exact[a.Name], a); r != nil {
			return r.Index, true
		}
		for rest := a.Name; len(t.wild) > 0; {
			var more bool
			if _, rest, more = strings.Cut(rest, "."); !more {
				break
			}
			if r := firstName(t.wild[rest], a); r != nil {
				return r.Index, true
			}
		}
	}
	if r := firstName(t.any, a); r != nil {
		return r.Index, true
	}
	return -1, false
}

func firstName(list []*NameRule, a *Asking) *NameRule {
	for _, r := range list {
		if r.failing(a) == NoCondition {
			return r
		}
	}
	return nil
}

// failing returns the first condition beside the name that does not hold.
func (r *NameRule) failing(a *Asking) Condition {
	switch {
	case a.Asked && !r.Asked:
		return OnAsked
	case len(r.ALPN) > 0 && !slices.ContainsFunc(r.ALPN, func(p string) bool { return slices.Contains(a.ALPN, p) }):
		return OnALPN
	}
	return NoCondition
}

// NameVerdict is what became of one rule.
type NameVerdict struct {
	Index  int
	Chosen bool
	Failed Condition // the first that does not hold; NoCondition where another rule comes before
}

// Explain says of each rule what Match makes of it, in the order in which they are
// tried; a rule stands where the first of its names does.
func (t *Names) Explain(a *Asking) []NameVerdict {
	chosen, ok := t.Match(a)
	order := make([]*NameRule, 0, len(t.rules))
	for i := range t.rules {
		order = append(order, &t.rules[i])
	}
	slices.SortStableFunc(order, func(x, y *NameRule) int { return y.rank() - x.rank() })
	out := make([]NameVerdict, 0, len(order))
	for _, r := range order {
		v := NameVerdict{Index: r.Index, Chosen: ok && r.Index == chosen}
		if !v.Chosen {
			if v.Failed = r.failing(a); len(r.SNI) > 0 && !nameIn(r.SNI, a.Name) {
				v.Failed = OnSNI
			}
		}
		out = append(out, v)
	}
	return out
}

// rank orders rules as they are looked at: by the most exact of their names.
func (r *NameRule) rank() (n int) {
	for _, name := range r.SNI {
		if rest, ok := strings.CutPrefix(name, "*."); ok {
			n = max(n, len(rest))
		} else {
			return maxHost
		}
	}
	return n
}

// cleanPattern returns a server name, or a wildcard, as it is compared.
func cleanPattern(name string) (string, bool) {
	name = cleanHost(name)
	bare, _ := strings.CutPrefix(name, "*.")
	return name, bare != "" && len(bare) < maxHost && !strings.ContainsAny(bare, "*/ ")
}

func cleanNames(names []string) (out []string) {
	for _, n := range names {
		out = append(out, cleanHost(n))
	}
	return out
}

// nameIn reports whether a name is one of the patterns, which are clean.
func nameIn(patterns []string, name string) bool {
	for _, p := range patterns {
		if p == name && name != "" || len(p) > 1 && p[0] == '*' && len(name) > len(p)-1 && strings.HasSuffix(name, p[1:]) {
			return true
		}
	}
	return false
}

// NameSet is a set of server names, exact or with a wildcard at the front. The zero
// value has none.
type NameSet []string

// NewNameSet returns a set of names, in any case.
func NewNameSet(names []string) NameSet { return cleanNames(names) }

// Has reports whether a name, which is in lower case, is in the set.
func (s NameSet) Has(name string) bool { return nameIn(s, name) }

// Misdirected reports that the host of a request is in the set and the server name
// of its connection is not, or the other way round. It is false of an empty set.
func (s NameSet) Misdirected(r *message.Request) bool {
	if len(s) == 0 || !r.TLS {
		return false
	}
	var buf [maxHost]byte
	return s.Has(r.ServerName) != s.Has(string(hostOf(&buf, r.Authority)))
}

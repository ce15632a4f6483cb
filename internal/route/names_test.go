// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/internal/message"
)

// under reads a pattern as the documentation says it, label by label.
func under(pattern, name string) bool {
	p, n := strings.Split(pattern, "."), strings.Split(name, ".")
	if p[0] != "*" {
		return name != "" && slices.Equal(p, n)
	}
	return len(n) >= len(p) && slices.Equal(n[len(n)-len(p)+1:], p[1:])
}

// TestNamesAgainstOracle: what Match chooses is what reading every rule says, and
// Explain says the same.
func TestNamesAgainstOracle(t *testing.T) {
	patterns := []string{"a.org", "b.org", "*.a.org", "*.org", "x.a.org", "*.x.a.org", "com"}
	names := []string{"", "a.org", "b.org", "x.a.org", "y.x.a.org", "org", "com", "aa.org", "x.com"}
	protocols := []string{"h2", "http/1.1", "postgresql"}
	some := func(of []string, most int) *rapid.Generator[[]string] {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, most, rapid.ID)
	}
	rapid.Check(t, func(t *rapid.T) {
		var rules []NameRule
		for i := range rapid.IntRange(0, 6).Draw(t, "rules") {
			rules = append(rules, NameRule{
				SNI: some(patterns, 3).Draw(t, "sni"), ALPN: some(protocols, 2).Draw(t, "alpn"),
				Asked: rapid.Bool().Draw(t, "asked"), Index: i,
			})
		}
		tab, err := NewNames(rules)
		if err != nil {
			t.Fatal(err)
		}
		a := Asking{Name: rapid.SampledFrom(names).Draw(t, "name"), ALPN: some(protocols, 3).Draw(t, "offered"), Asked: rapid.Bool().Draw(t, "asks")}
		want, best := -1, -1
		for i, r := range rules {
			rank := -1 // the longest pattern that the name is under; exact ones before all
			for _, p := range r.SNI {
				if under(p, a.Name) {
					if rank = max(rank, len(p)); p == a.Name {
						rank = 1000
					}
				}
			}
			if len(r.SNI) == 0 {
				rank = 0
			}
			offered := len(r.ALPN) == 0 || slices.ContainsFunc(r.ALPN, func(p string) bool { return slices.Contains(a.ALPN, p) })
			if rank > best && offered && (!a.Asked || r.Asked) {
				want, best = i, rank
			}
		}
		got, ok := tab.Match(&a)
		if got != want || ok != (want >= 0) {
			t.Fatalf("%+v of %+v: %d, want %d", a, rules, got, want)
		}
		var chosen []int
		for _, v := range tab.Explain(&a) {
			if v.Chosen {
				chosen = append(chosen, v.Index)
			} else if v.Failed == NoCondition && want < 0 {
				t.Fatalf("rule %d fails nothing, and none is chosen", v.Index)
			}
		}
		if len(chosen) > 1 || want >= 0 && (len(chosen) != 1 || chosen[0] != want) {
			t.Fatalf("explained %v, want %d", chosen, want)
		}
	})
}

func TestNamesRefused(t *testing.T) {
	for _, bad := range []string{"", "*", "*.", "a.*.org", "*a.org", "a b"} {
		if _, err := NewNames([]NameRule{{SNI: []string{bad}}}); err == nil {
			t.Errorf("%q passes", bad)
		}
		if _, err := New([]Rule{{SNI: []string{bad}}}); err == nil {
			t.Errorf("%q passes for requests", bad)
		}
	}
}

// TestServerName: a request's connection decides beside its head, and a request
// whose rules are all of other names is misdirected, not unknown.
func TestServerName(t *testing.T) {
	tab, err := New(number([]Rule{
		0: {Host: "a.org", SNI: []string{"A.org."}},
		1: {Host: "a.org", PathPrefix: "/open"},
		2: {Host: "b.org", SNI: []string{"*.b.org", "b.org"}},
		3: {SNI: []string{"c.org"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, host, path, want string
		misdirected            bool
	}{
		{"a.org", "a.org", "/x", "0 /x", false},
		{"a.org", "a.org", "/open", "1 /open", false}, // the longer path comes first
		{"b.org", "a.org", "/open", "1 /open", false},
		{"b.org", "a.org", "/x", "none", true},
		{"", "a.org", "/x", "none", true},
		{"x.b.org", "b.org", "/", "2 /", false},
		{"xb.org", "b.org", "/", "none", true},
		{"c.org", "any.org", "/", "3 /", false},
		{"c.org", "a.org", "/", "3 /", false},
		{"d.org", "d.org", "/", "none", true}, // on a connection for c.org it would be served
	} {
		r := request("GET", c.host, c.path)
		r.TLS, r.ServerName = true, c.name
		if got := answer(tab, r); got != c.want || c.want == "none" && tab.Misdirected(r) != c.misdirected {
			t.Errorf("%q for %q %s: %s, misdirected %v", c.name, c.host, c.path, got, tab.Misdirected(r))
		}
		if c.want != "none" {
			continue
		}
		for _, v := range tab.Explain(r).Rules {
			if v.Rule.Host == c.host && v.Rule.PathPrefix == "" && v.Failed != OnSNI {
				t.Errorf("%q for %q: rule %d fails on %s", c.name, c.host, v.Rule.Index, v.Failed)
			}
		}
	}
	plain := request("GET", "a.org", "/x")
	if tab.Misdirected(plain) {
		t.Error("a request without TLS is misdirected")
	}
}

func TestNameSet(t *testing.T) {
	s := NewNameSet([]string{"Admin.org", "*.Secret.org"})
	for name, want := range map[string]bool{"admin.org": true, "x.admin.org": false, "a.secret.org": true, "a.b.secret.org": true, "secret.org": false, "": false} {
		if s.Has(name) != want {
			t.Errorf("%q: %v", name, s.Has(name))
		}
	}
	for _, c := range []struct {
		name, host string
		want       bool
	}{
		{"admin.org", "admin.org", false}, {"admin.org", "ADMIN.org:443", false}, {"admin.org", "a.secret.org.", false},
		{"open.org", "admin.org", true}, {"", "admin.org", true}, {"admin.org", "open.org", true}, {"open.org", "", false},
	} {
		r := &message.Request{TLS: true, ServerName: c.name, Authority: []byte(c.host)}
		if got := s.Misdirected(r); got != c.want {
			t.Errorf("%q with Host %q: %v", c.name, c.host, got)
		}
	}
	if NameSet(nil).Misdirected(&message.Request{TLS: true, ServerName: "a", Authority: []byte("b")}) {
		t.Error("nobody is asked, and a request is misdirected")
	}
}

// SPDX-License-Identifier: Apache-2.0

package route

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/internal/message"
)

// What is explained is what Match does, and what is said of each rule is what a
// naive reading of its conditions says.
func TestExplainAgainstOracle(t *testing.T) {
	segments := []string{"a", "b", "ab", "", "..", "%61", "a%2fb", "%"}
	rapid.Check(t, func(t *rapid.T) {
		path := func(label string) string {
			return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 0, 3).Draw(t, label), "/")
		}
		var rules []Rule
		for i := range rapid.IntRange(0, 6).Draw(t, "rules") {
			r := Rule{Host: rapid.SampledFrom([]string{"", "a.org", "*.org", "*.a.org"}).Draw(t, "host"), Raw: rapid.Bool().Draw(t, "raw"), Index: i}
			p := path("path")
			if n, ok := specNormalize(p, false); !r.Raw && ok {
				p = n
			} else if !r.Raw {
				p = "/a"
			}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				r.Path = p
			case 1:
				r.PathPrefix = p
			}
			r.Methods = rapid.SampledFrom([][]string{nil, nil, {"POST"}}).Draw(t, "methods")
			r.Headers = rapid.SampledFrom([][]Header{nil, nil, {{"X-A", "1"}}}).Draw(t, "headers")
			rules = append(rules, r)
		}
		tab, err := New(rules)
		if err != nil {
			t.Fatal(err)
		}
		r := request(rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
			rapid.SampledFrom([]string{"", "a.org", "x.a.org:80", "c.net"}).Draw(t, "asked"), path("asked path"))
		if rapid.Bool().Draw(t, "with field") {
			r.Fields.Add(message.Other, "x-a", "1")
		}
		number, ok, bad := tab.Match(r)
		if !ok || bad != nil {
			number = -1
		}
		e := tab.Explain(r)
		if e.Number != number || e.Err != bad {
			t.Fatalf("explained %d (%v), matched %d (%v)", e.Number, e.Err, number, bad)
		}
		normal, plain := specNormalize(string(r.Path), false)
		chosen := -1
		for i := range e.Rules {
			v := &e.Rules[i]
			asked := normal
			if v.Rule.Raw {
				asked = string(r.Path)
			}
			if want := (plain || v.Rule.Raw) && naive(v.Rule, r, asked); v.Holds != want {
				t.Fatalf("%s %q %q: rule %+v holds: %v, naively %v", r.Method, r.Authority, r.Path, v.Rule, v.Holds, want)
			}
			if v.Holds != (v.Failed == NoCondition) || v.Chosen && !v.Holds {
				t.Fatalf("%+v contradicts itself", v)
			}
			if v.Chosen {
				if chosen >= 0 {
					t.Fatal("two are chosen")
				}
				chosen = v.Rule.Index
			}
		}
		if chosen != number {
			t.Fatalf("%d is marked as chosen, %d is", chosen, number)
		}
	})
}

func TestExplainFailed(t *testing.T) {
	tab, err := New([]Rule{
		{Host: "api.example.com", PathPrefix: "/v1", Methods: []string{"POST"}, Index: 0},
		{Host: "api.example.com", PathPrefix: "/v1", Headers: []Header{{"X-Canary", "1"}}, Index: 1},
		{Host: "www.example.com", Index: 2},
		{PathPrefix: "/v10", Index: 3},
		{Index: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := tab.Explain(request("GET", "api.example.com", "/v1/x"))
	want := map[int]Condition{0: OnMethod, 1: OnHeader, 2: OnHost, 3: OnPath, 4: NoCondition}
	for _, v := range e.Rules {
		if v.Failed != want[v.Rule.Index] || v.Chosen != (v.Rule.Index == 4) {
			t.Errorf("rule %d: fails on %q", v.Rule.Index, v.Failed)
		}
	}
}

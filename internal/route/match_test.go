// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/internal/message"
)

func request(method, host, path string, fields ...string) *message.Request {
	r := &message.Request{Method: []byte(method), Authority: []byte(host), Path: []byte(path)}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Fields.Add(message.Other, fields[i], fields[i+1])
	}
	return r
}

// answer is what Match said, as text: the rule's number and the routed path,
// "none" or the error.
func answer(tab *Table, r *message.Request) string {
	n, ok, err := tab.Match(r)
	switch {
	case err != nil:
		return "400"
	case !ok:
		return "none"
	default:
		return fmt.Sprintf("%d %s", n, r.Routed)
	}
}

func number(rules []Rule) []Rule {
	for i := range rules {
		rules[i].Index = i
	}
	return rules
}

func TestMatch(t *testing.T) {
	tab, err := New(number([]Rule{
		0:  {},
		1:  {PathPrefix: "/v1"},
		2:  {PathPrefix: "/v1/users"},
		3:  {Path: "/v1"},
		4:  {Host: "*.example.com"},
		5:  {Host: "*.api.example.com", PathPrefix: "/v1"},
		6:  {Host: "Api.Example.com.", PathPrefix: "/v1"},
		7:  {Host: "api.example.com", PathPrefix: "/v1", Methods: []string{"POST", "PUT"}},
		8:  {Host: "api.example.com", Path: "/v1/", Headers: []Header{{"X-Canary", "1"}}},
		9:  {PathPrefix: "/dir/"},
		10: {Host: "[::1]", PathPrefix: "/six"},
		11: {Host: "api.example.com", PathPrefix: "/v2", Methods: []string{"POST"}},
		12: {Host: "api.example.com", PathPrefix: "/v2", Methods: []string{"GET"}},
		13: {PathPrefix: "/caf%C3%A9"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		r    *message.Request
		want string
	}{
		{request("GET", "x.org", "/"), "0 /"},
		{request("GET", "x.org", "/v1"), "3 /v1"},
		{request("GET", "x.org", "/v1/"), "1 /v1/"},
		{request("GET", "x.org", "/v10"), "0 /v10"},
		{request("GET", "x.org", "/v1x/users"), "0 /v1x/users"},
		{request("GET", "x.org", "/v1/users"), "2 /v1/users"},
		{request("GET", "x.org", "/v1/users/7"), "2 /v1/users/7"},
		{request("GET", "x.org", "/v1/usersx"), "1 /v1/usersx"},
		{request("GET", "x.org", "/v1//x/../users"), "2 /v1/users"},
		{request("GET", "x.org", "/v1/users/.."), "1 /v1/"},
		{request("GET", "x.org", "/%76%31"), "3 /v1"},
		{request("GET", "x.org", "/dir"), "0 /dir"},
		{request("GET", "x.org", "/dir/"), "9 /dir/"},
		{request("GET", "x.org", "/dir/x"), "9 /dir/x"},
		{request("GET", "x.org", "/dir/x/y"), "9 /dir/x/y"},
		{request("GET", "x.org", "/caf%c3%a9/1"), "13 /caf%C3%A9/1"},
		{request("GET", "x.org", "/a%2fb"), "400"},
		{request("GET", "x.org", "/%zz"), "400"},
		{request("GET", "", "/v1"), "3 /v1"},
		{request("OPTIONS", "x.org", "*"), "0 *"},
		{request("OPTIONS", "a.example.com", "*"), "4 *"},
		{request("GET", "example.com", "/"), "0 /"},
		{request("GET", ".example.com", "/"), "0 /"},
		{request("GET", "a.example.com", "/v1"), "4 /v1"},
		{request("GET", "a.b.example.com", "/v1"), "4 /v1"},
		{request("GET", "a.api.example.com", "/v1"), "5 /v1"},
		{request("GET", "a.api.example.com", "/v2"), "4 /v2"},
		{request("GET", "api.example.com", "/v1"), "6 /v1"},
		{request("GET", "API.example.COM.:8443", "/v1"), "6 /v1"},
		{request("GET", "api.example.com:", "/v1"), "6 /v1"},
		{request("GET", "api.example.com..", "/v1"), "3 /v1"},
		{request("POST", "api.example.com", "/v1"), "6 /v1"}, // file order: 6 has no conditions and comes first
		{request("GET", "api.example.com", "/v1/"), "6 /v1/"},
		{request("GET", "api.example.com", "/v1/", "x-canary", "1"), "8 /v1/"},
		{request("GET", "api.example.com", "/v1/", "x-canary", "2", "X-CANARY", "1"), "8 /v1/"},
		{request("GET", "api.example.com", "/v1/", "x-canary", "10"), "6 /v1/"},
		{request("GET", "api.example.com", "/v2"), "12 /v2"},
		{request("POST", "api.example.com", "/v2"), "11 /v2"},
		{request("post", "api.example.com", "/v2"), "4 /v2"}, // methods are case-sensitive; the wildcard's rules are next
		{request("GET", "[::1]:8080", "/six"), "10 /six"},
		{request("GET", "[::1]", "/six"), "10 /six"},
		{request("GET", "::1", "/six"), "0 /six"},
		{request("GET", strings.Repeat("a", 300)+".example.com", "/"), "0 /"},
	} {
		if got := answer(tab, c.r); got != c.want {
			t.Errorf("%s %q %q: %s, want %s", c.r.Method, c.r.Authority, c.r.Path, got, c.want)
		}
	}
}

func TestMatchWithoutHost(t *testing.T) {
	tab, err := New(number([]Rule{{Host: "a.org"}, {Host: "*.a.org"}, {PathPrefix: "/x"}}))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/": "none", "/x": "2 /x", "//x/..": "none"} {
		if got := answer(tab, request("GET", "", path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestMatchRaw(t *testing.T) {
	tab, err := New(number([]Rule{
		0: {PathPrefix: "/admin"},
		1: {PathPrefix: "/files", Raw: true},
		2: {PathPrefix: "/files/public"},
		3: {PathPrefix: "/", Raw: true},
		4: {Path: "/exact//odd", Raw: true},
		5: {Host: "strict.org"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, path, want string }{
		{"x", "/files/a%2fb", "1 /files/a%2fb"},
		{"x", "/files//a/../b", "1 /files//a/../b"},
		{"x", "/files/%zz", "1 /files/%zz"},
		{"x", "/files/public", "2 /files/public"},
		{"x", "/files/x/../public", "2 /files/public"}, // the normal form belongs to an earlier rule
		{"x", "/files/public%2fx", "400"},              // a careless backend would see /files/public/x
		{"x", "/exact//odd", "4 /exact//odd"},
		{"x", "/exact/odd", "3 /exact/odd"},
		{"x", "/admin", "0 /admin"},
		{"x", "/x/../admin", "0 /admin"},
		{"x", "/x/%2e%2e/admin", "0 /admin"},
		{"x", "/admin%2fx", "400"},
		{"x", `/x\..\admin`, "400"},
		{"x", "/x/..%5cadmin/%zz", "400"},
		{"x", "/%zz", "3 /%zz"},
		{"x", "/adminx%2f", "3 /adminx%2f"},
		{"strict.org", "/%2f", "400"},
		{"strict.org", "/a", "5 /a"},
	} {
		if got := answer(tab, request("GET", c.host, c.path)); got != c.want {
			t.Errorf("%s%s: %s, want %s", c.host, c.path, got, c.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for want, r := range map[string]Rule{
		"wildcard":      {Host: "a.*.org"},
		"whole labels":  {Host: "*."},
		"*.example.com": {Host: "*example.com"},
		"exclude":       {Path: "/a", PathPrefix: "/b"},
		"slash":         {Path: "a"},
		"normal form":   {PathPrefix: "/a//b"},
		"encoded slash": {Path: "/a%2fb"},
	} {
		if _, err := New([]Rule{r}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	if _, err := New([]Rule{{Path: "/a%2fb", Raw: true}, {Host: "*.A.org."}}); err != nil {
		t.Error(err)
	}
}

func TestOrder(t *testing.T) {
	rules := number([]Rule{
		{}, {PathPrefix: "/a"}, {Host: "*.org"}, {Host: "b.org", PathPrefix: "/"}, {Host: "*.b.org"},
		{Host: "b.org", Path: "/x"}, {PathPrefix: "/ab"}, {PathPrefix: "/a", Methods: []string{"GET"}},
	})
	tab, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, r := range tab.Order() {
		got = append(got, r.Index)
	}
	if want := []int{5, 3, 4, 2, 6, 1, 7, 0}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// oracle reads S14 literally: walk the sorted list, take the first whose
// conditions all hold.
func oracle(order []Rule, r *message.Request) string {
	normal, ok := specNormalize(string(r.Path), false)
	star := string(r.Path) == "*"
	if star {
		normal, ok = "*", true
	}
	careless, _ := specNormalize(string(r.Path), true)
	for _, rule := range order {
		path, blocked := normal, false
		switch {
		case rule.Raw:
			path = string(r.Path)
		case !ok:
			path, blocked = careless, true
		}
		if !naive(rule, r, path) {
			continue
		}
		if blocked {
			return "400"
		}
		return fmt.Sprintf("%d %s", rule.Index, path)
	}
	if !ok {
		return "400"
	}
	return "none"
}

func naive(rule Rule, r *message.Request, path string) bool {
	host := strings.ToLower(string(r.Authority))
	if i := strings.LastIndex(host, ":"); i >= 0 && !strings.Contains(host[i:], "]") {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if rule.Host != "" {
		if suffix, wild := strings.CutPrefix(rule.Host, "*"); wild {
			if !strings.HasSuffix(host, suffix) || host == suffix {
				return false
			}
		} else if host != rule.Host {
			return false
		}
	}
	switch p := rule.PathPrefix; {
	case rule.Path != "" && rule.Path != path:
		return false
	case p == "":
	case strings.HasSuffix(p, "/") && !strings.HasPrefix(path, p):
		return false
	case !strings.HasSuffix(p, "/") && path != p && !strings.HasPrefix(path, p+"/"):
		return false
	}
	if len(rule.Methods) > 0 && !slices.Contains(rule.Methods, string(r.Method)) {
		return false
	}
	for _, h := range rule.Headers {
		v, ok := r.Fields.Lookup(h.Name)
		if !ok || string(v) != h.Value {
			return false
		}
	}
	return true
}

func TestMatchAgainstOracle(t *testing.T) {
	hosts := []string{"", "a.org", "b.org", "*.org", "*.a.org", "*.b.a.org", "x.a.org"}
	asked := []string{"", "a.org", "A.ORG:80", "b.org.", "x.a.org", "y.x.a.org", "q.b.a.org", ".org", "org", "c.net"}
	segments := []string{"a", "b", "ab", "", ".", "..", "%61", "a%2fb", `\a`, "%c3", "%C3", "%", "..%2fa"}
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.Custom(func(t *rapid.T) string {
			return "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 0, 5).Draw(t, "segments"), "/")
		})
		var rules []Rule
		for i := range rapid.IntRange(0, 12).Draw(t, "rules") {
			r := Rule{Host: rapid.SampledFrom(hosts).Draw(t, "host"), Raw: rapid.Bool().Draw(t, "raw"), Index: i}
			p := paths.Draw(t, "path")
			if !r.Raw {
				if n, ok := specNormalize(p, false); ok {
					p = n
				} else {
					p = "/a"
				}
			}
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				r.Path = p
			case 1, 2:
				r.PathPrefix = p
			}
			if rapid.IntRange(0, 3).Draw(t, "method") == 0 {
				r.Methods = []string{"POST"}
			}
			if rapid.IntRange(0, 5).Draw(t, "header") == 0 {
				r.Headers = []Header{{"X-A", "1"}}
			}
			rules = append(rules, r)
		}
		tab, err := New(rules)
		if err != nil {
			t.Fatalf("%+v: %v", rules, err)
		}
		for range 8 {
			path := paths.Draw(t, "asked path")
			if rapid.IntRange(0, 20).Draw(t, "star") == 0 {
				path = "*"
			}
			r := request(rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"), rapid.SampledFrom(asked).Draw(t, "host"), path)
			if rapid.Bool().Draw(t, "with field") {
				r.Fields.Add(message.Other, "x-a", "1")
			}
			if got, want := answer(tab, r), oracle(tab.Order(), r); got != want {
				t.Fatalf("%s %q %q over %+v: %s, the oracle says %s", r.Method, r.Authority, r.Path, tab.Order(), got, want)
			}
		}
	})
}

func TestMatchAllocatesNothing(t *testing.T) {
	tab, err := New(benchRules(100))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v7/items/42", "/other", "/api//v7/../v8/%7e", "/%2f"} {
		r := request("GET", "Host3.Example.com:8443", path)
		tab.Match(r) // grows Scratch once
		if n := testing.AllocsPerRun(100, func() { tab.Match(r) }); n != 0 && path != "/%2f" {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}

func benchRules(n int) []Rule {
	rules := []Rule{{}}
	for i := range n - 1 {
		r := Rule{PathPrefix: fmt.Sprintf("/api/v%d", i)}
		switch i % 3 {
		case 0:
			r.Host = fmt.Sprintf("host%d.example.com", i)
		case 1:
			r.Host = fmt.Sprintf("*.tenant%d.example.com", i)
		}
		rules = append(rules, r)
	}
	return number(rules)
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 100, 5000} {
		tab, err := New(benchRules(n))
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range []struct{ name, host, path string }{
			{"exact-host", "host3.example.com", "/api/v3/items/42"},
			{"wildcard", "eu.tenant4.example.com:443", "/api/v4/items/42"},
			{"any-host", "elsewhere.example.org", "/api/v5/items/42"},
			{"miss", "elsewhere.example.org", "/static/css/site.css"},
			{"normalise", "host3.example.com", "/api/./v3//items/%34%32"},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				r := request("GET", c.host, c.path)
				b.ReportAllocs()
				for b.Loop() {
					if _, ok, err := tab.Match(r); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
			})
		}
	}
}

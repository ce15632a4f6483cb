// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What a codec shows, it reads back as the same value.
func TestScalarsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, int64(1000*time.Hour)).Draw(t, "duration"))
		if got, what, _ := duration(1, 2000*time.Hour).(simple[time.Duration]).parse(showDuration(d)); got != d || what != "" {
			t.Errorf("%v: %v %s", showDuration(d), got, what)
		}
		s := float64(rapid.IntRange(0, 1_000_000).Draw(t, "share")) / 10_000 / 100 // as a text is read
		if got, what, _ := share(0, 1).(simple[float64]).parse(showShare(s)); got != s || what != "" {
			t.Errorf("%v: %v, not %v %s", showShare(s), got, s, what)
		}
		n := rapid.Int64Range(1, 1<<50).Draw(t, "size")
		if got, what, _ := size(0, 1<<60, "").(simple[int64]).parse(showBytes(n)); got != n || what != "" {
			t.Errorf("%v: %v %s", showBytes(n), got, what)
		}
		f := float64(rapid.Int64Range(0, 1_000_000).Draw(t, "decimal")) / 1000
		c := decimal(0, 1e6).(simple[float64])
		if got, what, _ := c.parse(c.format(f)); got != f || what != "" {
			t.Errorf("%v: %v %s", f, got, what)
		}
	})
}

// Any text survives printing and parsing as a value, in every place where text
// is free.
func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune("${}$:-#\"'\\,[]{}&*!|>%@` \n\t~0.1e_xnulltrue")), rapid.Rune())).Draw(t, "text")
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }) || s == Masked {
			return
		}
		plan, err := FromProxy(ProxyOptions{URLs: []string{"http://a:1"}})
		if err != nil {
			t.Fatal(err)
		}
		plan.Listeners[0].Routes[0] = Route{Name: "default", Respond: &Respond{Code: 200, Body: s, ContentType: "x/y"}, Retry: defaultsOf(retryFields), Priority: "normal"}
		again, err := Parse("t", plan.YAML(true), lookup)
		if err != nil {
			t.Fatalf("%q: %v\n%s", s, err, plan.YAML(true))
		}
		if got := again.Listeners[0].Routes[0].Respond.Body; got != s {
			t.Fatalf("%q became %q\n%s", s, got, plan.YAML(true))
		}
	})
}

func TestExpand(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a$b": "a$b", "${HOST}": "127.0.0.1", "${PORT}": "", "${PORT:-1}": "1", "${NOPE:-}": "", "$${HOST}": "${HOST}",
		"$$${HOST}": "$${HOST}", "x${HOST}y${MAX}z": "x127.0.0.1y50z", "${NOPE:-${HOST}": "${HOST", "$": "$", "$$": "$$", "${MAX:-7}": "50",
	} {
		if got, what, _ := expand(in, lookup); got != want || what != "" {
			t.Errorf("%q: %q %s, want %q", in, got, what, want)
		}
	}
	for _, in := range []string{"${", "${}", "${A", "${NOPE}", "${1A}", "${A B}", "${:-x}"} {
		if _, what, fix := expand(in, lookup); what == "" || fix == "" {
			t.Errorf("%q was accepted", in)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom([]rune("${}a:-"))).Draw(t, "text")
		if got, what, _ := expand(protect(s), lookup); got != s || what != "" {
			t.Fatalf("%q became %q %s", s, got, what)
		}
	})
}

func TestNearest(t *testing.T) {
	known := []string{"bind", "trusted_proxies", "timeouts", "tls", "http", "pool", "routes"}
	for word, want := range map[string]string{
		"bnid": "bind", "Bind": "bind", "trusted-proxies": "trusted_proxies", "timeout": "timeouts", "tsl": "tls", "route": "routes",
		"pol": "pool", "zzz": "", "": "", "x": "", strings.Repeat("a", 100): "",
	} {
		if got := nearest(word, known); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(c.a, c.b); got != c.want || distance(c.b, c.a) != got {
			t.Errorf("%q %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

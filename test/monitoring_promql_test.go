// SPDX-License-Identifier: Apache-2.0

package test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// selector is one within an expression.
type selector struct {
	metric   string
	matchers []matcher
}

type matcher struct{ label, op, value string }

// values are the alternatives that a matcher names.
func (m *matcher) values() []string {
	if m.op == "=~" || m.op == "!~" {
		return strings.Split(m.value, "|")
	}
	return []string{m.value}
}

var (
	promName     = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	promMatcher  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
	promGrouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	promRange    = regexp.MustCompile(`\[[0-9a-z:]+\]`)
	promNumber   = regexp.MustCompile(`^[0-9][0-9a-zA-Z.]*`)
)

// promWords are names in an expression that are no metrics where no parenthesis
// follows.
var promWords = []string{"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}

// usesOf finds the selectors of an expression. It needs no grammar: in PromQL a
// name that is neither a word of the language nor followed by a parenthesis is a
// metric. promtool has said that it is PromQL.
func usesOf(expr string) []selector {
	expr = promRange.ReplaceAllString(promGrouping.ReplaceAllString(expr, " "), " ")
	var out []selector
	for i := 0; i < len(expr); {
		if n := promNumber.FindString(expr[i:]); n != "" { // with its unit
			i += len(n)
			continue
		}
		name := promName.FindString(expr[i:])
		if name == "" {
			i++
			continue
		}
		i += len(name)
		rest := strings.TrimLeft(expr[i:], " \n")
		if strings.HasPrefix(rest, "(") || slices.Contains(promWords, name) {
			continue
		}
		u := selector{metric: name}
		if strings.HasPrefix(rest, "{") {
			end := strings.IndexByte(rest, '}')
			for _, m := range promMatcher.FindAllStringSubmatch(rest[:end], -1) {
				u.matchers = append(u.matchers, matcher{m[1], m[2], m[3]})
			}
			i = len(expr) - len(rest) + end + 1
		}
		out = append(out, u)
	}
	return out
}

// groupingOf finds the labels that an expression groups or matches by.
func groupingOf(expr string) []string {
	var out []string
	for _, m := range promGrouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if l = strings.TrimSpace(l); l != "" {
				out = append(out, l)
			}
		}
	}
	return out
}

// TestUsesOf: a reader that finds nothing would find no mistake either.
func TestUsesOf(t *testing.T) {
	show := func(expr string) string {
		var b strings.Builder
		for _, u := range usesOf(expr) {
			b.WriteString(u.metric)
			for _, m := range u.matchers {
				b.WriteString(" " + m.label + m.op + strings.Join(m.values(), "/"))
			}
			b.WriteString("; ")
		}
		return b.String() + strings.Join(groupingOf(expr), ",")
	}
	for expr, want := range map[string]string{
		`up == 0 and on (job, instance) last_over_time(weir_build_info[1h])`:                   "up; weir_build_info; job,instance",
		`sum by (le) (rate(a_bucket{x="1", y=~"a|b.*"}[5m])) / on () group_left (z) (b > 1e3)`: "a_bucket x=1 y=~a/b.*; b; le,z",
		`a:b_c - time() < 14 * 86400`:                                                                   "a:b_c; ",
		`histogram_quantile(0.99, sum(a{b="c"})) unless c offset 5m > bool 2`:                           "a b=c; c; ",
		`(sum(rate(a{job=~".*"}[1m])) or vector(0)) / sum by (x, y) (max_over_time(b{c!~"d"}[10m:1m]))`: "a job=~.*; b c!~d; x,y",
	} {
		if got := show(expr); got != want {
			t.Errorf("%s:\n%s, want\n%s", expr, got, want)
		}
	}
}

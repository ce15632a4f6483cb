// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func planOf(t *testing.T, text string) *Plan {
	t.Helper()
	p, err := Parse("test.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const diffBase = `listeners:
  web:
    bind: "127.0.0.1:8080"
    routes:
      - {match: {path_prefix: /a}, pool: app, request_headers: {set: {X-Api-Key: hunter2, X-Plain: seen}}}
      - {pool: app}
pools:
  app:
    backends: ["http://10.0.0.1:80", {url: "http://10.0.0.2:80", weight: 2}]
`

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		want           []string
	}{
		{"nothing", "", "", nil},
		{"a default written out", "    backends: [", "    balance: p2c\n    backends: [", nil},
		{"a setting", "    backends: [", "    balance: maglev\n    backends: [", []string{"~ pools.app.balance: p2c -> maglev"}},
		{"a weight", "weight: 2", "weight: 3", []string{"~ pools.app.backends[10.0.0.2:80].weight: 2 -> 3"}},
		{"a weight back to its default", ", weight: 2", "", []string{"~ pools.app.backends[10.0.0.2:80].weight: 2 -> 1"}},
		{
			"backends", `"http://10.0.0.1:80"`, `"http://10.0.0.3:80"`,
			[]string{"+ pools.app.backends[10.0.0.3:80]", "- pools.app.backends[10.0.0.1:80]"},
		},
		{"a secret", "hunter2", "hunter3", []string{"request_headers.set.X-Api-Key: *** -> *** (another one)"}},
		{"no secret", "seen", "unseen", []string{"request_headers.set.X-Plain: seen -> unseen"}},
		{"a pool", "pools:\n", "pools:\n  more: {backends: [\"http://10.0.0.9:80\"]}\n", []string{"+ pools.more"}},
		{"a route", "      - {pool: app}\n", "      - {match: {path: /x}, respond: {code: 404}}\n      - {pool: app}\n", []string{"+ listeners.web.routes[=/x]"}},
		{"the log", "listeners:", "log: {level: debug}\nlisteners:", []string{"~ log.level: info -> debug"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			next := strings.Replace(diffBase, c.from, c.to, 1)
			got := Diff(planOf(t, diffBase), planOf(t, next))
			var lines []string
			for _, g := range got {
				lines = append(lines, g.String())
				if strings.Contains(g.String(), "hunter") {
					t.Errorf("a secret is shown: %s", g)
				}
			}
			for _, w := range c.want {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, w) }) {
					t.Errorf("no %q in:\n%s", w, strings.Join(lines, "\n"))
				}
			}
			if c.want == nil && len(got) > 0 || c.want != nil && len(got) > len(c.want)+1 {
				t.Errorf("differences: %s", strings.Join(lines, "\n"))
			}
		})
	}
}

// What comes or goes as a whole is told by what somebody wrote, not by the defaults
// around it, and however large it is by what is in it.
func TestDiffTellsWhatWasWritten(t *testing.T) {
	more := diffBase + "  many: {backends: [" + strings.TrimSuffix(strings.Repeat(`"http://10.1.0.X:80", `, 50), ", ") + "]}\n"
	for i := range 50 {
		more = strings.Replace(more, "10.1.0.X", "10.1.0."+itoa(i), 1)
	}
	more = strings.Replace(more, "pools:\n", `  db: {bind: "127.0.0.1:5432", protocol: tcp, timeouts: {idle: 8h}, pool: sql}`+"\npools:\n"+`  sql: {backends: ["tcp://10.0.0.9:5432"], on_broken: close}`+"\n", 1)
	for _, c := range []struct {
		from, to, sign string
	}{{diffBase, more, "+ "}, {more, diffBase, "- "}} {
		got := map[string]bool{}
		for _, g := range Diff(planOf(t, c.from), planOf(t, c.to)) {
			got[g.String()] = true
		}
		for _, want := range []string{
			"listeners.db: {bind: 127.0.0.1:5432, protocol: tcp, timeouts: {idle: 8h}, pool: sql}",
			"pools.sql: {backends: [tcp://10.0.0.9:5432], on_broken: close}",
			"pools.many: {backends: 50 items}",
		} {
			if !got[c.sign+want] {
				t.Errorf("%q is not among %v", c.sign+want, slices.Sorted(maps.Keys(got)))
			}
		}
		if len(got) != 3 {
			t.Errorf("%d changes", len(got))
		}
	}
	secret := strings.Replace(diffBase, "pools:\n", `  two: {bind: "127.0.0.1:81", routes: [{pool: app, request_headers: {set: {X-Api-Key: hunter2}}}]}`+"\npools:\n", 1)
	if got := Diff(planOf(t, diffBase), planOf(t, secret)); len(got) != 1 || strings.Contains(got[0].String(), "hunter") || !strings.Contains(got[0].String(), "X-Api-Key: ***") {
		t.Errorf("%v", got)
	}
}

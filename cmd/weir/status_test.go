// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// What status says of a backend is what an operator acts on, so each kind of
// reason is pinned with its words.
func TestWhy(t *testing.T) {
	three := uint32(3)
	failed := func(err string) *admin.Check { return &admin.Check{Error: err} }
	for _, c := range []struct {
		name string
		b    admin.Backend
		want string
	}{
		{"healthy", admin.Backend{Health: "healthy", Why: "2 of 2 probes passed", LastCheck: &admin.Check{OK: true}}, ""},
		{"ejected", admin.Backend{Health: "broken", Reason: "ejected", Why: "5 bad answers in a row; ejected for 30s", LastCheck: &admin.Check{OK: true}},
			"ejected: 5 bad answers in a row; ejected for 30s"},
		{"broken", admin.Backend{Health: "broken", Reason: "probe_failing", Why: "3 of 3 probes failed: reset", LastCheck: failed("reset")},
			"probe_failing: 3 of 3 probes failed: reset"},
		{"another failure since", admin.Backend{Health: "broken", Reason: "connect_refused", Why: "a connection failed: refused", LastCheck: failed("timeout")},
			"connect_refused: a connection failed: refused: last check: timeout"},
		{"about to fall", admin.Backend{Health: "healthy", Reason: "probe_failing", Why: "reset", LastCheck: failed("reset")}, "probe_failing: reset"},
		{"suspect", admin.Backend{Health: "healthy", Reason: "suspect", Why: "2 of 2 probes passed"}, "suspect"},
		{"draining", admin.Backend{Health: "healthy", Reason: "override", Override: &admin.Override{Admin: "draining", AgeS: 14}},
			"draining by an operator 14s ago"},
		{"disabled and broken", admin.Backend{Health: "broken", Reason: "override", Why: "3 of 3 probes failed: reset", Override: &admin.Override{Admin: "disabled", AgeS: 14}},
			"disabled by an operator 14s ago; 3 of 3 probes failed: reset"},
		{"weight", admin.Backend{Health: "healthy", Override: &admin.Override{Weight: &three, ConfiguredWeight: 1, AgeS: 14}},
			"weight 3 by an operator 14s ago (configured: 1)"},
		{"slow start", admin.Backend{Health: "healthy", Reason: "slow_start", SlowStartLeftS: 12.4, Why: "2 of 2 probes passed"}, "slow_start, full in 12s"},
		{"overloaded", admin.Backend{Health: "overloaded", Reason: "overloaded", Why: "7 of 30 answers were signs of overload"}, "overloaded: 7 of 30 answers were signs of overload"},
		{"added", admin.Backend{Health: "unproven", Reason: "unproven", Added: &admin.Added{AgeS: 61}}, "added by the API 1m ago; unproven"},
		{"removed", admin.Backend{Health: "healthy", Removed: true}, "removed, finishes what is in flight"},
		{"what it says and does", admin.Backend{Health: "healthy", LearnedIdleS: 4.9, LoadReport: &admin.LoadReport{Utilization: 0.62}},
			"says it is 62% used; closes idle connections after 4.9s"},
		{"removed by a word that left no trace", admin.Backend{Health: "healthy", Reason: "override"}, "override"},
	} {
		if got := why(&c.b); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestTier(t *testing.T) {
	zones := []admin.Zone{{Name: "eu-1a", Local: true, Backends: 3, Serving: 2, Load: 0.8}, {Backends: 1, Serving: 1, Load: 0.2}}
	for _, c := range []struct {
		t    admin.Tier
		want string
	}{
		{admin.Tier{Name: "backup", Backends: 2, Serving: 2}, "tier backup: 2 of 2 serve, takes 0%"},
		{admin.Tier{Name: "priority 0", Backends: 4, Serving: 1, Load: 0.35, Panic: true}, "tier priority 0: 1 of 4 serve, takes 35%, PANIC"},
		{admin.Tier{Name: "priority 0", Backends: 4, Serving: 3, Load: 1, Zoned: "on", Zones: zones}, "tier priority 0: 3 of 4 serve, takes 100%; zones: eu-1a (local) 2 of 3 80%, none 1 of 1 20%"},
		{admin.Tier{Name: "priority 0", Backends: 4, Serving: 3, Load: 1, Zoned: "min_size", Zones: zones}, "tier priority 0: 3 of 4 serve, takes 100% (zones do not count: min_size); zones: eu-1a (local) 2 of 3, none 1 of 1"},
	} {
		if got := tier(&c.t); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestHistory: the changes of all of a pool's backends are told in the order of
// time, whatever the order of the backends.
func TestHistory(t *testing.T) {
	at := func(age time.Duration) time.Time { return time.Now().Add(-age) }
	p := admin.Pool{Members: []admin.Backend{
		{ID: "a", History: []admin.Change{
			{At: at(3 * time.Hour), From: "unproven", To: "healthy", Why: "probe passed"},
			{At: at(time.Minute), From: "healthy", To: "broken", Reason: "ejected", Why: "5 bad answers in a row; ejected for 30s"},
		}},
		{ID: "b", History: []admin.Change{{At: at(2 * time.Minute), From: "healthy", To: "healthy", Reason: "probation", Why: "share 10%"}}},
		{ID: "c"},
	}}
	var b strings.Builder
	printHistory(&b, &p)
	want := `
  what became of them, the latest last
  3h ago  a  unproven -> healthy           probe passed
  2m ago  b  healthy (probation)           share 10%
  1m ago  a  healthy -> broken (ejected)   5 bad answers in a row; ejected for 30s
`
	if got := b.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s", got)
	}
	for range 50 {
		p.Members[2].History = append(p.Members[2].History, admin.Change{At: at(0), From: "healthy", To: "not_ready", Reason: "not_ready"})
	}
	b.Reset()
	printHistory(&b, &p)
	if got := b.String(); strings.Count(got, "\n") != historyShown+3 || !strings.Contains(got, "(13 earlier changes") {
		t.Errorf("%s", got)
	}
	b.Reset()
	printHistory(&b, &admin.Pool{})
	if b.Len() > 0 {
		t.Error(b.String())
	}
}

// TestStatusNamesNeighbours: during an upgrade an operator sees whom he is
// talking to, and who else is there.
func TestStatusNamesNeighbours(t *testing.T) {
	for _, c := range []struct {
		s    admin.Status
		want string
	}{
		{admin.Status{Predecessor: &admin.Predecessor{Process: admin.Process{PID: 7, Version: "v1"}, Since: time.Now(), Connections: 1}},
			"took over from process 7, version v1, 0s ago; it drains and has 1 connection"},
		{admin.Status{Successor: &admin.Process{PID: 8, Version: "v2"}}, "process 8, version v2, has taken over"},
	} {
		var out strings.Builder
		if err := printStatus(&out, &c.s, nil, false); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%q is not in\n%s%v", c.want, out.String(), err)
		}
	}
}

// TestStatusReady: weir is ready without backends, and does not leave it at that.
func TestStatusReady(t *testing.T) {
	ready := &admin.Status{Ready: true}
	empty := func(names ...string) (out []admin.Pool) {
		for _, n := range names {
			out = append(out, admin.Pool{PoolSummary: admin.PoolSummary{Name: n}})
		}
		return append(out, admin.Pool{PoolSummary: admin.PoolSummary{Name: "fine", Serving: 1}})
	}
	for want, got := range map[string]string{
		"ready": readiness(ready, empty()),
		"ready, but no backend of pool app serves":                                 readiness(ready, empty("app")),
		"ready, but 2 pools have no backend that serves: a, b":                     readiness(ready, empty("a", "b")),
		"ready, but 7 pools have no backend that serves: a, b, c, d, e and 2 more": readiness(ready, empty("a", "b", "c", "d", "e", "f", "g")),
		"not ready: draining; pool app: waiting":                                   readiness(&admin.Status{NotReady: []string{"draining", "pool app: waiting"}}, empty("app")),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

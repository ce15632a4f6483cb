// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/lint"
)

// tutorial is what comes of following the usual tutorials, with the mistakes
// that each line makes in a comment of the rules' names.
const tutorial = `
admin: {bind: "0.0.0.0:9900", token_file: token}    # admin_exposed
shutdown: {delay: none, deadline: 30s}              # shutdown_delay
check:
  front: {idle: 60s, interval: 10s, fall: 3}        # front_detection front_blind
  grace: 30s                                        # grace_short
  slo: {detection: 10s}                             # detection_slo
  layers: [{name: client, attempts: 3}, {name: mesh, attempts: 2}]  # retry_layers
listeners:
  web:
    bind: ":8443"
    tls: {certificates: [{cert: expiring.crt, key: x.key}]}  # certificate_expiring
    trusted_proxies: [0.0.0.0/0]                    # trust_everyone
    timeouts: {idle: 60s, header: 10m, write: none} # front_idle slow_clients timeout_off
    routes:
      - match: {host: www.example.org}              # certificate_names
        rewrite: {strip_prefix: /api}
        pool: api
        timeouts: {request: 10s}                    # timeouts_nest
      - match: {host: www.example.org, methods: [GET]}  # unreachable_route
        pool: web
pools:
  api:
    balance: least_request
    slow_start: off                                 # slow_start_off
    backends: ["http://localhost:3000", "http://localhost:3001"]  # localhost
    health:
      active: {path: /api/livez, interval: 30s, timeout: 29s, fall: 2, port: 9000, expect: "200-499"}  # check_prefix check_liveness probe_timeout check_port check_expects_errors
      panic: off                                    # panic_off
      passive: {max_ejected: 100%}                  # max_ejected_all
    retry: {attempts: 5, budget: 100%, when: [reset, "500", "503"]}  # budget_off retry_when
    timeouts: {connect: 60s, keepalive: 75s}        # connect_long keepalive_long
    upstream: {max_idle: 0}                         # ports
    drain: {deadline: none}                         # drain_forever
  web:
    balance: ring_hash                              # hash_client_ip
    hash: {key: client_ip, bounded_load: off, virtual_nodes: 10}  # hash_unbounded ring_nodes
    backends: ["https://10.0.2.21:8443", {url: "https://10.0.2.22:8443", weight: 0}]  # weight_0
    tls: {insecure_skip_verify: true}               # insecure_skip_verify
    health: {active: {path: /}, passive: off}       # check_deep passive_off
`

// TestTutorial names each mistake, and nothing else as more than a note.
func TestTutorial(t *testing.T) {
	var want []string
	for line := range strings.Lines(tutorial) {
		_, comment, _ := strings.Cut(line, "#")
		want = append(want, strings.Fields(comment)...)
	}
	in, err := input(t, "weir.yaml", tutorial)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range lint.Run(in) {
		if f.Severity > lint.Note {
			got = append(got, f.Rule.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	got = slices.Compact(got)
	if !slices.Equal(got, want) {
		t.Errorf("found %q\nnot   %q", got, want)
	}
}

// TestDefaults finds nothing beyond notes in the smallest configurations.
func TestDefaults(t *testing.T) {
	for _, text := range []string{
		"listeners:\n  web: {bind: \":8080\", pool: app}\npools:\n  app: {backends: [\"http://10.0.1.21:8080\", \"http://10.0.1.22:8080\"]}\n",
		"listeners:\n  web: {bind: \"127.0.0.1:8080\", pool: app}\npools:\n  app: {backends: [\"http://10.0.1.21:8080\"], health: {active: {path: /readyz}}}\n",
	} {
		in, err := input(t, "weir.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range lint.Run(in) {
			if f.Severity > lint.Note {
				t.Errorf("%s: %s", f.Rule.Name, f.What)
			}
		}
	}
}

// TestOrder finds the worst first.
func TestOrder(t *testing.T) {
	in, err := input(t, "weir.yaml", tutorial)
	if err != nil {
		t.Fatal(err)
	}
	severity, line := lint.Error, 0
	for _, f := range lint.Run(in) {
		if f.Severity > severity || f.Severity == severity && f.Place.Pos.Line < line {
			t.Errorf("%s of line %d comes late", f.Rule.Name, f.Place.Pos.Line)
		}
		severity, line = f.Severity, f.Place.Pos.Line
	}
}

// TestBounds tries each limit from both sides.
func TestBounds(t *testing.T) {
	base := func(check, listener, pool string) string {
		return fmt.Sprintf("check: {%s}\nshutdown: {delay: 10s, deadline: 25s}\nlisteners:\n  web: {bind: \":8080\", pool: app%s}\npools:\n  app: {backends: [\"http://10.0.1.21:8080\", \"http://10.0.1.22:8080\"]%s}\n", check, listener, pool)
	}
	tls := func(cert, host string) string {
		return "listeners:\n  web:\n    bind: \":8443\"\n    tls: {certificates: [{cert: " + cert + ", key: x}]}\n    routes:\n      - match: {host: " + host + "}\n        pool: app\npools:\n  app: {backends: [\"http://10.0.1.21:8080\"]}\n"
	}
	found := func(pool string) string {
		return "check: {rate: 100000/s}\nlisteners:\n  web: {bind: \":8080\", pool: app}\npools:\n  app: {discover: {file: backends.yaml}" + pool + "}\n"
	}
	sessions := func(protocol, backends, pool string) string {
		return "listeners:\n  db: {bind: \":1\", protocol: " + protocol + ", pool: p}\npools:\n  p: {backends: [" + backends + "]" + pool + "}\n"
	}
	tcp, udp := `"tcp://a:1", "tcp://b:1"`, `"udp://a:1", "udp://b:1"`
	for _, c := range []struct {
		rule, text string
		want       string // severity, or nothing
	}{
		{"hash_client_ip", sessions("tcp", tcp, ", balance: maglev"), ""},
		{"hash_client_ip", sessions("udp", udp, ", balance: maglev, hash: {bounded_load: off}"), ""},
		{"hash_unbounded", sessions("tcp", tcp, ", balance: maglev, hash: {bounded_load: off}"), "note"},
		{"hash_unbounded", sessions("tcp", tcp, ", balance: maglev"), ""},
		{"drain_spread", sessions("tcp", tcp, ", drain: {deadline: 4s}"), "warning"},
		{"drain_spread", sessions("tcp", tcp, ", drain: {deadline: 5s}"), ""},
		{"drain_spread", sessions("tcp", tcp, ", drain: {deadline: none}"), ""},
		{"drain_spread", base("", "", ", drain: {deadline: 4s}"), ""}, // requests end by themselves
		{"mixed_schemes", sessions("tcp", `"tls://a:1", "tls://b:1"`, ""), ""},
		{"mixed_schemes", sessions("tcp", `"tls://a:1", "tcp://b:1"`, ""), "warning"},
		{"tls_unused", sessions("tcp", `"tls://a:1"`, ", tls: {server_name: a.example}"), ""},
		{"tls_unused", sessions("tcp", `"tcp://a:1"`, ", tls: {server_name: a.example}"), "warning"},
		{"grace_short", base("grace: 27s", "", ""), ""},
		{"grace_short", base("grace: 26999ms", "", ""), "error"},
		{"front_detection", base("front: {interval: 5s, fall: 2}", "", ""), ""},
		{"front_detection", base("front: {interval: 5s, fall: 3}", "", ""), "error"},
		{"front_idle", base("front: {idle: 60s}", ", timeouts: {idle: 60s}", ""), "error"},
		{"front_idle", base("front: {idle: 60s}", ", timeouts: {idle: 61s}", ""), ""},
		{"front_idle", base("", ", trusted_proxies: [10.0.0.0/8], timeouts: {idle: 60s}", ""), "warning"},
		{"front_idle", base("", ", timeouts: {idle: 10s}", ""), ""},
		{"detection_slo", base("slo: {detection: 11500ms}", "", ""), ""},
		{"detection_slo", base("slo: {detection: 11499ms}", "", ""), "error"},
		{"retry_layers", base("", "", ", retry: {attempts: 3}"), ""},
		{"retry_layers", base("", "", ", retry: {attempts: 4}"), "warning"},
		{"retry_layers", base("", "", ", retry: {attempts: 4, when: none}"), ""},
		{"retry_layers", base("layers: [mesh]", "", ""), "warning"},
		{"retry_layers", base("layers: [{name: a, attempts: 2}, {name: b, attempts: 2}]", "", ", retry: off"), "warning"},
		{"retry_layers", base("layers: [{name: mesh, attempts: 3}]", "", ", retry: off"), ""},
		{"ports", base("rate: 700/s", "", ", upstream: {max_idle: 0}"), ""},
		{"ports", base("rate: 800/s", "", ", upstream: {max_idle: 0}"), "warning"},
		{"ports", base("rate: 100000/s", "", ", upstream: {max_requests: 1000}"), ""},
		{"ports", base("rate: 100000/s", "", ", upstream: {max_requests: 100}"), "warning"},
		{"ports", base("", "", ", upstream: {max_requests: 1}"), "warning"},
		{"ports", found(", upstream: {max_idle: 0}"), "warning"},
		{"ports", found(""), ""},
		{"single_backend", found(""), ""},
		{"single_backend", base("", "", ", discover: {file: more.yaml}"), ""},
		{"hash_client_ip", base("", "", ", balance: maglev"), "note"},
		{"hash_client_ip", base("", "", ", balance: maglev, hash: {bounded_load: off}"), "warning"},
		{"hash_client_ip", base("", "", ", balance: maglev, hash: {key: [client_ip, path]}"), ""},
		{"certificate_expiring", tls("good.crt", "shop.example.com"), ""},
		{"certificate_expiring", tls("short.crt", "shop.example.com"), ""},
		{"certificate_expiring", tls("expired.crt", "shop.example.com"), "error"},
		{"certificate_expiring", tls("future.crt", "shop.example.com"), "error"},
		{"certificate_expiring", tls("broken.crt", "shop.example.com"), ""},
		{"certificate_expiring", tls("absent.crt", "shop.example.com"), ""},
		{"certificate_names", tls("wild.crt", "shop.example.com"), ""},
		{"certificate_names", tls("wild.crt", `"*.example.com"`), ""},
		{"certificate_names", tls("good.crt", `"*.example.com"`), ""},
		{"certificate_names", tls("good.crt", `"*.example.org"`), "warning"},
		{"certificate_names", tls("wild.crt", "a.shop.example.com"), "warning"},
		{"certificate_names", strings.Replace(tls("good.crt", "issued.example.net"), "certificates:", "acme: [issued.example.net], certificates:", 1), ""},
		{"certificate_names", tls("absent.crt", "a.shop.example.com"), ""},
		{"slow_start_off", base("", "", ", balance: round_robin, slow_start: off"), ""},
		{"slow_start_off", base("", "", ", slow_start: off"), "warning"},
		{"check_expects_errors", base("", "", ", health: {active: {path: /r, expect: \"200-399\"}}"), ""},
	} {
		in, err := input(t, "weir.yaml", c.text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.rule, err, c.text)
		}
		got := ""
		for _, f := range about(c.rule, lint.Run(in)) {
			got = f.Severity.String()
		}
		if got != c.want {
			t.Errorf("%s is %q, not %q:\n%s", c.rule, got, c.want, c.text)
		}
	}
}

// TestLearned holds keepalive against what a running weir has seen.
func TestLearned(t *testing.T) {
	in, err := input(t, "weir.yaml", tutorialFree)
	if err != nil {
		t.Fatal(err)
	}
	in.Learned = func(pool string) []lint.Idle {
		if pool != "app" {
			return nil
		}
		return []lint.Idle{{Backend: "slow:80", After: time.Minute}, {Backend: "found:80", After: 20 * time.Second}, {Backend: "10.0.1.22:8080", After: 5 * time.Second}}
	}
	found := about("keepalive_long", lint.Run(in))
	if len(found) != 1 || !strings.Contains(found[0].What, "10.0.1.22:8080 of pool app closes idle connections after 5s (one of 2 that do so), sooner than weir (55s)") || !strings.Contains(found[0].Fragment, "keepalive: 4s") {
		t.Errorf("found %+v", found)
	}
}

const tutorialFree = "listeners:\n  web: {bind: \":8080\", pool: app}\npools:\n  app: {backends: [\"http://10.0.1.21:8080\", \"http://10.0.1.22:8080\"]}\n"

// FuzzRun finds no configuration that parses and that a rule stumbles over, and
// no fix that cannot be written.
func FuzzRun(f *testing.F) {
	f.Add(tutorial)
	for _, r := range lint.Rules() {
		f.Add(read(f, r.Name+".bad.yaml"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		in, err := input(t, "weir.yaml", text)
		if err != nil {
			return
		}
		for _, x := range lint.Run(in) {
			if x.What == "" || x.Place.Pos.Line < 1 || math.Signbit(float64(x.Place.Len)) {
				t.Errorf("half a finding: %+v", x)
			}
			if len(x.Edits) == 0 {
				continue
			}
			fixed, err := in.Outline.Apply(x.Edits...)
			if err != nil {
				t.Fatalf("%s: %v", x.Rule.Name, err)
			}
			// A fix may need a second one beside it (a deadline, a timeout), but is
			// always a configuration in form.
			if _, err := config.Overlay(fixed, "listeners: {}"); err != nil {
				t.Fatalf("%s: the fix is no YAML: %v\n%s", x.Rule.Name, err, fixed)
			}
		}
	})
}

// TestMany says one mistake 20 times, not 400 times, and no fragment of 400
// lines.
func TestMany(t *testing.T) {
	var b strings.Builder
	b.WriteString("listeners:\n  web: {bind: \":8080\", pool: app}\npools:\n  app:\n    backends:\n")
	const n = 400
	for i := range n {
		fmt.Fprintf(&b, "      - {url: \"http://localhost:%d\", weight: %d}\n", 1000+i, min(i, 1))
	}
	in, err := input(t, "weir.yaml", strings.ReplaceAll(b.String(), "weight: 1}", "weight: 1, backup: true, priority: 1}"))
	if err != nil {
		t.Fatal(err)
	}
	all := lint.Run(in)
	for _, rule := range []string{"localhost", "backup_priority"} {
		found := about(rule, all)
		if len(found) != 20 || !strings.Contains(found[19].What, "more like this)") {
			t.Fatalf("%d findings of %s", len(found), rule)
		}
		if f := found[0]; f.Fragment != "" || len(f.Steps)+len(f.Remove) != 1 {
			t.Errorf("%s: fragment of %d bytes, %q, %q", rule, len(f.Fragment), f.Steps, f.Remove)
		}
	}
	if got := about("localhost", all)[0].Steps[0]; got != `pools.app.backends.0.url: "http://127.0.0.1:1000"` {
		t.Errorf("step %s", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.txt with what happens now")

// TestScripts runs testdata/*.txt: blocks of commands, "----", and the trace
// they leave. The pool is the real one, driven by Advance instead of its
// goroutine; the clock stands still but for "at".
//
//	pool KEY=VALUE...        a new pool; see (*script).pool for keys
//	update ID[,KEY=VALUE]... the whole membership; keys weight, url, backup
//	at DURATION              time passes up to the instant, stepwise
//	auto ID|all ANSWER       probes of the backend are answered at once, silently
//	probe ID ANSWER          answers the probe under way; sent=DURATION shifts its sending
//	do ID,... OUTCOME [xN]   N requests on each backend in turn, begun and ended now
//	begin NAME ID, end NAME OUTCOME
//	picks N                  N picks by the policy, none of them held longer
//	pick NAME                one pick by the policy, held under the name
//	override ID draining|disabled|enabled|weight=N|reset [deadline=D]
//	state                    what Snapshot says
//
// Answers: pass, not_ready, overloaded, refused, no_route, timeout, reset, local.
// Outcomes: a status, 503ra (with Retry-After), refused, unreachable, conn_timeout,
// tls, reset, stale, malformed, resp_timeout, canceled, client, local.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t}
	defer func() {
		if s.p != nil {
			s.p.Close()
		}
	}()
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		commands, want, _ := strings.Cut(block, "\n----")
		s.trace.Reset()
		for line := range strings.Lines(commands) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") {
				s.run(line)
			}
		}
		want = strings.TrimSpace(want)
		got := strings.TrimSpace(s.trace.String())
		if got != want && !*rewrite {
			t.Errorf("%s: after\n%s\ngot\n%s\nwant\n%s", file, commands, got, want)
		}
		fmt.Fprintf(&out, "%s\n----\n", commands)
		if got != "" {
			out.WriteString(got + "\n")
		}
		out.WriteByte('\n')
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// script is the state of one run, and the pool's driver.
type script struct {
	t      *testing.T
	trace  strings.Builder
	p      *Pool
	now    balance.Instant
	due    balance.Instant // when the pool wants to be stepped
	hasDue bool
	auto   map[string]string
	probes map[string]func(health.ProbeResult)
	leases map[string]*Lease
	rnd    uint64
	client uint64
}

func (s *script) printf(format string, args ...any) {
	fmt.Fprintf(&s.trace, "%-7s %s\n", time.Duration(s.now).String(), strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

func (s *script) Attach(*balance.Backend) any { return nil }

func (s *script) Probe(b *balance.Backend, _ time.Duration, done func(health.ProbeResult)) {
	if answer := s.auto[b.ID()]; answer != "" {
		done(s.answer(answer))
		return
	}
	if s.probes[b.ID()] != nil {
		s.t.Errorf("probes of %s overlap", b.ID())
	}
	s.probes[b.ID()] = done
	s.printf("probe %s", b.ID())
}

func (s *script) CloseIdle(b *balance.Backend) { s.printf("close idle %s", b.ID()) }
func (s *script) Gone(b *balance.Backend)      { s.printf("gone %s", b.ID()) }

func (s *script) Notice(n Notice) {
	id := ""
	if n.Backend != nil {
		id = n.Backend.ID() + " "
	}
	line := id + n.Kind.String()
	switch n.Kind {
	case StateChanged:
		line = fmt.Sprintf("%s%v -> %v share %.3g %v (%s)", id, n.From, n.To, n.Share, n.Reason, n.Why)
	case Added:
		line += fmt.Sprintf(" %v share %.3g %s", n.To, n.Share, n.Why)
	case EjectedNow:
		line += " for " + n.For.String()
	case DrainBegan:
		line += fmt.Sprintf(" left %d for %v", n.Left, n.For)
	case DrainOver:
		line += fmt.Sprintf(" left %d", n.Left)
	case PanicBegan, SharedDependency, Overridden:
		line += " (" + n.Why + ")"
	}
	s.printf("%s", line)
}

// tracing is p2c that says what it is built over.
type tracing struct {
	balance.Policy
	s *script
}

func (p tracing) Build(set *balance.Set) balance.Picker {
	var ids []string
	for _, m := range set.Members() {
		id := m.Backend.ID()
		if m.Weight != 1 {
			id += fmt.Sprintf(",weight=%d", m.Weight)
		}
		ids = append(ids, id)
	}
	what := "publish"
	if set.Panicked() {
		what = "publish in panic"
	}
	if p.s.p != nil {
		p.s.printf("%s: %s", what, strings.Join(ids, " "))
	}
	return p.Policy.Build(set)
}

func (s *script) run(line string) {
	s.t.Helper()
	f := strings.Fields(line)
	switch f[0] {
	case "pool":
		s.pool(f[1:])
	case "update":
		s.p.Update(s.specs(f[1:]))
	case "at":
		s.at(balance.Instant(s.duration(f[1])))
	case "auto":
		for _, id := range strings.Split(f[1], ",") {
			s.auto[id] = f[2]
			if done := s.probes[id]; done != nil {
				delete(s.probes, id)
				done(s.answer(f[2]))
			}
		}
	case "probe":
		done := s.probes[f[1]]
		if done == nil {
			s.t.Fatalf("%s: no probe under way", line)
		}
		delete(s.probes, f[1])
		r := s.answer(f[2])
		if len(f) > 3 {
			r.Sent = balance.Instant(s.duration(strings.TrimPrefix(f[3], "sent=")))
		}
		done(r)
	case "do":
		n := 1
		if len(f) > 3 {
			n, _ = strconv.Atoi(f[3][1:])
		}
		for range n {
			for _, id := range strings.Split(f[1], ",") {
				s.lease(id).Done(s.outcome(f[2]))
			}
		}
	case "begin":
		s.leases[f[1]] = s.lease(f[2])
	case "end":
		s.leases[f[1]].Done(s.outcome(f[2]))
		delete(s.leases, f[1])
	case "picks":
		s.picks(f[1])
	case "pick":
		l := &Lease{}
		s.rnd = mix(s.rnd)
		got := s.p.Pick(l, &balance.Request{Rand: s.rnd, Now: s.now})
		id := ""
		if got == Granted {
			id = l.Backend().ID()
			s.leases[f[1]] = l
		}
		s.printf("pick %s: %v %s", f[1], got, id)
	case "override":
		s.override(f[1], f[2:])
	case "state":
		s.state()
		return
	default:
		s.t.Fatalf("unknown command %q", line)
	}
	s.settle()
}

// settle steps the pool until nothing more happens at this instant.
func (s *script) settle() {
	for range 100 {
		s.due, s.hasDue = s.p.Advance()
		if len(s.p.inbox) == 0 && s.p.marked.Load() == nil && (!s.hasDue || s.due > s.now) {
			return
		}
	}
	s.t.Fatalf("%v: the pool does not come to rest", time.Duration(s.now))
}

func (s *script) at(t balance.Instant) {
	for s.hasDue && s.due <= t {
		s.now = s.due
		s.settle()
	}
	s.now = t
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) pool(args []string) {
	cfg := Config{
		Name: "app", First: true,
		Active:        health.Active{Enabled: true, Interval: 5 * time.Second, FastInterval: time.Second, Timeout: 2 * time.Second, Fall: 3, Rise: 2, HTTP: true},
		Passive:       health.Passive{Enabled: true, Consecutive: 5, ConsecutiveConnect: 2, Eject: 30 * time.Second, MaxEject: 100 * time.Second, MaxEjected: 0.5},
		Panic:         Panic{Threshold: 0.5, Floor: 1},
		DrainDeadline: 30 * time.Second,
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		n, _ := strconv.Atoi(value)
		share, _ := strconv.ParseFloat(value, 64)
		switch key {
		case "probes":
			cfg.Active.Enabled = value == "on"
		case "interval":
			cfg.Active.Interval = s.duration(value)
		case "tcp":
			cfg.Active.HTTP = false
		case "initial":
			cfg.Active.InitialUp = value == "up"
		case "first":
			cfg.First = value == "yes"
		case "passive":
			cfg.Passive.Enabled = value == "on"
		case "max_ejected":
			cfg.Passive.MaxEjected = share
		case "panic":
			cfg.Panic.Off = value == "off"
		case "threshold":
			cfg.Panic.Threshold = share
		case "floor":
			cfg.Panic.Floor = n
		case "then":
			cfg.Panic.Then = map[string]Then{"serve": ThenServe, "shed": ThenShed, "failover": ThenFailover}[value]
		case "requests":
			cfg.Limits.BackendRequests = int64(n)
		default:
			s.t.Fatalf("unknown key %q", key)
		}
	}
	*s = script{t: s.t, auto: map[string]string{}, probes: map[string]func(health.ProbeResult){}, leases: map[string]*Lease{}}
	cfg.Policy = tracing{balance.NewP2C(2), s}
	s.p = New(cfg, s, func() balance.Instant { return s.now })
}

func (s *script) specs(args []string) []Spec {
	var out []Spec
	for _, a := range args {
		parts := strings.Split(a, ",")
		spec := Spec{ID: parts[0], URL: "http://" + parts[0], Weight: 1}
		for _, kv := range parts[1:] {
			key, value, _ := strings.Cut(kv, "=")
			switch key {
			case "weight":
				n, _ := strconv.Atoi(value)
				spec.Weight = uint32(n)
			case "url":
				spec.URL = value
			case "backup":
				spec.Backup = true
			}
		}
		out = append(out, spec)
	}
	return out
}

func (s *script) answer(text string) health.ProbeResult {
	r := health.ProbeResult{Sent: s.now, At: s.now, OnTrafficPort: true, Outcome: health.NoAnswer}
	switch text {
	case "pass":
		r.Outcome, r.Status = health.Pass, 200
	case "overloaded":
		r.Outcome, r.Status = health.Overloaded, 200
	case "not_ready":
		r.Outcome, r.Cause, r.Status, r.Error = health.NotReady, health.CauseStatus, 503, "status 503"
	case "refused":
		r.Cause = health.CauseRefused
	case "no_route":
		r.Cause = health.CauseNoRoute
	case "timeout":
		r.Cause = health.CauseTimeout
	case "reset":
		r.Cause = health.CauseReset
	case "local":
		r.Retry = true
	default:
		s.t.Fatalf("unknown answer %q", text)
	}
	return r
}

func (s *script) outcome(text string) Outcome {
	o := Outcome{Now: s.now, Sent: true, FirstByte: 10 * time.Millisecond, Total: 12 * time.Millisecond}
	// Two addresses in turn, unless the outcome names its client.
	s.client++
	o.Client = 1 + s.client%2
	if base, client, ok := strings.Cut(text, "@"); ok {
		n, _ := strconv.Atoi(client)
		text, o.Client = base, uint64(n)
	}
	kinds := map[string]OutcomeKind{
		"refused": ConnectRefused, "unreachable": ConnectUnreachable, "conn_timeout": ConnectTimeout, "tls": TLSFailed,
		"reset": Reset, "malformed": Malformed, "resp_timeout": ResponseTimeout, "canceled": Canceled, "client": ClientFault, "local": LocalFault,
	}
	switch kind, ok := kinds[text]; {
	case ok:
		o.Kind = kind
		o.Sent = kind >= Reset && kind != LocalFault
	case text == "stale":
		o.Kind, o.Stale = Reset, true
	case text == "503ra":
		o.Status, o.RetryAfter = 503, true
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			s.t.Fatal(err)
		}
		o.Status = n
	}
	return o
}

// lease takes a slot on a named backend, whatever the policy says.
func (s *script) lease(id string) *Lease {
	m := s.p.core.byID[id]
	if m == nil {
		for _, l := range s.p.core.leaving {
			if l.b.ID() == id {
				m = l
			}
		}
	}
	if m == nil || !m.b.Reserve() {
		s.t.Fatalf("no slot on %s", id)
	}
	l := &Lease{}
	l.take(s.p, m, m.b, s.now)
	return l
}

func (s *script) picks(count string) {
	n, _ := strconv.Atoi(count)
	got := map[string]int{}
	for range n {
		l := &Lease{}
		s.rnd = mix(s.rnd)
		if r := s.p.Pick(l, &balance.Request{Rand: s.rnd, Now: s.now}); r != Granted {
			got[r.String()]++
			continue
		}
		got[l.Backend().ID()]++
		l.Done(Outcome{Now: s.now, Kind: Canceled})
	}
	var line []string
	for id, n := range got {
		line = append(line, fmt.Sprintf("%s %d", id, n))
	}
	slices.Sort(line)
	s.printf("picks: %s", strings.Join(line, ", "))
}

func (s *script) override(id string, args []string) {
	o := Override{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "draining":
			o.Admin = new(balance.Draining)
		case "disabled":
			o.Admin = new(balance.Disabled)
		case "enabled":
			o.Admin = new(balance.Enabled)
		case "weight":
			n, _ := strconv.Atoi(value)
			o.Weight = new(uint32(n))
		case "reset":
			o.ResetWeight = true
		case "deadline":
			o.Deadline = s.duration(value)
		}
	}
	if err := s.p.Override(id, o); err != nil {
		s.printf("override %s: %v", id, err)
	}
}

func (s *script) state() {
	snap := s.p.Snapshot()
	pool := fmt.Sprintf("serving %d of %d", snap.Serving, snap.Members)
	if snap.Panic {
		pool += " PANIC " + snap.PanicWhy
	}
	if snap.Shared {
		pool += " SHARED"
	}
	if snap.Admit < 1 {
		pool += fmt.Sprintf(" admit %.2f", snap.Admit)
	}
	if snap.Ready {
		pool += " ready"
	}
	s.printf("%s", pool)
	for _, b := range snap.Backends {
		line := fmt.Sprintf("  %s %v share %.3g", b.ID, b.Health, b.Share)
		add := func(on bool, format string, args ...any) {
			if on {
				line += " " + fmt.Sprintf(format, args...)
			}
		}
		add(b.Reason != health.None, "%v", b.Reason)
		add(b.Admin != balance.Enabled, "%v", b.Admin)
		add(b.Weight != 1, "weight %d", b.Weight)
		add(b.AdminOverridden || b.WeightOverridden, "overridden since %v", time.Duration(max(b.AdminSince, b.WeightSince)))
		add(b.Suspect, "suspect")
		add(b.Unreachable, "unreachable")
		add(b.Removed, "removed")
		add(b.EjectedUntil != 0, "until %v", time.Duration(b.EjectedUntil))
		add(b.InFlight != 0, "in flight %d", b.InFlight)
		line += fmt.Sprintf(" flips %d since %v", b.Flips, time.Duration(b.Since))
		add(b.Why != "", "(%s)", b.Why)
		s.printf("%s", line)
	}
}

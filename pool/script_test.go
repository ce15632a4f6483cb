// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
//	update ID[,KEY=VALUE]... the whole membership; keys weight, url, backup, priority, zone
//	dismiss ID D UPDATE...   the membership without ID, with D (0, cut or a duration) for what it has in flight
//	at DURATION              time passes up to the instant, stepwise
//	auto ID|all ANSWER       probes of the backend are answered at once, silently
//	probe ID ANSWER          answers the probe under way; sent=DURATION shifts its sending
//	do ID,... OUTCOME [xN]   N requests on each backend in turn, begun and ended now
//	begin NAME ID, end NAME OUTCOME
//	do ID GOOD/BAD xN        the same, GOOD and BAD in turn
//	crowd N                  N picks, queued where there is no slot, and given up at once if that is an answer
//	picks N                  N picks by the policy, none of them held longer
//	pick NAME                one pick by the policy, held under the name
//	override ID draining|disabled|enabled|weight=N|reset [deadline=D]
//	reborn GAP [ID,...]      another pool takes over what this one exports, after so long; of the IDs only
//	state                    what Snapshot says
//	tiers                    what it says about tiers and zones
//
// Answers: pass, not_ready, 404, overloaded, refused, no_route, timeout, reset, local.
// Outcomes: a status, kept (200 over a kept connection), 503ra (with Retry-After), refused, unreachable, conn_timeout,
// tls, reset, stale, malformed, resp_timeout, canceled, client, local, exhausted (an answer that says overloaded),
// load=0.95 (one with a load report), 503ra=10s, 502behind (of what is behind a weir); any of them @CLIENT and before that ~LATENCY. Answers of probes
// also load=0.95.
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
	case SlowStartBegan:
		line += fmt.Sprintf(" from %.3g for %v %s", n.Share, n.For, n.Why)
	case EjectedNow:
		line += " for " + n.For.String()
	case DrainBegan:
		line += fmt.Sprintf(" left %d for %v", n.Left, n.For)
	case DrainEnding:
		line += fmt.Sprintf(" left %d in %v", n.Left, n.For)
	case DrainOver:
		line += fmt.Sprintf(" left %d", n.Left)
	case PanicBegan, SharedDependency, BrokenCheck, Overridden:
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
	case "dismiss":
		d := time.Duration(-1)
		if f[2] != "cut" {
			d = s.duration(f[2])
		}
		s.p.Dismiss(f[1], s.specs(f[3:]), d)
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
		s.do(f[1], f[2], f[3:])
	case "crowd":
		s.crowd(f[1])
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
	case "reborn":
		s.reborn(f[1:])
	case "state":
		s.state()
		return
	case "tiers":
		s.tiers()
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

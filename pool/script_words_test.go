// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

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
		case "window":
			cfg.SlowStart.Window, cfg.SlowStart.From = s.duration(value), 0.1
		case "from":
			cfg.SlowStart.From = share
		case "pool_ramp":
			cfg.SlowStart.PoolRamp, cfg.SlowStart.From = s.duration(value), 0.1
		case "overload":
			on := value == "on"
			cfg.Overload = health.Overload{Enabled: on, RetryAfter503: on, ORCA: on, GRPCExhausted: on, QueueFull: on}
		case "429":
			cfg.Overload.TooMany429 = value == "on"
		case "least":
			cfg.Overload.Floor = share
		case "success":
			cfg.Passive.SuccessRate.Off = value == "off"
		case "latency":
			cfg.Passive.Latency.Off = value == "off"
		case "zone":
			cfg.Zone.Local = value
		case "min_size":
			cfg.Zone.MinSize = n
		case "overprovisioning":
			cfg.Overprovisioning = share
		case "subset": // SIZE:INDEX:COUNT
			_, _ = fmt.Sscanf(value, "%d:%d:%d", &cfg.Subset.Size, &cfg.Subset.Index, &cfg.Subset.Count)
		case "drain_spread":
			cfg.DrainSpread = s.duration(value)
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
			case "priority":
				n, _ := strconv.Atoi(value)
				spec.Priority = uint8(n)
			case "zone":
				spec.Zone = value
			}
		}
		out = append(out, spec)
	}
	return out
}

func (s *script) answer(text string) health.ProbeResult {
	r := health.ProbeResult{Sent: s.now, At: s.now, OnTrafficPort: true, Outcome: health.NoAnswer}
	if load, ok := strings.CutPrefix(text, "load="); ok {
		r.Load, _ = strconv.ParseFloat(load, 64)
		r.Outcome, r.Status, r.HasLoad = health.Pass, 200, true
		return r
	}
	switch text {
	case "pass":
		r.Outcome, r.Status = health.Pass, 200
	case "overloaded":
		r.Outcome, r.Status = health.Overloaded, 200
	case "not_ready":
		r.Outcome, r.Cause, r.Status, r.Error = health.NotReady, health.CauseStatus, 503, "status 503"
	case "404":
		r.Outcome, r.Cause, r.Status, r.Error = health.NotReady, health.CauseStatus, 404, "status 404"
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
	if base, took, ok := strings.Cut(text, "~"); ok {
		o.FirstByte = s.duration(took)
		text, o.Total = base, o.FirstByte
	}
	text, o.Behind = strings.CutSuffix(text, "behind")
	if after, ok := strings.CutPrefix(text, "503ra="); ok {
		text, o.RetryAfterFor = "503ra", s.duration(after)
	}
	if load, ok := strings.CutPrefix(text, "load="); ok {
		o.Load, _ = strconv.ParseFloat(load, 64)
		text, o.HasLoad = "200", true
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
	case text == "kept":
		o.Status, o.Reused = 200, true
	case text == "exhausted":
		o.Status, o.Overloaded = 200, true
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

// tiers prints how requests are divided, and why.
func (s *script) tiers() {
	for _, t := range s.p.Snapshot().Tiers {
		line := fmt.Sprintf("%s: %d of %d, health %.3g, load %.3g", t.Name, t.Serving, t.Members, t.Health, t.Load)
		if t.Panic {
			line += " PANIC"
		}
		if t.Spent {
			line += " SPENT"
		}
		if t.Zoned != "" {
			line += " zones " + t.Zoned
		}
		s.printf("%s", line)
		for _, z := range t.Zones {
			name := z.Name
			if z.Local {
				name += " (local)"
			}
			s.printf("  %s: %d of %d, capacity %.3g of %.3g, load %.3g", name, z.Serving, z.Members, z.Capacity, z.Demand, z.Load)
		}
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
	if snap.Correlated != NotCorrelated && !snap.Shared {
		pool += fmt.Sprintf(" %v (%s)", snap.Correlated, snap.CorrelatedWhy)
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

// crowd asks for slots where there may be none.
func (s *script) crowd(count string) {
	n, _ := strconv.Atoi(count)
	got := map[string]int{}
	for range n {
		l := &Lease{}
		s.rnd = mix(s.rnd)
		r := &balance.Request{Rand: s.rnd, Now: s.now}
		answer := s.p.Pick(l, r)
		if answer == Full {
			if t, refused := s.p.Enqueue(l, r); t == nil {
				answer = refused
			} else {
				s.p.Abandon(t)
			}
		}
		got[answer.String()]++
		if answer == Granted {
			l.Done(Outcome{Now: s.now, Kind: Canceled})
		}
	}
	var line []string
	for word, n := range got {
		line = append(line, fmt.Sprintf("%s %d", word, n))
	}
	slices.Sort(line)
	s.printf("crowd: %s", strings.Join(line, ", "))
}

// do makes requests that begin and end now.
func (s *script) do(ids, outcomes string, times []string) {
	n := 1
	if len(times) > 0 {
		n, _ = strconv.Atoi(times[0][1:])
	}
	for range n {
		for _, id := range strings.Split(ids, ",") {
			for _, what := range strings.Split(outcomes, "/") {
				s.lease(id).Done(s.outcome(what))
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

var _ admin.Controller = (*Engine)(nil)

// Status implements admin.Controller.
func (e *Engine) Status() admin.Status {
	g := e.gen.Load()
	notReady := e.NotReady(nil)
	s := admin.Status{
		Version: e.opt.Version, PID: os.Getpid(),
		Started: e.started, UptimeS: time.Since(e.started).Seconds(),
		State: e.phase(), Generation: g.Number, Config: g.Plan.File,
		Ready: len(notReady) == 0, NotReady: notReady,
	}
	s.Predecessor, s.Successor = e.upgrade.neighbours()
	s.Host = e.host()
	s.Memory = admin.Memory(e.memory.gauges())
	for i := range g.Plan.Warnings {
		s.Warnings = append(s.Warnings, g.Plan.Warnings[i].Text)
	}
	for _, l := range e.liveListeners() {
		cfg := g.Plan.Listener(l.name)
		if cfg == nil || l.slot >= len(g.handlers) || g.handlers[l.slot] == nil {
			continue // it came or went with a reload since the generation was looked up
		}
		out := admin.Listener{
			Name: l.name, Bind: l.bound(), Protocol: cfg.Protocol, TLS: cfg.TLS != nil,
			Connections: int64(l.ln.Connections()),
		}
		acceptQueue(&out, l)
		h := g.handlers[l.slot]
		for _, rule := range h.Routes.Order() {
			r := h.Targets[rule.Index]
			row := admin.Route{Name: r.Name, Match: inWords(&cfg.Routes[rule.Index].Match), Pool: r.PoolName}
			if r.Limit != nil {
				row.InFlight = r.Limit.InFlight()
			}
			out.Routes = append(out.Routes, row)
		}
		s.Listeners = append(s.Listeners, out)
	}
	for _, p := range e.livePools() {
		snap := p.pool.Snapshot()
		s.Pools = append(s.Pools, p.summary(&snap))
	}
	return s
}

// inWords describes a match as a person would.
func inWords(m *config.Match) string {
	host, path := cmp.Or(m.Host, "any host"), ""
	switch {
	case m.Path != "":
		path = m.Path
	case m.PathPrefix != "":
		path = m.PathPrefix + "..."
	}
	if m.Host == "" && path != "" {
		host = ""
	}
	out := host + path
	if len(m.SNI) > 0 && m.Host == "" && path == "" {
		out = "sni " + strings.Join(m.SNI, " or ")
	} else if len(m.SNI) > 0 {
		out += ", sni " + strings.Join(m.SNI, " or ")
	}
	if len(m.ALPN) > 0 {
		out += ", alpn " + strings.Join(m.ALPN, " or ")
	}
	for i, name := range m.Methods {
		if i == 0 {
			out += ", "
		} else {
			out += " or "
		}
		out += name
	}
	for _, h := range m.Headers {
		out += fmt.Sprintf(", %s: %s", h.Name, config.MaskField(h.Name, h.Value))
	}
	return out
}

// Pools implements admin.Controller.
func (e *Engine) Pools() []admin.Pool {
	live := e.livePools()
	out := make([]admin.Pool, 0, len(live))
	for _, p := range live {
		out = append(out, p.view())
	}
	return out
}

// Pool implements admin.Controller.
func (e *Engine) Pool(name string) (admin.Pool, error) {
	p := e.gen.Load().pools[name]
	if p == nil {
		return admin.Pool{}, e.unknownPool(name)
	}
	return p.view(), nil
}

// Patch implements admin.Controller.
func (e *Engine) Patch(poolName, id string, patch admin.Patch) (admin.Backend, error) {
	p := e.gen.Load().pools[poolName]
	if p == nil {
		return admin.Backend{}, e.unknownPool(poolName)
	}
	done, err := e.change()
	if err != nil {
		return admin.Backend{}, err
	}
	defer done()
	o := pool.Override{Weight: patch.Weight, ResetWeight: patch.ResetWeight, Deadline: patch.Deadline}
	if patch.Weight != nil && patch.ResetWeight {
		return admin.Backend{}, fmt.Errorf("%w: a weight and its reset exclude each other", admin.ErrBadPatch)
	}
	if patch.Admin != "" {
		word, err := adminWord(patch.Admin)
		if err != nil {
			return admin.Backend{}, err
		}
		o.Admin = &word
	}
	if patch.Deadline < 0 || patch.Deadline > 0 && (o.Admin == nil || *o.Admin == balance.Enabled) {
		return admin.Backend{}, fmt.Errorf("%w: a deadline goes with draining or disabled", admin.ErrBadPatch)
	}
	if err := p.pool.Override(id, o); err != nil {
		if errors.Is(err, pool.ErrUnknownBackend) {
			return admin.Backend{}, p.unknownBackend(id)
		}
		return admin.Backend{}, fmt.Errorf("%w: %w", admin.ErrBadPatch, err)
	}
	if b, ok := p.backend(id); ok {
		b.Warning = p.lastOut(&b)
		return b, nil
	}
	return admin.Backend{}, fmt.Errorf("%w: %s left pool %s; what was said of it is kept for its return", admin.ErrUnknownBackend, id, poolName)
}

// lastOut says that an operator took out a backend, and that nobody serves in its
// stead; empty when somebody does.
func (p *livePool) lastOut(b *admin.Backend) string {
	if b.Admin == balance.Enabled.String() && b.Weight > 0 {
		return ""
	}
	s := p.pool.Snapshot()
	for i := range s.Tiers {
		if s.Tiers[i].Serving > 0 {
			return ""
		}
	}
	text := fmt.Sprintf("no backend of pool %s serves now: its requests fail until one does", p.name)
	p.driver.log.Warn(text, "backend", b.ID, "admin", b.Admin, "weight", b.Weight)
	return text
}

func adminWord(s string) (balance.Admin, error) {
	for _, a := range []balance.Admin{balance.Enabled, balance.Draining, balance.Disabled} {
		if a.String() == s {
			return a, nil
		}
	}
	return 0, fmt.Errorf("%w: admin is enabled, draining or disabled, not %q", admin.ErrBadPatch, s)
}

// summary is the pool without its members.
func (p *livePool) summary(s *pool.Snapshot) admin.PoolSummary {
	out := admin.PoolSummary{
		Name: p.name, Balance: s.Policy, Ready: s.Ready, Backends: s.Members, Serving: s.Serving,
		Panic: s.Panic, Correlated: s.Correlated.String(), CorrelatedWhy: s.CorrelatedWhy, InFlight: s.InFlight, QueueLength: s.Queue, Saturation: s.Saturation,
		RetryBudgetRemaining: s.BudgetRemaining, Requests: s.Requests,
		DetectionMS: milliseconds(s.Detection), Connections: p.connections(s),
	}
	if s.Known > s.Members {
		out.Known = s.Known
	}
	out.Adaptive = adaptiveLimit(&s.Adaptive)
	out.Discovery = p.discovery()
	for i := range s.Backends {
		out.Failures += s.Backends[i].Failures
		out.Tunnels += int64(p.driver.engine.front.tunnels.On(s.Backends[i].Backend))
		out.Streams += int64(p.driver.engine.front.tunnels.Streams(s.Backends[i].Backend))
	}
	return out
}

func (p *livePool) view() admin.Pool {
	from, since := p.find.sources()
	s := p.pool.Snapshot()
	out := admin.Pool{PoolSummary: p.summary(&s), Members: make([]admin.Backend, 0, len(s.Backends))}
	if len(s.Tiers) > 1 || len(s.Tiers) == 1 && s.Tiers[0].Zoned != "" {
		for i := range s.Tiers {
			out.Tiers = append(out.Tiers, tierView(&s.Tiers[i]))
		}
	}
	for i := range s.Backends {
		b := backendView(&s.Backends[i], s.At)
		if t := targetOf(s.Backends[i].Backend); t != nil {
			b.LearnedIdleS = t.up.Stats().LearnedIdle.Seconds()
		}
		p.driver.engine.front.longLived(&b, s.Backends[i].Backend)
		if b.Source = from[b.ID]; b.Removed {
			b.Source = ""
		} else if at, ok := since[b.ID]; ok {
			b.Added = &admin.Added{At: at, AgeS: time.Since(at).Seconds()}
		}
		if t := s.Backends[i].Tier; len(s.Tiers) > 1 && t >= 0 {
			b.Tier = s.Tiers[t].Name
		}
		out.Members = append(out.Members, b)
	}
	slices.SortFunc(out.Members, func(a, b admin.Backend) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func tierView(t *pool.TierSnapshot) admin.Tier {
	out := admin.Tier{
		Name: t.Name, Backends: t.Members, Serving: t.Serving, Health: round(t.Health), Load: round(t.Load), Panic: t.Panic, Zoned: t.Zoned,
	}
	for _, z := range t.Zones {
		out.Zones = append(out.Zones, admin.Zone{
			Name: z.Name, Local: z.Local, Backends: z.Members, Serving: z.Serving, Capacity: round(z.Capacity), Load: round(z.Load),
		})
	}
	return out
}

func backendView(b *pool.BackendSnapshot, now balance.Instant) admin.Backend {
	out := admin.Backend{
		ID: b.ID, URL: b.URL, Zone: b.Zone, Weight: b.Weight, Backup: b.Backup,
		Admin: b.Admin.String(), Health: b.Health.String(), Share: round(b.Share), Reason: b.Reason.String(), Why: b.Why,
		Since: clock.Time(b.Since), Flips: uint64(max(b.Flips, 0)), InFlight: b.InFlight,
		Requests: b.Requests, Failures: b.Failures, Removed: b.Removed,
		Latency: admin.Latency{P50: milliseconds(b.P50), P99: milliseconds(b.P99), EWMA: milliseconds(b.EWMA)},
	}
	for _, c := range b.History {
		out.History = append(out.History, admin.Change{
			At: clock.Time(c.At), From: c.From.String(), To: c.To.String(), Reason: c.Reason.String(), Why: c.Why,
		})
	}
	if b.SlowStartUntil > now {
		out.SlowStartLeftS = b.SlowStartUntil.Sub(now).Seconds()
	}
	if b.LoadAt != 0 {
		out.LoadReport = &admin.LoadReport{Utilization: round(b.Load), At: clock.Time(b.LoadAt)}
	}
	if b.LastCheck.Done {
		out.LastCheck = &admin.Check{At: clock.Time(b.LastCheck.At), OK: b.LastCheck.OK, Error: b.LastCheck.Error}
	}
	if b.AdminOverridden || b.WeightOverridden {
		var o pool.Override
		if b.WeightOverridden {
			o.Weight = &b.Weight
		}
		if b.AdminOverridden {
			o.Admin = &b.Admin
		}
		out.Override = overrideView(&o, b.NominalWeight, b.OverriddenSince(), now)
	}
	if b.Draining {
		d := &admin.Drain{InFlight: b.InFlight, DeadlineS: -1, Done: b.InFlight == 0 && !b.Sessions, Cut: b.DrainCut, Sessions: b.Sessions}
		if b.DrainDeadline != 0 {
			d.DeadlineS = max(b.DrainDeadline.Sub(now).Seconds(), 0)
		}
		out.Drain = d
	}
	return out
}

// overrideView shows what the operator says over a configured weight.
func overrideView(o *pool.Override, configured uint32, since, now balance.Instant) *admin.Override {
	out := &admin.Override{ConfiguredWeight: configured, Since: clock.Time(since), AgeS: now.Sub(since).Seconds()}
	if o.Weight != nil {
		w := *o.Weight
		out.Weight = &w
	}
	if o.Admin != nil {
		out.Admin = o.Admin.String()
	}
	return out
}

// round leaves the four digits of a share that mean something: it is kept in
// fewer bits than it is shown with.
func round(share float64) float64 { return math.Round(share*1e4) / 1e4 }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// poolGauges and listenerGauges are what a scrape reads.
func (e *Engine) poolGauges() []observe.PoolGauges {
	e.metrics.BugTotal("lease", pool.LeaseBugs()-e.bugs)
	live := e.livePools()
	out := make([]observe.PoolGauges, 0, len(live))
	for _, p := range live {
		s := p.pool.Snapshot()
		g := observe.PoolGauges{
			Name: p.name, Panic: s.Panic, Correlated: s.Correlated.String(), QueueLength: s.Queue, BudgetRemaining: s.BudgetRemaining,
			Saturation: s.Saturation, Connections: p.connections(&s), Discovery: p.discoveryGauges(),
			Backends: make([]observe.BackendGauges, 0, len(s.Backends)),
		}
		g.Limit = limitGauges(&s.Adaptive)
		for i := range s.Backends {
			b := &s.Backends[i]
			g.Backends = append(g.Backends, observe.BackendGauges{
				ID: b.ID, Address: addressOf(b.Backend), State: b.Health.String(), Share: round(b.Share),
				InFlight: b.InFlight, Flips: uint64(max(b.Flips, 0)), Tunnels: int64(e.front.tunnels.On(b.Backend)),
			})
		}
		out = append(out, g)
	}
	return out
}

func (e *Engine) listenerGauges() []observe.ListenerGauges {
	live := e.liveListeners()
	out := make([]observe.ListenerGauges, 0, len(live))
	for _, l := range live {
		out = append(out, l.gauges())
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

var (
	_ admin.Explainer   = (*Engine)(nil)
	_ admin.EventSource = (*Engine)(nil)
)

// Explain implements admin.Explainer.
func (e *Engine) Explain(q admin.Question) (admin.Explanation, error) {
	x := explainer{gen: e.gen.Load(), source: "running"}
	for _, l := range e.liveListeners() {
		if cfg := x.gen.Plan.Listener(l.name); cfg != nil && l.slot < len(x.gen.handlers) {
			x.doors = append(x.doors, door{cfg: cfg, bound: l.bound(), handler: x.gen.handlers[l.slot]})
		}
	}
	return x.explain(q)
}

// ExplainPlan explains what a weir that starts with a plan would make of a
// request: no backend has been probed or has work. Nothing is bound or dialed.
func ExplainPlan(plan *config.Plan, q admin.Question) (admin.Explanation, error) {
	e := &Engine{
		opt: Options{Machine: Machine{Instance: instanceNumber()}}, log: slog.New(slog.DiscardHandler), started: time.Now(),
		metrics: observe.NewMetrics(observe.MetricsOptions{}), names: upstream.NewResolver(),
		pools: make(map[string]*livePool), limiters: make(map[limiterKey]*l7.Limiter),
	}
	defer e.names.Close()
	x := explainer{gen: &Generation{Plan: plan, pools: make(map[string]*livePool)}, source: cmp.Or(plan.File, "flags")}
	for i := range plan.Pools {
		cfg := &plan.Pools[i]
		p, err := e.buildPool(cfg, true)
		if err != nil {
			return admin.Explanation{}, err
		}
		defer p.pool.Close()
		p.pool.Update(specs(cfg))
		p.seatMembers()
		x.gen.pools[cfg.Name] = p
	}
	for i := range plan.Listeners {
		l := &plan.Listeners[i]
		h, err := e.buildHandler(x.gen, l)
		if err != nil {
			return admin.Explanation{}, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		x.doors = append(x.doors, door{cfg: l, bound: l.Bind, handler: h})
	}
	return x.explain(q)
}

// explainer is a generation with its listeners.
type explainer struct {
	gen    *Generation
	source string
	doors  []door
}

// door is a listener.
type door struct {
	cfg     *config.Listener
	bound   []string
	handler *l7.Handler
}

func unclear(format string, args ...any) error {
	return fmt.Errorf("%w: %s", admin.ErrBadQuestion, fmt.Sprintf(format, args...))
}

// explain takes a request apart.
func (x *explainer) explain(q admin.Question) (admin.Explanation, error) {
	q.Method, q.Client = cmp.Or(q.Method, "GET"), cmp.Or(q.Client, "127.0.0.1")
	client, err := netip.ParseAddr(q.Client)
	if err != nil {
		return admin.Explanation{}, unclear("client %q is not an address", q.Client)
	}
	u, err := splitURL(q.URL)
	if err != nil {
		return admin.Explanation{}, err
	}
	d, assumed, err := x.choose(q.Listener, &u)
	if err != nil {
		return admin.Explanation{}, err
	}
	out, err := x.at(q, &u, d, client)
	out.Assumed = assumed
	return out, err
}

// at explains what comes to a listener.
func (x *explainer) at(q admin.Question, u *asked, d *door, client netip.Addr) (admin.Explanation, error) {
	q.Listener = d.cfg.Name
	if d.cfg.Sessions() {
		return x.session(q, u, d, client)
	}
	out := admin.Explanation{Source: x.source, Protocol: d.cfg.Protocol, Generation: x.gen.Number, Request: q}
	text, err := wire(&q, u)
	if err != nil {
		return out, err
	}
	var r message.Request
	switch n, err := http1.ParseRequest(text, &http1.Limits{MaxHeaderBytes: int(d.cfg.MaxHeaderBytes)}, &r); {
	case err != nil:
		out.Answer = refusedHead(err)
		return out, nil
	case n != len(text):
		return out, unclear("the method, URL or a header holds what would end the head of a request")
	}
	ci := &l7.ClientInfo{Peer: netip.AddrPortFrom(client, clientPort), Local: localOf(d.bound), TLS: d.cfg.TLS != nil}
	if r.TLS = ci.TLS; ci.TLS {
		q.SNI = serverName(q.SNI, u.authority)
		ci.Secure = l7.NewSecure(observe.Session{Name: q.SNI}, nil)
		out.Request.SNI = q.SNI
	}
	told := d.handler.Explain(&r, ci)
	x.tell(&out, d, &told)
	return out, nil
}

// clientPort stands for the port of a client, which decides nothing.
const clientPort = 50000

// tell puts what the handler said into words.
func (x *explainer) tell(out *admin.Explanation, d *door, told *l7.Explained) {
	out.Client, out.Believed = told.Client.String(), told.Believed
	if told.Health {
		out.Answer = &admin.OwnAnswer{Words: "weir answers its health path itself: 200 while it is ready, 503 otherwise"}
		return
	}
	for _, v := range told.Routes.Rules {
		cfg := &d.cfg.Routes[v.Rule.Index]
		row := admin.RouteVerdict{Name: cfg.Name, Match: inWords(&cfg.Match), Chosen: v.Chosen}
		switch {
		case v.Chosen:
		case v.Holds:
			row.Why = "earlier"
		default:
			if row.Why = v.Failed.String(); v.Header.Name != "" {
				row.Why += " " + v.Header.Name
			}
		}
		out.Routes = append(out.Routes, row)
	}
	rt := told.Route
	if rt != nil {
		out.Route = rt.Name
		if l := rt.Limit; l != nil {
			out.Limit = &admin.ExplainedLimit{InFlight: l.InFlight(), Most: l.Most()}
		}
	}
	if status := told.Status(); status != 0 {
		what, _ := told.Refused.Reason.Meaning()
		if told.Refused.Detail != "" {
			what = told.Refused.Detail
		}
		out.Answer = &admin.OwnAnswer{Status: status, Reason: told.Refused.Reason.String(), Words: what}
	}
	switch {
	case rt == nil:
	case rt.Respond != nil:
		out.Answer = &admin.OwnAnswer{Status: rt.Respond.Status, Reason: message.OK.String(), Words: "the route has a fixed answer"}
	case rt.Redirect != nil:
		out.Answer = &admin.OwnAnswer{Status: rt.Redirect.Status, Reason: message.OK.String(), Words: "the route redirects"}
	default:
		for line := range strings.SplitSeq(strings.TrimRight(string(told.Head), "\r\n"), "\r\n") {
			// Whoever may ask may not know what the route sets.
			if name, value, ok := strings.Cut(line, ": "); ok && len(out.Forwarded) > 0 {
				line = name + ": " + x.gen.Plan.MaskField(name, value)
			}
			out.Forwarded = append(out.Forwarded, line)
		}
		if p := x.gen.pools[rt.PoolName]; p != nil {
			x.pool(out, p, rt, told)
		}
	}
}

// pool asks the pool.
func (x *explainer) pool(out *admin.Explanation, p *livePool, rt *l7.Route, told *l7.Explained) {
	ask := told.Ask
	ask.Rand, ask.Now = rand.Uint64(), clock.Now()
	e := p.pool.Explain(&ask)
	out.Pool = poolInWords(rt.PoolName, out.Protocol, &e)
	if said := adaptiveInWords(&e.Snapshot.Adaptive, ask.Priority); said != "" {
		out.Pool.Reasoning = append([]string{said}, out.Pool.Reasoning...)
	}
	if said := cookieInWords(told, &e); said != "" {
		out.Pool.Reasoning = append([]string{said}, out.Pool.Reasoning...)
	}
	if rt.ProxyHeader != 0 {
		out.Pool.Reasoning = append(out.Pool.Reasoning,
			fmt.Sprintf("connections begin with a PROXY header of version %d, which names the client, and serve nobody else", rt.ProxyHeader))
	}
	from, _ := p.find.sources()
	for i := range out.Pool.Candidates {
		out.Pool.Candidates[i].Source = from[out.Pool.Candidates[i].ID]
		if f := p.driver.engine.front; f != nil { // a file that is explained has none
			out.Pool.Candidates[i].Tunnels = int64(f.tunnels.On(e.Snapshot.Backends[i].Backend))
		}
	}
	if !ask.HasKey {
		out.Pool.Kept = keptElsewhere(&e)
	}
	if cfg := x.gen.Plan.Pool(rt.PoolName); e.Keyed && cfg != nil {
		out.Pool.Key = keyInWords(cfg)
		if ask.HasKey {
			out.Pool.KeyHash = fmt.Sprintf("%016x", ask.Key)
		}
	}
	f := &admin.ExplainedRetry{
		Attempts: rt.Retry.Attempts, WithinS: rt.Retry.Within.Seconds(),
		Replayable: told.Replayable, BudgetLeft: round(e.Snapshot.BudgetRemaining),
	}
	if rt.Timeouts.Request > 0 || rt.Timeouts.Total > 0 {
		f.LeastS = p.pool.Latency(pool.Hopeless).Seconds()
	}
	if h := rt.Retry.Hedge; h.On() {
		f.Hedge = &admin.ExplainedHedge{AfterS: p.pool.HedgeAfter(&rt.Retry).Seconds(), Percent: h.Percent, May: told.Hedgeable}
	}
	if f.KeyField = "Idempotency-Key"; rt.IdempotencyKey != nil {
		f.KeyField = rt.IdempotencyKey.Name
	}
	for _, c := range p.pool.ExplainRetry(ask.Now, &rt.Retry, e.After, told.Replayable) {
		f.Cases = append(f.Cases, caseInWords(&c))
	}
	out.Failing = f
}

// FollowEvents implements admin.EventSource.
func (e *Engine) FollowEvents(from uint64) ([]admin.Event, <-chan struct{}) {
	list, more := e.events.follow(from)
	out := make([]admin.Event, len(list))
	for i, v := range list {
		out[i] = admin.Event(v)
	}
	return out, more
}

// EventEpoch implements admin.EventSource.
func (e *Engine) EventEpoch() string { return strconv.FormatInt(e.started.UnixMilli(), 36) }

// Failures implements admin.Explainer.
func (e *Engine) Failures(name string) (admin.Failures, error) {
	g := e.gen.Load()
	if name != "" && g.pools[name] == nil {
		return admin.Failures{}, e.unknownPool(name)
	}
	out := admin.Failures{Pools: []admin.PoolFailures{}, Meanings: map[string]admin.Meaning{}}
	for _, f := range e.failures.Last(name) {
		row := admin.PoolFailures{Pool: f.Pool, Failed: f.Failed, Faults: f.Faults, Missed: f.Missed, Requests: []json.RawMessage{}}
		failed := map[string]bool{}
		for _, line := range f.Lines {
			row.Requests = append(row.Requests, json.RawMessage(line))
			noteReasons(line, out.Meanings, failed)
		}
		if p := g.pools[f.Pool]; p != nil {
			row.Backends = statesOf(p, failed)
			if slices.ContainsFunc(f.Lines, foundNobody) {
				row.Away = awayOf(p)
			}
		}
		out.Pools = append(out.Pools, row)
	}
	return out, nil
}

// noteReasons gathers the reasons and backends of a line.
func noteReasons(line []byte, meanings map[string]admin.Meaning, backends map[string]bool) {
	type attempt struct{ Backend, Reason string }
	var l struct {
		attempt
		Tried  []attempt
		Tunnel bool
		Proto  string
	}
	if json.Unmarshal(line, &l) != nil {
		return // our own text: cannot happen
	}
	for _, a := range append(l.Tried, l.attempt) {
		if a.Backend != "" {
			backends[a.Backend] = true
		}
		for r := range message.Reasons {
			if r.String() == a.Reason {
				what, look := r.Meaning()
				meanings[a.Reason] = admin.Meaning{What: what, Look: look}
				note := func(behind string, meaning func() (what, look string, other bool)) {
					if what, look, other := meaning(); other {
						meanings[a.Reason+behind] = admin.Meaning{What: what, Look: look}
					}
				}
				switch {
				case l.Proto == "udp":
					note(admin.OfFlow, r.FlowMeaning)
				case l.Proto == "tcp" || l.Proto == "sni":
					note(admin.OfSession, r.SessionMeaning)
				case l.Tunnel:
					note(admin.OfTunnel, r.TunnelMeaning)
				}
			}
		}
	}
}

// foundNobody reports whether a line is of a request for which the pool had nobody.
func foundNobody(line []byte) bool {
	var l struct{ Reason string }
	return json.Unmarshal(line, &l) == nil && (l.Reason == message.NoBackend.String() || l.Reason == message.AllBroken.String())
}

// awayOf says of a pool's backends that take nothing now what keeps them from it, of a
// few if they are many.
func awayOf(p *livePool) map[string]string {
	const few = 8
	which := map[string]bool{}
	s := p.pool.Snapshot()
	for i := range s.Backends {
		if b := &s.Backends[i]; len(which) < few && !b.Removed && (b.Share <= 0 || b.Weight == 0 || b.Admin != balance.Enabled) {
			which[b.ID] = true
		}
	}
	return statesOf(p, which)
}

// statesOf says how backends are now.
func statesOf(p *livePool, which map[string]bool) map[string]string {
	out := map[string]string{}
	s := p.pool.Snapshot()
	for i := range s.Backends {
		b := &s.Backends[i]
		if !which[b.ID] {
			continue
		}
		text := fmt.Sprintf("%s, %s, share %.2g", b.Admin, b.Health, b.Share)
		switch {
		case b.AdminOverridden:
			text = fmt.Sprintf("%s by an operator, %s, share %.2g", b.Admin, b.Health, b.Share)
		case b.Weight == 0:
			text += ", weight 0"
		}
		if b.Reason.String() != "" {
			text += " (" + b.Reason.String() + ")"
		}
		if b.Why != "" {
			text += ": " + b.Why
		}
		out[b.ID] = text
	}
	for id := range which {
		if out[id] == "" {
			out[id] = "is no longer in the pool"
		}
	}
	return out
}

// refusedHead is what a head that the parser refuses is answered with.
func refusedHead(err error) *admin.OwnAnswer {
	var h *http1.Error
	if !errors.As(err, &h) {
		return &admin.OwnAnswer{Words: err.Error()}
	}
	return &admin.OwnAnswer{Status: h.Status(), Reason: h.Reason.String(), Words: h.Detail}
}

// localOf is the address that a client of a listener connects to.
func localOf(bound []string) netip.AddrPort {
	for _, b := range bound {
		if a, err := netip.ParseAddrPort(b); err == nil {
			return loopbackOf(a)
		}
		if port, err := strconv.ParseUint(strings.TrimPrefix(b, ":"), 10, 16); err == nil {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		}
	}
	return netip.AddrPort{}
}

// caseInWords names a failure as the access log does.
func caseInWords(c *pool.RetryCase) admin.ExplainedCase {
	out := admin.ExplainedCase{Failure: c.Failure.Kind.String(), Then: c.Why.String()}
	switch f := &c.Failure; f.Kind {
	case pool.Success:
		out.Failure = "answer " + strconv.Itoa(f.Status)
		if f.RetryAfter {
			out.Failure += " with Retry-After"
		}
	case pool.Reset:
		out.Failure = message.ResetBeforeResponse.String()
	}
	switch {
	case c.Redispatch:
		out.Then = "redispatch"
	case c.Again:
		out.Then = "retry"
	}
	return out
}

// keyInWords says what a pool's keys are made of.
func keyInWords(p *config.Pool) string {
	parts := make([]string, len(p.Hash.Key))
	for i, k := range p.Hash.Key {
		if parts[i] = k.From; k.Name != "" {
			parts[i] += " " + k.Name
		}
	}
	return strings.Join(slices.Clip(parts), ", ")
}

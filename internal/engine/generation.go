// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/route"
)

// Generation is one configuration as the data plane sees it. It is immutable
// once published, apart from what it refers to.
type Generation struct {
	Number   uint64
	Plan     *config.Plan
	handlers []*l7.Handler        // by liveListener.slot; nil where none is
	streams  []*streamRoutes      // the same of what carries sessions
	pools    map[string]*livePool // by name; owned by the engine, shared between generations
	staged   *stagedFront         // this and what follows: until it is published
	desk     *stagedOps
	log      *liveLog
	changes  map[string]*poolChange // of pools that run
	limits   []func()               // new ceilings of bulkheads that are already in use; run when published
}

// buildHandlers compiles every listener's routes. Nothing that runs is touched.
func (e *Engine) buildHandlers(g *Generation, listeners map[string]*liveListener) error {
	slots := 0
	for _, l := range listeners {
		slots = max(slots, l.slot+1)
	}
	g.handlers = make([]*l7.Handler, slots)
	g.streams = make([]*streamRoutes, slots)
	for i := range g.Plan.Listeners {
		l := &g.Plan.Listeners[i]
		h, err := e.buildHandler(g, l)
		if err != nil {
			return fmt.Errorf("listener %s: %w", l.Name, err)
		}
		g.handlers[listeners[l.Name].slot] = h
		if l.Sessions() {
			g.streams[listeners[l.Name].slot] = e.buildStreams(g, l, h, listeners)
		}
	}
	return nil
}

func (e *Engine) buildHandler(g *Generation, l *config.Listener) (*l7.Handler, error) {
	h := &l7.Handler{
		Listener:     l.Name,
		HealthPath:   l.HealthPath,
		Ready:        e.isReady,
		DebugHeaders: l.DebugHeaders,
		MaxBody:      l.MaxBody,
		CertFields:   certFields(l.TLS),
		HSTS:         hsts(l.TLS),
		Challenge:    e.issued.challenge(l),
		Series:       e.metrics.Route(l.Name, "", ""),
	}
	h.ClientAuthNames = clientAuthNames(l.TLS)
	h.Log = g.log.of(h)
	if len(l.TrustedProxies)+len(g.Plan.TrustedWeirs) > 0 {
		h.Trust = l7.NewTrust(l.TrustedProxies, g.Plan.TrustedWeirs)
	}
	rules := make([]route.Rule, 0, len(l.Routes))
	for i := range l.Routes {
		r := &l.Routes[i]
		target, err := e.buildRoute(g, l, r)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", r.Name, err)
		}
		h.Targets = append(h.Targets, target)
		rules = append(rules, ruleOf(r, i))
	}
	var err error
	h.Routes, err = route.New(rules)
	return h, err
}

func ruleOf(r *config.Route, index int) route.Rule {
	rule := route.Rule{
		Host: r.Match.Host, Path: r.Match.Path, PathPrefix: r.Match.PathPrefix,
		Methods: r.Match.Methods, Raw: r.Raw, Index: index, SNI: r.Match.SNI,
	}
	for _, m := range r.Match.Headers {
		rule.Headers = append(rule.Headers, route.Header{Name: m.Name, Value: m.Value})
	}
	return rule
}

func (e *Engine) buildRoute(g *Generation, l *config.Listener, r *config.Route) (*l7.Route, error) {
	out := &l7.Route{
		Name:            r.Name,
		PoolName:        r.Pool,
		Rewrite:         l7.Rewrite(r.Rewrite),
		RequestHeaders:  edits(r.RequestHeaders),
		ResponseHeaders: edits(r.ResponseHeaders),
		Series:          e.metrics.Route(l.Name, r.Name, r.Pool),
		Limit:           e.limiter(g, l.Name, r.Name, r.MaxRequests),
		Timeouts: l7.Timeouts{
			Request: r.Timeouts.Request, Total: r.Timeouts.Total,
		},
	}
	switch {
	case r.Respond != nil:
		out.Respond = &l7.Respond{
			Status: r.Respond.Code, ContentType: r.Respond.ContentType, Body: []byte(r.Respond.Body),
		}
	case r.Redirect != nil:
		out.Redirect = &l7.Redirect{
			Status: r.Redirect.Code, Scheme: r.Redirect.Scheme, Host: r.Redirect.Host,
			Port: r.Redirect.Port, Path: r.Redirect.Path,
		}
	case r.Listener != "": // which has routes of its own
	default:
		p := g.pools[r.Pool]
		if p == nil {
			return nil, fmt.Errorf("there is no pool %q", r.Pool)
		}
		cfg := g.Plan.Pool(r.Pool)
		t := &cfg.Timeouts
		out.Pool = p.pool
		p.usedBy(out)
		out.Key = keyFunc(cfg)
		out.Sticky = p.stickyOf(cfg)
		out.LoadReports = wantsLoad(&cfg.Overload)
		out.GRPCExhausted = heedsExhausted(&cfg.Overload)
		out.ProxyHeader = proxyVersion(cfg)
		out.Weir = cfg.Weir
		out.Priority, _ = balance.ParsePriority(r.Priority)
		out.PoolSeries = p.series
		out.Retry = retryRules(&r.Retry)
		out.RetryBody = r.Retry.Body
		out.IdempotencyKey = idempotencyKey(r.Retry.IdempotencyKey)
		out.Timeouts.Connect = connectTimeout(cfg)
		out.Timeouts.Unacked = t.Connect
		out.Timeouts.ResponseHeader = t.ResponseHeader
		out.Timeouts.StreamIdle = t.StreamIdle
		out.Timeouts.TunnelIdle = t.TunnelIdle
		out.Timeouts.TunnelAge = t.TunnelAge
	}
	return out, nil
}

// idempotencyKey says which field is one, nil where it is the usual one.
func idempotencyKey(name string) *l7.IdempotencyKey {
	if strings.EqualFold(name, "Idempotency-Key") {
		return nil
	}
	return &l7.IdempotencyKey{Name: name}
}

// keyFunc makes the keys of requests to a pool whose policy wants them.
func keyFunc(p *config.Pool) l7.KeyFunc {
	if !p.Keyed() {
		return nil
	}
	sources := map[string]l7.KeySource{
		"client_ip": l7.KeyClient, "header": l7.KeyHeader, "cookie": l7.KeyCookie, "query": l7.KeyQuery, "path": l7.KeyPath,
	}
	parts := make([]l7.KeyPart, len(p.Hash.Key))
	for i, k := range p.Hash.Key {
		parts[i] = l7.KeyPart{From: sources[k.From], Name: k.Name}
	}
	return l7.NewKeyFunc(parts)
}

// connectTimeout bounds dialing and TLS together; without a bound on one there
// is none on both.
func connectTimeout(p *config.Pool) time.Duration {
	if p.Timeouts.Connect == 0 || p.Timeouts.TLS == 0 {
		return 0
	}
	return p.Timeouts.Connect + p.Timeouts.TLS
}

func edits(h config.HeaderEdits) l7.Edits {
	out := l7.Edits{Remove: h.Remove}
	for _, s := range h.Set {
		out.Set = append(out.Set, l7.Header(s))
	}
	for _, a := range h.Add {
		out.Add = append(out.Add, l7.Header(a))
	}
	return out
}

// limiter returns the route's bulkhead, the one that already counts when the
// route was there before. Routes without a limit have none. Called under mu.
func (e *Engine) limiter(g *Generation, listener, name string, most int64) *l7.Limiter {
	if most <= 0 {
		return nil
	}
	k := limiterKey{listener, name}
	l := e.limiters[k]
	if l == nil {
		l = l7.NewLimiter(most)
		e.limiters[k] = l
	}
	g.limits = append(g.limits, func() { l.SetMax(most) })
	return l
}

type limiterKey struct{ listener, route string }

// loopbackOf helps printing: an unspecified address is reached over loopback.
func loopbackOf(a netip.AddrPort) netip.AddrPort {
	switch {
	case !a.Addr().IsUnspecified():
		return a
	case a.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	default:
		return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/route"
)

// browserALPN is what a client offers in TLS unless it was said otherwise.
var browserALPN = []string{"h2", "http/1.1"}

// session explains where a connection goes of which no request is read: by the name
// that its client asks for, or to the one route that there is.
func (x *explainer) session(q admin.Question, u *asked, d *door, client netip.Addr) (admin.Explanation, error) {
	whole := q
	q.Method, q.Headers = "", nil
	a := route.Asking{}
	if d.cfg.Protocol == "sni" {
		q.SNI = serverName(q.SNI, u.authority)
		if q.ALPN == nil {
			q.ALPN = browserALPN
		}
		a.Name, a.ALPN = q.SNI, q.ALPN
	}
	out := admin.Explanation{Source: x.source, Protocol: d.cfg.Protocol, Generation: x.gen.Number, Request: q, Client: client.String()}
	chosen := -1
	for _, v := range sessionVerdicts(d.cfg, &a) {
		r := &d.cfg.Routes[v.Index]
		row := admin.RouteVerdict{Name: r.Name, Match: inWords(&r.Match), Chosen: v.Chosen}
		if d.cfg.Protocol != "sni" {
			row.Match = "everything" // there is no name to go by
		}
		switch {
		case v.Chosen:
			chosen = v.Index
		case v.Failed == route.NoCondition:
			row.Why = "earlier"
		default:
			row.Why = v.Failed.String()
		}
		out.Routes = append(out.Routes, row)
	}
	if chosen < 0 || chosen >= len(d.handler.Targets) {
		out.Answer = &admin.OwnAnswer{Reason: message.NoRoute.String(), Words: "no route takes the name that is asked for: the connection ends with the alert unrecognized_name"}
		return out, nil
	}
	if to := d.cfg.Routes[chosen].Listener; to != "" {
		return x.through(whole, u, d, &out, d.cfg.Routes[chosen].Name, to, client)
	}
	rt := d.handler.Targets[chosen]
	out.Route = rt.Name
	if l := rt.Limit; l != nil {
		out.Limit = &admin.ExplainedLimit{InFlight: l.InFlight(), Most: l.Most()}
	}
	if p := x.gen.pools[rt.PoolName]; p != nil {
		told := &l7.Explained{Route: rt, Client: client, Replayable: true}
		if rt.Key != nil {
			told.Ask.Key, told.Ask.HasKey = rt.Key(&message.Request{}, client)
		}
		x.pool(&out, p, rt, told)
		failsOf(out.Failing, d.cfg.Datagrams(), p.secure())
		one := "session"
		if d.cfg.Datagrams() {
			one = "flow"
		}
		words := strings.NewReplacer("the request", "the "+one, "requests in flight", one+"s in flight") // policies place requests, whatever those are
		for i, w := range out.Pool.Reasoning {
			out.Pool.Reasoning[i] = words.Replace(w)
		}
	}
	return out, nil
}

// failsOf leaves what can happen to a session, or to a flow: another backend is tried
// until the first byte, or the first answer, and never after, and no retry is paid for.
// secure says that TLS with a backend may fail.
func failsOf(f *admin.ExplainedRetry, flow, secure bool) {
	f.Cases = slices.DeleteFunc(f.Cases, func(c admin.ExplainedCase) bool {
		switch c.Failure {
		case message.ConnectRefused.String():
			return false
		case message.ConnectTimeout.String():
			return flow
		case message.TLSFailed.String():
			return !secure
		}
		return true
	})
	f.LeastS, f.KeyField, f.Hedge = 0, "", nil
}

// secure reports that there is TLS to some of the pool's backends.
func (p *livePool) secure() bool {
	for _, b := range p.pool.Snapshot().Backends {
		if t := targetOf(b.Backend); t != nil && t.https {
			return true
		}
	}
	return false
}

// through explains what the listener makes of a connection that another one passes
// to it by a route.
func (x *explainer) through(q admin.Question, u *asked, front *door, seen *admin.Explanation, route, to string, client netip.Addr) (admin.Explanation, error) {
	for i := range x.doors {
		if x.doors[i].cfg.Name != to {
			continue
		}
		next := x.doors[i]
		next.bound = front.bound // where the client connects
		if q.SNI = seen.Request.SNI; q.SNI == "" {
			q.SNI = "none"
		}
		out, err := x.at(q, u, &next, client)
		out.Through = &admin.ExplainedFront{Listener: front.cfg.Name, Routes: seen.Routes, Route: route}
		return out, err
	}
	return *seen, unclear("listener %q does not run yet", to)
}

// sessionVerdicts are the routes of a listener as a client finds them.
func sessionVerdicts(l *config.Listener, a *route.Asking) []route.NameVerdict {
	if n := buildNames(l); n != nil {
		return n.table.Explain(a)
	}
	return []route.NameVerdict{{Chosen: true}}
}

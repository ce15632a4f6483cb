// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"

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
func (x *explainer) session(q admin.Question, u *asked, d *door, client netip.Addr) admin.Explanation {
	q.Method, q.Headers = "", nil
	a := route.Asking{}
	if d.cfg.Protocol == "sni" {
		q.SNI = serverName(q.SNI, u.authority)
		if q.ALPN == nil {
			q.ALPN = browserALPN
		}
		a.Name, a.ALPN = q.SNI, q.ALPN
	}
	out := admin.Explanation{Source: x.source, Generation: x.gen.Number, Request: q, Client: client.String()}
	chosen := -1
	for _, v := range sessionVerdicts(d.cfg, &a) {
		r := &d.cfg.Routes[v.Index]
		row := admin.RouteVerdict{Name: r.Name, Match: inWords(&r.Match), Chosen: v.Chosen}
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
		return out
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
		// Another backend is tried until the first byte has gone to one, and never after.
		out.Failing.Cases = slices.DeleteFunc(out.Failing.Cases, func(c admin.ExplainedCase) bool { return c.Then != "redispatch" })
	}
	return out
}

// sessionVerdicts are the routes of a listener as a client finds them.
func sessionVerdicts(l *config.Listener, a *route.Asking) []route.NameVerdict {
	if n := buildNames(l); n != nil {
		return n.table.Explain(a)
	}
	return []route.NameVerdict{{Chosen: true}}
}

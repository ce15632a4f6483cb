// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

var nameRules = []Rule{
	{
		Name: "sni_default", Severity: Note,
		Title: "Clients without a known name are turned away",
		Why:   "A listener that routes by TLS name has no route for the rest: clients that name no server (addresses are never named, nor do some old or simple clients), names that no route has, and clients whose name is hidden by ECH behind another one. Their connections end with the alert unrecognized_name and the reason no_route. That may be meant.",
		Fix:   "Add a route without sni, which takes every client that no other route takes.",
		find: func(v *view) {
			v.byName(func(l *config.Listener, at []string) {
				if defaultRoute(l) != nil {
					return
				}
				n := len(l.Routes)
				v.found(path(at, "routes"), "listener "+l.Name+" has no route for clients that ask for no name, or for another one than its routes have: they are closed",
					config.Edit{Path: path(at, "routes", n), Insert: true, Value: "{" + strings.Replace(leads(&l.Routes[n-1]), " ", ": ", 1) + "}"})
			})
		},
	},
	{
		Name: "sni_ech", Severity: Note,
		Title: "Clients that hide their name go to the default route",
		Why:   "With ECH (Encrypted Client Hello) the name in clear is the public one of whoever published the keys, often a CDN's, and the name that counts can be read by the holder of the keys alone. Routes see the outer name: a hidden client goes where that name leads, or to the default route, and a backend there that has neither the keys nor the name refuses it. Browsers send a meaningless ECH to everyone else, with the true name in clear, and are routed by it.",
		Fix:   "Nothing, unless you publish ECH keys (ech= in HTTPS records of DNS): then give the public name of those keys a route to the servers that hold them. The access log says ech where a hello may hide another name.",
		find: func(v *view) {
			v.byName(func(l *config.Listener, at []string) {
				r := defaultRoute(l)
				if r == nil || slices.ContainsFunc(l.Routes, func(o config.Route) bool { return len(o.Match.SNI) > 0 && leads(&o) == leads(r) }) {
					return
				}
				v.found(path(at, "routes"), "a client of listener "+l.Name+" that hides its name by ECH is routed by the outer one; where that has no route it goes to "+leads(r)+", which none of the names has")
			})
		},
	},
	{
		Name: "sni_overlap", Severity: Note,
		Title: "One certificate may serve names of different pools",
		Why:   "Browsers reuse a connection for every name that its certificate covers and that has the same address (RFC 9113, section 9.1.1). The name is read once for each connection: a request for the one name comes on a connection that was opened for the other, and so to the other's backends, now and then and only with HTTP/2. Names below one domain are the usual case, because one wildcard certificate covers them.",
		Fix:   "Give the backends of each pool certificates with their own names alone, or let them answer 421 to hosts that are not theirs, so that browsers ask again on another connection. Or end TLS here, with protocol: http: then every request is routed by its host.",
		find:  findOverlap,
	},
	{
		Name: "sni_host", Severity: Warning,
		Title: "A route asks for a server name and another host",
		Why:   "Clients ask for the host of the URL in TLS, and for the same one in the request. A route with a host and a server name that does not cover it matches only a request on a connection that was opened for another name, which is an accident of connection reuse.",
		Fix:   "Remove one of the two; host is enough unless the certificate of the client depends on the name.",
		find: func(v *view) {
			v.listeners(func(l *config.Listener, at []string) {
				for i := range l.Routes {
					m := &l.Routes[i].Match
					if m.Host == "" || len(m.SNI) == 0 || slices.ContainsFunc(m.SNI, func(n string) bool { return belowName(n, m.Host) || belowName(m.Host, n) }) {
						continue
					}
					here := path(at, "routes", i, "match", "sni")
					v.found(here, fmt.Sprintf("a client that asks for host %s does not ask for server name %s, so this route is never reached", m.Host, strings.Join(m.SNI, " or ")), remove(here))
				}
			})
		},
	},
}

// byName calls f for each listener that routes by TLS name, and has names.
func (v *view) byName(f func(l *config.Listener, at []string)) {
	v.listeners(func(l *config.Listener, at []string) {
		if l.Protocol == "sni" && slices.ContainsFunc(l.Routes, func(r config.Route) bool { return len(r.Match.SNI) > 0 }) {
			f(l, at)
		}
	})
}

// defaultRoute returns the route that takes every name and none, or nil.
func defaultRoute(l *config.Listener) *config.Route {
	for i := range l.Routes {
		if m := &l.Routes[i].Match; len(m.SNI) == 0 && len(m.ALPN) == 0 {
			return &l.Routes[i]
		}
	}
	return nil
}

// leads says where a route of an sni listener leads.
func leads(r *config.Route) string {
	if r.Listener != "" {
		return "listener " + r.Listener
	}
	return "pool " + r.Pool
}

// findOverlap looks for a wildcard, and another route's name below it.
func findOverlap(v *view) {
	v.byName(func(l *config.Listener, at []string) {
		for i := range l.Routes {
			for _, wide := range l.Routes[i].Match.SNI {
				if !strings.HasPrefix(wide, "*.") {
					continue
				}
				for j := range l.Routes {
					if leads(&l.Routes[j]) == leads(&l.Routes[i]) {
						continue
					}
					for _, name := range l.Routes[j].Match.SNI {
						if name != wide && belowName(wide, name) {
							v.found(path(at, "routes", j, "match", "sni"), fmt.Sprintf(
								"%s is in %s and the rest of %s in %s: where a certificate covers both, browsers send requests for one on connections for the other", name, leads(&l.Routes[j]), wide, leads(&l.Routes[i])))
						}
					}
				}
			}
		}
	})
}

// belowName reports whether a pattern has a name, or all of another pattern.
func belowName(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == name
	}
	return len(name) >= len(suffix) && strings.HasSuffix(name, suffix)
}

// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"net"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

var acmeRules = []Rule{{
	Name: "acme_unreachable", Severity: Note,
	Title: "Nobody answers on the port where the authority asks",
	Why:   "An ACME authority proves a name by asking port 80 of it (http-01, answered by any listener without TLS) or port 443 (tls-alpn-01, answered by listeners with tls.acme), and no other port. If no listener is bound to one of them, and nothing in front forwards it here, each order fails, and the names have no certificate.",
	Fix:   "Bind a listener without TLS to :80 (it can redirect everything else), or the one with tls.acme to :443. If a router, a container's port mapping or a balancer leads those ports here, silence this.",
	find:  findUnreachable,
}}

func findUnreachable(v *view) {
	asked := slices.Contains(v.Plan.ACME.Challenges, "http-01") && answersAt(v, "80", func(l *config.Listener) bool { return l.Protocol == "http" && l.TLS == nil }) ||
		slices.Contains(v.Plan.ACME.Challenges, "tls-alpn-01") && answersAt(v, "443", func(l *config.Listener) bool { return l.TLS != nil && len(l.TLS.ACME) > 0 || leadsToACME(v.Plan, l) })
	if asked {
		return
	}
	var wants []string
	if slices.Contains(v.Plan.ACME.Challenges, "http-01") {
		wants = append(wants, "a listener without TLS on port 80 (http-01)")
	}
	if slices.Contains(v.Plan.ACME.Challenges, "tls-alpn-01") {
		wants = append(wants, "this one on port 443 (tls-alpn-01)")
	}
	v.listeners(func(l *config.Listener, at []string) {
		if l.TLS == nil || len(l.TLS.ACME) == 0 {
			return
		}
		fix := config.Edit{Path: path("listeners", freeName(v.Plan, "plain")), Value: `{bind: ":80", routes: [{redirect: {scheme: https}}]}`}
		if !slices.Contains(v.Plan.ACME.Challenges, "http-01") {
			fix = write(path(at, "bind"), ":443")
		}
		v.found(path(at, "tls", "acme"), "the authority would have to find "+strings.Join(wants, ", or ")+", and there is none", fix)
	})
}

// answersAt reports whether a listener of a kind is bound to a port, or to something
// whose port the text does not tell.
func answersAt(v *view, port string, kind func(*config.Listener) bool) bool {
	return slices.ContainsFunc(v.Plan.Listeners, func(l config.Listener) bool {
		return kind(&l) && slices.ContainsFunc(l.Bind, func(b string) bool {
			if strings.HasPrefix(b, "unix:") || strings.HasPrefix(b, "systemd:") {
				return true
			}
			_, p, err := net.SplitHostPort(b)
			return err == nil && p == port
		})
	})
}

// leadsToACME reports whether a route of an sni listener leads to a listener that
// has names of ACME.
func leadsToACME(p *config.Plan, l *config.Listener) bool {
	return slices.ContainsFunc(l.Routes, func(r config.Route) bool {
		to := p.Listener(r.Listener)
		return to != nil && to.TLS != nil && len(to.TLS.ACME) > 0
	})
}

// freeName returns a name that no listener has.
func freeName(p *config.Plan, name string) string {
	for p.Listener(name) != nil {
		name += "-80"
	}
	return name
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strings"
)

// serverName reads a name that a client may ask for in TLS, in lower case.
var serverName codec[string] = simple[string]{
	name: "server name",
	parse: func(s string) (string, string, string) {
		name := strings.ToLower(strings.TrimSuffix(s, "."))
		if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			return "", quote(s) + " is an address: clients name no address in TLS (RFC 6066)", "leave sni out for clients without a name"
		}
		if name == "*" {
			return "", quote(s) + " is not a name", "leave sni out to match every name, and clients without one"
		}
		if strings.ContainsAny(name, "^$()|?+[]") {
			return "", quote(s) + " is a pattern, and names are compared", `write the name, or "*.example.com" for all below one`
		}
		return matchHost.(simple[string]).parse(name)
	},
	format: func(s string) string { return s },
}

// protocolID reads the name of a protocol in ALPN.
var protocolID = text("protocol", func(s string) (what, fix string) {
	switch {
	case s == "http/1" || s == "http1.1" || s == "http1" || s == "HTTP/1.1":
		return quote(s) + " is not a protocol in ALPN", "write http/1.1"
	case s == "http/2" || s == "http2" || s == "HTTP/2" || s == "H2":
		return quote(s) + " is not a protocol in ALPN", "write h2"
	case s == "" || len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e }):
		return quote(s) + " is not a protocol in ALPN", "write it as clients offer it, such as h2, http/1.1, postgresql or acme-tls/1"
	}
	return "", ""
})

// checkNames holds the server names and protocols of a listener's routes against
// what it can see of them.
func checkNames(d *decoder, n *node, l *Listener) {
	routes, named := n.at("routes"), l.Protocol == "sni"
	if p := n.get("tls"); named && p != nil && !switchedOff(p.value) {
		d.fault(p.key, "tls: listener "+l.Name+" speaks sni, which passes TLS on unread: its backends have the certificates", "remove it, or write protocol: http or tcp to end TLS here; a route with listener: NAME has another listener end it")
	}
	if l.TLS != nil && len(l.TLS.ALPN) > 0 && l.Protocol == "http" {
		d.fault(keyOf(n.at("tls"), "alpn"), "tls.alpn is of tcp listeners, and listener "+l.Name+" speaks http", "remove it; http.h2 says whether HTTP/2 is offered")
	}
	for i := range l.Routes {
		r := &l.Routes[i]
		whole := &node{kind: scalar, pos: r.Pos, width: 1}
		if routes.kind == list && i < len(routes.items) {
			whole = routes.items[i]
		}
		at := whole.at("match")
		if len(r.Match.ALPN) > 0 && !named {
			d.fault(at.at("alpn"), "alpn is compared by routes of sni listeners, and listener "+l.Name+" speaks "+l.Protocol, "remove it; http.h2 says whether HTTP/2 is offered")
		}
		if len(r.Match.SNI) > 0 && !named && l.TLS == nil && n.at("tls").kind != faulty && n.lacks("tls") {
			d.fault(at.at("sni"), "sni: listener "+l.Name+" has no TLS, so its clients name no server in it", "match host instead, or add tls")
		}
		if r.StartTLS != "" && !named {
			d.fault(whole.at("starttls"), "starttls: postgres is of routes of sni listeners, and listener "+l.Name+" speaks "+l.Protocol, "remove it, or write protocol: sni")
		}
	}
}

// shadowedNames warns of routes of an sni listener whose every name an earlier
// route takes: exact names are looked at before wildcards, so only equal names count.
func (l *Listener) shadowedNames(d *decoder) {
	for i := range l.Routes {
		r := &l.Routes[i]
		for j := range i {
			e := &l.Routes[j]
			if !sameNames(e.Match.SNI, r.Match.SNI) || e.StartTLS != r.StartTLS && e.StartTLS == "" ||
				len(e.Match.ALPN) > 0 && (len(r.Match.ALPN) == 0 || !within(r.Match.ALPN, e.Match.ALPN)) {
				continue
			}
			d.warn(&node{pos: r.Pos}, "unreachable_route",
				"this route is never reached: the one in line "+itoa(e.Pos.Line)+" takes all that it would; remove it, or make the other stricter")
			break
		}
	}
}

// sameNames reports whether all names of b are among those of a; none are among
// none alone.
func sameNames(a, b []string) bool {
	return (len(a) == 0) == (len(b) == 0) && within(b, a)
}

func within(part, whole []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(whole, s) })
}

// coversNames reports whether every client that asks for a name of b asks for one
// of a; without names a has all.
func coversNames(a, b []string) bool {
	if len(a) == 0 {
		return true
	}
	return len(b) > 0 && !slices.ContainsFunc(b, func(name string) bool {
		return !slices.ContainsFunc(a, func(p string) bool { return underName(p, name) })
	})
}

// underName reports whether a pattern has all names of another one, or a name.
func underName(pattern, name string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == name
	}
	bare, _ := strings.CutPrefix(name, "*")
	return len(bare) >= len(suffix) && strings.HasSuffix(bare, suffix) && (bare != suffix || bare != name)
}

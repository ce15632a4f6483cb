// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/route"
)

var listenersField = &several[Plan, Listener]{
	s:  spec{name: "listeners", kind: "mapping from names to listeners", doc: "where clients connect", subs: specsOf(listenerFields), list: true},
	at: func(p *Plan) *[]Listener { return &p.Listeners }, what: "listener", fields: listenerFields,
	name: func(l *Listener) string { return l.Name },
	begin: func(d *decoder, key, _ *node, l *Listener) {
		l.Name, l.Pos = named(d, key)
	},
	end: endListener,
	after: func(_ *decoder, _ *node, _ *Plan, list []Listener) {
		slices.SortFunc(list, func(a, b Listener) int { return strings.Compare(a.Name, b.Name) })
	},
	ref: defaultsOf(listenerFields),
}

var listenerFields = []field[Listener]{
	key("bind", "", oneOrMore(listOf(bindCodec, nil)), func(l *Listener) *[]string { return &l.Bind },
		`addresses to listen on: ":443", "127.0.0.1:8080", "[::]:443", "unix:/run/weir-web.sock", "systemd:web"; not needed where a route of an sni listener leads here`),
	key("protocol", "http", choice([]string{"http", "tcp", "sni", "udp"}, "packet"), func(l *Listener) *string { return &l.Protocol }, "what is spoken"),
	maybe("tls", "", "present: TLS is terminated here", func(l *Listener) **ListenerTLS { return &l.TLS }, listenerTLSFields, checkListenerTLS),
	keys("http", "HTTP", func(l *Listener) *Listener { return l }, []field[Listener]{
		key("h2", "true", boolean(), func(l *Listener) *bool { return &l.H2 }, "offer HTTP/2: by ALPN with TLS, by prior knowledge without").off("false", false),
		key("max_header_bytes", "64KiB", size(1<<10, 16<<20, ""), func(l *Listener) *int64 { return &l.MaxHeaderBytes }, "largest head of a request"),
		key("max_body", "none", size(1, 1<<60, ""), func(l *Listener) *int64 { return &l.MaxBody }, "largest content of a request").off("none", 0),
		key("max_connection_age", "none", duration(time.Second, 30*day), func(l *Listener) *time.Duration { return &l.MaxAge },
			"after this time, up to a tenth earlier, a client connection ends with the next answer").off("none", 0),
		key("max_connection_age_grace", "none", duration(time.Second, 30*day), func(l *Listener) *time.Duration { return &l.MaxAgeGrace },
			"after this further time what is still under way on it is cut, and a tunnel ended").off("none", 0),
		key("max_requests", "none", count[int64](manyInt), func(l *Listener) *int64 { return &l.MaxRequests }, "requests on one client connection").off("none", 0),
	}),
	key("health_path", "none", text("path", plainPath), func(l *Listener) *string { return &l.HealthPath },
		"answered by weir itself: 200 while ready, 503 otherwise").off("none", ""),
	key("trusted_proxies", "[]", listOf(prefixes, warnEveryone), func(l *Listener) *[]netip.Prefix { return &l.TrustedProxies },
		"peers whose forwarding fields are believed"),
	proxyProtocolField,
	keys("timeouts", "of client connections", timeoutsOf, listenerTimeoutFields).checked(warnTimeouts),
	keys("limits", "ceilings of the listener", func(l *Listener) *Listener { return l }, []field[Listener]{
		key("max_connections", "none", count[int64](manyInt), func(l *Listener) *int64 { return &l.MaxConnections }, "client connections").off("none", 0),
		key("max_connections_per_client", "none", count[int64](manyInt), func(l *Listener) *int64 { return &l.MaxPerClient }, "client connections of one address").off("none", 0),
	}),
	key("debug_headers", "false", boolean(), func(l *Listener) *bool { return &l.DebugHeaders }, "X-Served-By and Server-Timing toward clients"),
	routesField,
	&catchAll{spec{name: "pool", kind: "pool's name", doc: "one route for all that no other route takes"}},
}

var listenerTimeoutFields = []field[ListenerTimeouts]{
	key("header", "10s", duration(tick, time.Hour), func(t *ListenerTimeouts) *time.Duration { return &t.Header },
		"first byte of a request until its head is complete (first request: from accept); also bounds the TLS handshake").off("none", 0),
	key("idle", "auto", duration(tick, 7*day), func(t *ListenerTimeouts) *time.Duration { return &t.Idle },
		"last byte of an answer until the next request; of sessions, without a byte either way; auto is 75s, above the 60s of most balancers in front, and 1h for sessions").off("none", 0).
		decide(idleOf),
	key("write", "30s", duration(tick, day), func(t *ListenerTimeouts) *time.Duration { return &t.Write },
		"without progress toward the client").off("none", 0),
	key("body_min_rate", "240B/s", size(1, 1<<40, "/s"), func(t *ListenerTimeouts) *int64 { return &t.BodyMinRate },
		"slowest sending of content while weir waits for it, and slowest taking of an answer").off("none", 0),
	key("body_grace", "10s", duration(tick, time.Hour), func(t *ListenerTimeouts) *time.Duration { return &t.BodyGrace },
		"before body_min_rate counts"),
	key("total", "none", duration(tick, 30*day), func(t *ListenerTimeouts) *time.Duration { return &t.Total },
		"longest life of a session").off("none", 0),
}

// warnTimeouts names every timeout of a block that is switched off.
func warnTimeouts[T any](d *decoder, n *node, _ *T) {
	for _, p := range n.pairs {
		if age := p.key.text == "total" || p.key.text == "tunnel_age"; switchedOff(p.value) && !age {
			d.warn(p.value, "timeout_off", "timeouts."+p.key.text+" is off: what hangs there hangs until someone else ends it; a long timeout is safer than none")
		}
	}
}

// catchAll is `pool:` beside bind: a route for all that no other takes.
type catchAll struct{ s spec }

func (c *catchAll) spec() *spec                           { return &c.s }
func (c *catchAll) absent(*decoder, *Listener) bool       { return false }
func (c *catchAll) settle(*Listener)                      {}
func (c *catchAll) defaults(*Listener)                    {}
func (c *catchAll) write(w *writer, l, _ *Listener) *node { return plainCatchAll(w, l) }

func (c *catchAll) read(d *decoder, n *node, l *Listener) bool {
	r := routesField.ref
	r.Pos = n.pos
	at := &node{kind: mapping, pos: n.pos, width: n.width}
	at.pairs = []pair{{&node{kind: scalar, text: "pool", pos: n.pos, width: n.width}, n}}
	readBlock(d, at, "a route", routeFields, &r)
	if r.Pool != "" {
		l.Routes = append(l.Routes, r)
	}
	return false
}

func endListener(d *decoder, key, n *node, l *Listener) {
	checkNames(d, n, l)
	if len(l.Routes) == 0 && n.lacks("pool") && (n.lacks("routes") || n.get("routes") != nil && n.at("routes").kind == list && len(n.at("routes").items) == 0) {
		d.fault(key, "listener "+l.Name+" has no route", "add pool: NAME for all requests, or routes")
	}
	checkProxyProtocol(d, n, l)
	nameRoutes(d, l)
	l.shadowed(d)
}

// nameRoutes gives every route that has none a name made from its match; names
// are labels of metrics and must not change when routes are reordered.
func nameRoutes(d *decoder, l *Listener) {
	taken := map[string]Position{}
	for i := range l.Routes {
		r := &l.Routes[i]
		if r.Name == "" {
			continue
		}
		if at, dup := taken[r.Name]; dup {
			d.fault(&node{kind: scalar, pos: r.Pos, width: 1}, "two routes of listener "+l.Name+" are called "+r.Name, "rename one; the other is in line "+itoa(at.Line))
		}
		taken[r.Name] = r.Pos
	}
	for i := range l.Routes {
		r := &l.Routes[i]
		if r.Name != "" {
			continue
		}
		base := r.Match.name()
		r.Name = base
		for n := 2; ; n++ {
			if _, dup := taken[r.Name]; !dup {
				break
			}
			r.Name = base + "-" + itoa(n)
		}
		taken[r.Name] = r.Pos
	}
}

// name makes a name from the conditions: api.example.com/v1, /static, default.
func (m *Match) name() string {
	path := m.Path
	if path == "" {
		path = strings.TrimSuffix(m.PathPrefix, "/")
	} else {
		path = "=" + path
	}
	name := m.Host + path
	if m.Host == "" && len(m.SNI) > 0 {
		name = m.SNI[0] + path
		if n := len(m.SNI) - 1; n > 0 {
			name = m.SNI[0] + "+" + itoa(n) + path
		}
	}
	if len(m.ALPN) > 0 {
		name = strings.TrimSpace(name + " " + strings.Join(m.ALPN, ","))
	}
	if len(m.Methods) > 0 {
		name = strings.TrimSpace(strings.Join(m.Methods, ",") + " " + name)
	}
	if name == "" {
		return "default"
	}
	if len(name) > 128 {
		name = name[:128]
	}
	return name
}

// shadowed warns of routes that can never match because an earlier one takes
// all that they would.
func (l *Listener) shadowed(d *decoder) {
	if l.Protocol == "sni" {
		l.shadowedNames(d)
		return
	}
	type place struct {
		host, path, prefix string
		raw                bool
	}
	earlier := map[place][]*Route{}
	for i := range l.Routes {
		r := &l.Routes[i]
		prefix := r.Match.PathPrefix
		if prefix == "/" {
			prefix = ""
		}
		p := place{r.Match.Host, r.Match.Path, prefix, r.Raw}
		for _, e := range earlier[p] {
			if e.Match.covers(&r.Match) {
				d.warn(&node{pos: r.Pos}, "unreachable_route",
					"this route is never reached: the one in line "+itoa(e.Pos.Line)+" takes all that it would; remove it, or make the other stricter")
				break
			}
		}
		if len(earlier[p]) < 64 { // enough to find mistakes, bounded for generated files
			earlier[p] = append(earlier[p], r)
		}
	}
}

// covers reports whether everything that b's methods and fields accept is
// accepted by m's.
func (m *Match) covers(b *Match) bool {
	if !coversNames(m.SNI, b.SNI) {
		return false
	}
	if len(m.Methods) > 0 {
		if len(b.Methods) == 0 {
			return false
		}
		for _, x := range b.Methods {
			if !slices.Contains(m.Methods, x) {
				return false
			}
		}
	}
	for _, h := range m.Headers {
		if !slices.ContainsFunc(b.Headers, func(o HeaderMatch) bool {
			return strings.EqualFold(o.Name, h.Name) && o.Value == h.Value
		}) {
			return false
		}
	}
	return true
}

// plainPath checks a path that weir compares in normal form.
func plainPath(s string) (what, fix string) {
	if what, fix := rawPath(s); what != "" {
		return what, fix
	}
	out, changed, err := route.NormalizePath(nil, []byte(s))
	switch {
	case err != nil:
		return quote(s) + " is never matched (" + err.Error() + ")", "write the decoded path, or use raw: true"
	case changed:
		return quote(s) + " is never matched: paths are compared in their normal form", "write " + string(out) + ", or use raw: true"
	}
	return "", ""
}

var pathPattern = regexp.MustCompile(`^/[!$-;=@-\[\]-~\\]*$`)

func rawPath(s string) (what, fix string) {
	switch {
	case s == "" || s[0] != '/':
		return quote(s) + " is not a path", "begin it with a slash: /" + strings.TrimLeft(s, "^./")
	case strings.HasSuffix(s, "/*"):
		return quote(s) + " asks for the star itself", "write path_prefix: " + max(strings.TrimSuffix(s, "/*"), "/") + " for all that is below"
	case strings.ContainsAny(s, "?#"):
		return quote(s) + " has a query or a fragment", "write the path only"
	case !pathPattern.MatchString(s):
		return quote(s) + " has characters that no request carries", "write them percent-encoded, such as %20 for a space"
	}
	return "", ""
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"time"
)

// Sessions reports that the listener passes connections, or the datagrams of
// clients, on whole, and reads no requests in them.
func (l *Listener) Sessions() bool {
	return l.Protocol == "tcp" || l.Protocol == "sni" || l.Datagrams()
}

// Datagrams reports that the listener's clients send datagrams.
func (l *Listener) Datagrams() bool { return l.Protocol == "udp" }

// Datagrams reports that the pool's backends are sent datagrams.
func (p *Pool) Datagrams() bool { return p.Scheme() == "udp" }

// Scheme is what the backends of a pool speak as far as listeners care: http, tcp or
// udp; empty when the pool lists none.
func (p *Pool) Scheme() string {
	if len(p.Backends) == 0 {
		return ""
	}
	return family(p.Backends[0].URL)
}

// family is the kind of listeners that a backend's URL is for.
func family(url string) string {
	scheme, _, _ := strings.Cut(url, "://")
	switch scheme {
	case "tcp", "tls":
		return "tcp"
	case "udp":
		return "udp"
	default:
		return "http"
	}
}

// timeoutsOf is where the timeouts of a listener are kept, which depend on what it
// speaks.
func timeoutsOf(l *Listener) *ListenerTimeouts {
	l.Timeouts.protocol = l.Protocol
	return &l.Timeouts
}

// idleOf is what auto means for timeouts.idle.
func idleOf(t *ListenerTimeouts) time.Duration {
	switch t.protocol {
	case "tcp", "sni":
		return time.Hour
	case "udp":
		return time.Minute
	default:
		return 75 * time.Second
	}
}

// What of a listener and of a route means something only where requests are
// read, and what to do instead.
var (
	onlyHTTP = map[string]string{
		"http":            "remove it",
		"health_path":     "remove it; give status.bind for a check of weir itself",
		"trusted_proxies": "remove it; proxy_protocol tells who the client is",
		"debug_headers":   "remove it",
	}
	onlyHTTPTimes  = []string{"write", "body_min_rate", "body_grace"}
	onlyHTTPRoutes = []string{"raw", "redirect", "respond", "split", "rewrite", "request_headers", "response_headers", "priority", "timeouts"}
)

// checkSessions holds a listener to what it speaks. What is written at its default
// asks for nothing.
func checkSessions(d *decoder, key, n *node, l *Listener) {
	l.Timeouts.protocol = l.Protocol
	if n.get("timeouts") == nil {
		l.Timeouts.Idle = idleOf(&l.Timeouts)
	}
	if !l.Sessions() {
		if p := n.at("timeouts").get("total"); p != nil && l.Timeouts.Total > 0 && l.Protocol == "http" {
			d.fault(p.key, "timeouts.total is the longest life of a session, and listener "+l.Name+" speaks http", "give timeouts.total of the routes, or http.max_connection_age")
		}
		return
	}
	reads := "listener " + l.Name + " speaks " + l.Protocol + " and reads no requests, so it has no "
	for _, p := range writeBlock(&writer{plan: d.plan}, listenerFields, l, &listenersField.ref).pairs {
		name := p.key.text
		if fix, ok := onlyHTTP[name]; ok {
			d.fault(keyOf(n, name), reads+name, fix)
		}
		for _, t := range p.value.pairs {
			if name == "timeouts" && slices.Contains(onlyHTTPTimes, t.key.text) {
				d.fault(keyOf(n.at(name), t.key.text), reads+"timeouts."+t.key.text, "remove it; timeouts.idle bounds silence, timeouts.total the whole session")
			}
		}
	}
	routes := n.at("routes")
	for i := range l.Routes {
		at := &node{kind: scalar, pos: l.Routes[i].Pos, width: 1}
		if routes.kind == list && i < len(routes.items) {
			at = routes.items[i]
		}
		l.Routes[i].checkSession(d, at, l)
	}
	if l.Datagrams() {
		checkDatagrams(d, n, l)
	}
	if l.Protocol != "sni" && len(l.Routes) > 1 {
		what, fix := "connection", "keep one; protocol: sni chooses by the name that TLS clients ask for"
		if l.Datagrams() {
			what, fix = "client", "keep one, and give the others listeners of their own"
		}
		d.fault(key, "listener "+l.Name+" speaks "+l.Protocol+", where nothing tells one "+what+" from another, and has "+itoa(len(l.Routes))+" routes", fix)
	}
}

// keyOf is the key in a mapping, or what stands for it.
func keyOf(n *node, name string) *node {
	if p := n.get(name); p != nil {
		return p.key
	}
	return n
}

// checkSession holds a route to what a session has.
func (r *Route) checkSession(d *decoder, n *node, l *Listener) {
	allowed := []string{"client"}
	if l.Protocol == "sni" {
		allowed = append(allowed, "sni", "alpn")
	}
	for _, p := range writeBlock(&writer{plan: d.plan}, routeFields, r, &routesField.ref).pairs {
		name := p.key.text
		if slices.Contains(onlyHTTPRoutes, name) {
			d.fault(keyOf(n, name), "a route of a "+l.Protocol+" listener has no "+name+": no requests are read", "remove it")
		}
		for _, m := range p.value.pairs {
			if name == "match" && !slices.Contains(allowed, m.key.text) {
				d.fault(keyOf(n.at(name), m.key.text), "a route of a "+l.Protocol+" listener cannot compare "+m.key.text+": no requests are read", "remove it")
			}
		}
	}
}

// checkSchemes holds the backends of pools against each other and against the
// listeners that lead to them.
func (d *decoder) checkSchemes(root *node) {
	for i := range d.plan.Pools {
		p := &d.plan.Pools[i]
		for j := range p.Backends {
			if b := &p.Backends[j]; b.URL != "" && family(b.URL) != p.Scheme() {
				d.fault(&node{kind: scalar, pos: b.Pos, width: 1}, "pool "+p.Name+" has "+p.Scheme()+" backends, and this one is for "+family(b.URL), otherScheme(p, b))
				break
			}
		}
		if p.Scheme() != "" && p.Scheme() != "http" {
			p.checkSessions(d, root.at("pools", p.Name))
		}
		if p.Datagrams() {
			p.checkDatagrams(d, root.at("pools", p.Name))
		} else if p.Scheme() != "" && !p.Active.Off && p.Active.Protocol == "udp" {
			d.fault(root.at("pools", p.Name, "health", "active", "protocol"), "pool "+p.Name+" has "+p.Scheme()+" backends, which are not asked over UDP", "remove protocol")
		}
	}
	listeners := root.at("listeners")
	for i := range d.plan.Listeners {
		l := &d.plan.Listeners[i]
		checkSessions(d, keyOf(listeners, l.Name), listeners.at(l.Name), l)
		for j := range l.Routes {
			p := d.plan.Pool(l.Routes[j].Pool)
			if p == nil || p.Scheme() == "" {
				continue
			}
			want := l.Protocol
			if want == "sni" {
				want = "tcp"
			}
			l.Routes[j].checkAsked(d, p)
			if got := p.Scheme(); got != want {
				d.fault(&node{kind: scalar, pos: l.Routes[j].Pos, width: 1}, "listener "+l.Name+" speaks "+l.Protocol+", and pool "+p.Name+" has "+got+" backends",
					"write "+inWords(l.Protocol, &p.Backends[0])+" in a pool of its own, or protocol: "+got)
			}
		}
	}
}

// inWords is a backend's URL for listeners of a protocol: TLS stays TLS, but where
// the client's own passes.
func inWords(protocol string, b *Backend) string {
	scheme := protocol
	switch {
	case b.TLS && protocol == "http":
		scheme = "https"
	case b.TLS && protocol == "tcp":
		scheme = "tls"
	case protocol == "sni":
		scheme = "tcp"
	}
	return scheme + "://" + b.Address
}

// otherScheme says what to do with a backend that is not for what its pool is for.
func otherScheme(p *Pool, b *Backend) string {
	if strings.HasPrefix(b.URL, "tls:") && p.Scheme() == "http" {
		return "write " + inWords("http", b) + ": tls:// is for listeners of protocol tcp or sni"
	}
	return "put it in a pool of its own"
}

// checkAsked: a backend that is asked for TLS in clear, in the place of its client,
// cannot have it before.
func (r *Route) checkAsked(d *decoder, p *Pool) {
	for i := range p.Backends {
		if b := &p.Backends[i]; r.StartTLS != "" && strings.HasPrefix(b.URL, "tls:") {
			d.fault(&node{kind: scalar, pos: r.Pos, width: 1}, "starttls: "+r.StartTLS+" passes on TLS that the client asks for in clear, and backend "+b.ID+" of pool "+p.Name+" begins with TLS",
				"write tcp://"+b.Address+", or listener in the place of pool to end the client's TLS here")
			return
		}
	}
}

// checkDatagrams refuses of a udp listener what only connections have.
func checkDatagrams(d *decoder, n *node, l *Listener) {
	for i, bind := range l.Bind {
		if strings.HasPrefix(bind, "unix:") {
			at := n.at("bind")
			if at.kind == list && i < len(at.items) {
				at = at.items[i]
			}
			d.fault(at, "listener "+l.Name+" speaks udp, and a unix socket has no datagrams of clients", `write an address, such as ":53"`)
		}
	}
	if p := n.get("tls"); p != nil && !switchedOff(p.value) {
		d.fault(p.key, "tls: listener "+l.Name+" speaks udp, which is passed on unread: backends of QUIC and DTLS have the certificates", "remove it")
	}
	if l.ProxyProtocol.On() {
		d.fault(keyOf(n, "proxy_protocol"), "proxy_protocol: listener "+l.Name+" speaks udp, and a header would be needed in each datagram", "remove it")
	}
}

// checkDatagrams settles what is different for backends that are sent datagrams: they
// are probed by what send says, over UDP; without it nothing says what they answer, so
// they are probed only where it is said how.
func (p *Pool) checkDatagrams(d *decoder, n *node) {
	active := n.at("health", "active")
	if a := &p.Active; !a.Off && a.Protocol == "tcp" && (active.get("protocol") == nil || active.at("protocol").text == "auto") {
		switch {
		case a.Send != "":
			if a.Protocol = "udp"; a.TLS == "on" {
				d.fault(active.at("tls"), "a udp check has no TLS", "remove tls")
			}
		case a.Port != 0:
		case a.Body != "":
			d.fault(active.at("body"), "nobody answers over UDP what was not asked", "add send, what is asked")
		default:
			a.Off = true
		}
	}
	if p.SendProxyProtocol != "" {
		d.fault(keyOf(n, "send_proxy_protocol"), "send_proxy_protocol: pool "+p.Name+" has udp backends, and a header would be needed in each datagram", "remove it")
	}
}

// checkSessions refuses of a pool what only requests have.
func (p *Pool) checkSessions(d *decoder, n *node) {
	if p.Keyed() {
		for _, k := range p.Hash.Key {
			if k.From != "client_ip" {
				d.fault(n.at("hash", "key"), "sessions have no "+k.From+" to be placed by", "write key: client_ip")
				break
			}
		}
	}
	if s := n.get("sticky"); s != nil && !switchedOff(s.value) {
		d.fault(s.key, "sticky keeps requests on a backend by a cookie, and sessions have none", "remove it; balance: maglev with hash: {key: client_ip} keeps a client on a backend")
	}
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strings"
)

// ProxyProtocol says who may tell a listener by a PROXY header for whom it
// connects.
type ProxyProtocol struct {
	Mode string         // off, optional or required
	From []netip.Prefix // peers whose header is read; those of unix sockets always are
}

// On reports that headers are read.
func (p *ProxyProtocol) On() bool { return p.Mode != "off" }

var proxyProtocolFields = []field[ProxyProtocol]{
	key("mode", "off", choice([]string{"off", "optional", "required"}), func(p *ProxyProtocol) *string { return &p.Mode },
		"whether peers of from begin a connection with it: required closes those who do not, optional serves them as they are. Other peers are served as they are, and closed when they send one").off("off", "off"),
	key("from", "[]", listOf(prefixes, warnEveryone), func(p *ProxyProtocol) *[]netip.Prefix { return &p.From },
		"peers whose header is read, in version 1 or 2; its source is the client from then on. Whoever connects to a unix socket is one of them"),
}

// proxyProtocolField is a listener's proxy_protocol.
var proxyProtocolField = keys("proxy_protocol", "the PROXY header", func(l *Listener) *ProxyProtocol { return &l.ProxyProtocol }, proxyProtocolFields).
	offMeans(func(p *ProxyProtocol) { p.Mode = "off" })

// checkProxyProtocol checks what lies across a listener's keys.
func checkProxyProtocol(d *decoder, n *node, l *Listener) {
	at := n.at("proxy_protocol")
	switch p := &l.ProxyProtocol; {
	case !p.On() && len(p.From) > 0 && at.get("mode") == nil:
		d.fault(at, "proxy_protocol has no mode, so no PROXY header is read", "add mode: required, or optional where some of from send none")
	case p.On() && len(p.From) == 0 && at.lacks("from") && !slices.ContainsFunc(l.Bind, func(b string) bool { return strings.HasPrefix(b, "unix:") }):
		d.fault(at, "nobody may send a PROXY header", "list the balancers that send one, such as from: [10.0.0.0/24]")
	}
}

// checkSendProxy: a connection that many clients' requests share cannot begin with
// the name of one.
func checkSendProxy(d *decoder, n *node, p *Pool) {
	if p.SendProxyProtocol == "" {
		return
	}
	const fix = "remove send_proxy_protocol, or speak HTTP/1.1 to them: http:// or https:// without upstream.h2"
	if p.Upstream.H2 {
		d.fault(n.at("send_proxy_protocol"), "send_proxy_protocol and upstream.h2 do not go together: connections of HTTP/2 are shared between clients", fix)
	}
	for i := range p.Backends {
		switch scheme, _, _ := strings.Cut(p.Backends[i].URL, "://"); scheme {
		case "h2c", "grpc", "grpcs":
			d.fault(n.at("send_proxy_protocol"), "send_proxy_protocol and "+scheme+" backends do not go together: connections of HTTP/2 are shared between clients", fix)
			return
		}
	}
}

// sendProxyField is a pool's send_proxy_protocol.
var sendProxyField = key("send_proxy_protocol", "off", choice([]string{"v1", "v2"}), func(p *Pool) *string { return &p.SendProxyProtocol },
	"the PROXY header that a connection to a backend begins with, which names the client. Connections are then of one client each, and probes say LOCAL or their own address").off("off", "")

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"net/netip"
	"strings"
)

var backendsField = &several[Pool, Backend]{
	s:  spec{name: "backends", kind: "list", doc: "URLs, or mappings with these keys", subs: specsOf(backendFields), list: true},
	at: func(p *Pool) *[]Backend { return &p.Backends }, what: "backend", fields: backendFields,
	begin: func(_ *decoder, _, n *node, b *Backend) { b.Pos = n.pos },
	short: func(d *decoder, n *node, b *Backend) bool {
		v, ok := urlCodec.scan(d, n, &spec{name: "url"})
		b.URL = v
		b.finish()
		return ok
	},
	brief: func(w *writer, b *Backend) *node {
		plain := Backend{URL: b.URL, Weight: 1}
		plain.finish()
		plain.Pos = b.Pos
		if *b != plain {
			return nil
		}
		return textNode(b.URL)
	},
	end: func(d *decoder, _, n *node, b *Backend) {
		if b.URL == "" && n.kind == mapping && n.lacks("url") {
			d.fault(n, "a backend has no url", "add url, such as url: http://10.0.1.21:8080")
		}
		b.finish()
	},
	ref: defaultsOf(backendFields),
}

var backendFields = []field[Backend]{
	key("url", "", urlCodec, func(b *Backend) *string { return &b.URL }, "http://HOST:PORT or https://HOST:PORT; h2c:// or grpc:// for HTTP/2 in clear text, grpcs:// for HTTP/2 over TLS; tcp://HOST:PORT for tcp and sni listeners, tls://HOST:PORT for TLS to their backends, udp://HOST:PORT for udp listeners"),
	key("weight", "1", integer[uint32](0, 1000), func(b *Backend) *uint32 { return &b.Weight }, "share of the work; 0 takes no new work"),
	key("zone", "none", text("zone", goodName), func(b *Backend) *string { return &b.Zone }, "where it is").off("none", ""),
	key("id", "auto", text("id", goodID), func(b *Backend) *string { return &b.ID }, "name within the pool; auto is host:port").
		decide(func(b *Backend) string { return addressOf(b.URL) }),
	key("backup", "false", boolean(), func(b *Backend) *bool { return &b.Backup }, "used only as the others lose health: the last tier"),
	key("priority", "0", integer[uint8](0, 9), func(b *Backend) *uint8 { return &b.Priority }, "tier; the next one takes work as those before it lose health (overprovisioning)"),
}

// finish derives what follows from the URL.
func (b *Backend) finish() {
	b.Address = addressOf(b.URL)
	scheme, _, _ := strings.Cut(b.URL, "://")
	b.TLS = Secure(scheme)
	if b.ID == "" {
		b.ID = b.Address
	}
}

// Secure reports that backends of a scheme are spoken to in TLS.
func Secure(scheme string) bool { return scheme == "https" || scheme == "grpcs" || scheme == "tls" }

func addressOf(url string) string {
	_, address, _ := strings.Cut(url, "://")
	return address
}

func goodID(s string) (what, fix string) {
	if len(s) > 255 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:[]") != "" {
		return quote(s) + " is not an id", "use letters, digits and . _ - : [ ]"
	}
	return "", ""
}

// urlCodec reads a backend's URL into its canonical form, with the port.
var urlCodec codec[string] = simple[string]{name: "URL", parse: parseURL, format: func(s string) string { return s }}

func parseURL(s string) (out, what, fix string) {
	switch {
	case strings.Contains(s, " - "):
		return "", quote(s) + " is read as one value", "begin each backend with a dash of its own, all dashes below each other"
	case strings.ContainsAny(s, " \t") && optionPattern.MatchString(s):
		return "", quote(s) + " is read as one URL", optionsFix(s)
	case strings.ContainsAny(s, " \t,;"):
		return "", quote(s) + " has a space, a comma or a semicolon in it", "write one URL behind each dash"
	case strings.HasPrefix(s, "unix:"):
		return "", quote(s) + ": backends on unix sockets are not built in this version", "write http://HOST:PORT"
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if before, after, slip := strings.Cut(s, ":/"); !ok && slip && (before == "http" || before == "https") {
		return "", quote(s) + " lacks a slash", "write " + before + "://" + after
	}
	if !ok {
		return "", quote(s) + " has no scheme", "write http://" + strings.TrimLeft(s, "/") + " or https://..., and tcp://, tls:// or udp:// for listeners of protocol tcp, sni or udp"
	}
	port := "80"
	switch scheme = strings.ToLower(scheme); scheme {
	case "http", "h2c", "grpc":
	case "https", "grpcs":
		port = "443"
	case "tcp", "tls", "udp":
		port = ""
	case "ws", "wss":
		return "", quote(scheme) + " is not a scheme of backends", "write http" + scheme[2:] + "://" + rest + ": WebSockets need nothing else"
	case "h2", "http2":
		return "", quote(scheme) + " is not a scheme of backends", "write h2c:// for HTTP/2 without TLS, grpc:// or grpcs:// for gRPC, or https:// with upstream: {h2: on}"
	default:
		return "", quote(scheme) + " is not a scheme of backends", useOne(scheme, []string{"http", "https", "h2c", "grpc", "grpcs", "tcp", "tls", "udp"})
	}
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
		if rest[i:] != "/" {
			return "", quote(s) + " has a path", "write " + scheme + "://" + authority + " only; use a route's rewrite to change paths"
		}
	}
	if strings.Contains(authority, "@") {
		_, after, _ := strings.Cut(authority, "@")
		return "", "the URL of backend " + after + " has a user name", "write " + scheme + "://" + after + "; use request_headers.set for credentials"
	}
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		host, port = authority[:i], authority[i+1:]
		if what, fix := portNumber(port, false); what != "" {
			return "", what, fix
		}
	}
	host = strings.ToLower(host)
	if host == "" {
		return "", quote(s) + " has no host", "write " + scheme + "://10.0.1.21:" + cmp.Or(port, "5432")
	}
	if port == "" {
		return "", quote(s) + " has no port", "write " + scheme + "://" + host + ":PORT; " + scheme + " has no port of its own"
	}
	if what, fix := hostPort(host+":"+port, false); what != "" {
		return "", what, fix
	}
	if host[0] == '[' {
		a, _ := netip.ParseAddr(strings.Trim(host, "[]")) // checked by hostPort
		host = "[" + a.String() + "]"
	}
	return scheme + "://" + host + ":" + port, "", ""
}

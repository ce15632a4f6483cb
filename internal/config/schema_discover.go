// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Discover says where backends are found beside those that are listed. Exactly
// one of DNS and File is set.
type Discover struct {
	DNS  *DNS
	File string // a list of backends, watched
}

// DNS asks name servers for backends.
type DNS struct {
	Name    string
	Port    int           // of addresses; 0 with services, which bring theirs
	Type    string        // a, aaaa, srv or auto (both kinds of address); never auto for a service's name
	Scheme  string        // http or https
	Servers []string      // host:port; empty: the system's
	Timeout time.Duration // of one attempt at one server
}

var discoverField = maybe("discover", "off", "backends that are found while weir runs, beside those listed or instead of them",
	func(p *Pool) **Discover { return &p.Discover }, discoverFields, checkDiscover)

var discoverFields = []field[Discover]{
	maybe("dns", "none", "name servers are asked, again when the answer's time to live is over (1s to 5m); the last good answer is kept", func(x *Discover) **DNS { return &x.DNS }, dnsFields, checkDNS),
	key("file", "none", file(), func(x *Discover) *string { return &x.File },
		"YAML or JSON file with a list of backends as under backends, looked at every second; replace it by renaming another one over it").off("none", ""),
}

var dnsFields = []field[DNS]{
	key("name", "", text("name", dnsName), func(x *DNS) *string { return &x.Name },
		"asked for; _http._tcp.example.com asks for a service; with a dot at its end the search list stays out"),
	key("port", "none", integer(1, 65535), func(x *DNS) *int { return &x.Port }, "of each address found; a service (srv) brings its own").off("none", 0),
	key("type", "auto", choice([]string{"auto", "a", "aaaa", "srv"}), func(x *DNS) *string { return &x.Type }, "auto is srv for names that begin with _, else a and aaaa"),
	key("scheme", "http", choice([]string{"http", "https"}), func(x *DNS) *string { return &x.Scheme }, "how the backends are spoken to; https needs tls.server_name"),
	key("server", "auto", oneOrMore(listOf(text("address", serverAddress), nil)), func(x *DNS) *[]string { return &x.Servers },
		"name servers, in order, instead of those of /etc/resolv.conf; its search list and /etc/hosts then do not count").word("auto", nil),
	key("timeout", "2s", duration(10*tick, 10*time.Second), func(x *DNS) *time.Duration { return &x.Timeout }, "of one attempt at one server"),
}

// Service reports whether a service is asked for rather than addresses.
func (x *DNS) Service() bool {
	return x.Type == "srv" || x.Type == "auto" && strings.HasPrefix(x.Name, "_")
}

func dnsName(s string) (what, fix string) {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		host, _, _ := strings.Cut(rest, ":")
		return quote(s) + " is a URL", "write the name only, such as " + strings.Trim(host, "/")
	}
	if host, port, ok := strings.Cut(s, ":"); ok && digits(port) {
		return quote(s) + " has a port", "write name: " + host + " and port: " + port
	}
	if looksNumeric(s) {
		return quote(s) + " is an address, which there is nothing to ask about", "list it under backends"
	}
	if _, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return quote(s) + " is an address, which there is nothing to ask about", "list it under backends"
	}
	return hostName(s)
}

// serverAddress checks an address with or without a port.
func serverAddress(s string) (what, fix string) {
	if _, err := netip.ParseAddr(s); err == nil {
		return "", ""
	}
	if a, err := netip.ParseAddrPort(s); err == nil && a.Port() > 0 {
		return "", ""
	}
	return quote(s) + " is not the address of a name server", "write an IP address, such as 10.0.0.2, or with a port 10.0.0.2:5353 or [fd00::2]:53"
}

// withPort adds the port of name servers where there is none.
func withPort(server string) string {
	if a, err := netip.ParseAddr(server); err == nil {
		return netip.AddrPortFrom(a, 53).String()
	}
	return server
}

func checkDiscover(d *decoder, n *node, x *Discover) {
	switch {
	case x.DNS != nil && x.File != "":
		d.fault(n.at("file"), "discover has both dns and file", "keep one; make another pool for the other")
	case x.DNS == nil && x.File == "" && saysNothing(n, "dns") && saysNothing(n, "file"):
		d.fault(n, "discover says neither dns nor file", "write dns: {name: app.example.com, port: 8080} or file: backends.yaml, or remove discover")
	}
}

// saysNothing reports whether a key is absent or switched off.
func saysNothing(n *node, key string) bool {
	p := n.get(key)
	return p == nil || switchedOff(p.value)
}

func checkDNS(d *decoder, n *node, x *DNS) {
	for i, s := range x.Servers {
		x.Servers[i] = withPort(s)
	}
	name := n.get("name")
	switch {
	case name == nil:
		d.fault(n, "dns has no name", "add name: app.example.com")
		return
	case x.Name == "":
		return // reported
	}
	port := n.get("port")
	switch {
	case x.Service() && x.Port != 0:
		d.fault(port.value, "a service brings the port of each backend", "remove port, or ask for addresses with type: a")
	case !x.Service() && x.Port == 0 && (port == nil || port.value.kind == scalar && switchedOff(port.value)):
		d.fault(n, "dns says no port, and addresses have none", "add port: 8080")
	}
}

// endDiscover checks what lies between discover and the rest of a pool.
func endDiscover(d *decoder, n *node, p *Pool) {
	if x := p.Discover.DNS; x != nil && x.Scheme == "https" && p.TLS.ServerName == "" && !p.TLS.InsecureSkipVerify {
		d.fault(n.at("discover", "dns", "scheme"), "the certificates of backends that are found by address have no name to be verified against",
			"add tls: {server_name: "+strings.TrimSuffix(serviceHost(x.Name), ".")+"} to pool "+p.Name)
	}
}

// serviceHost is the host in the name of a service.
func serviceHost(name string) string {
	for strings.HasPrefix(name, "_") {
		_, rest, ok := strings.Cut(name, ".")
		if !ok {
			return strings.Trim(name, "_")
		}
		name = rest
	}
	return name
}

// String says where backends are found, in a few words.
func (x *Discover) String() string {
	switch {
	case x == nil:
		return ""
	case x.DNS == nil:
		return "file " + x.File
	case x.DNS.Service():
		return "dns srv " + x.DNS.Name
	default:
		kind := x.DNS.Type
		if kind == "auto" {
			kind = "a+aaaa"
		}
		return "dns " + kind + " " + x.DNS.Name + " port " + strconv.Itoa(x.DNS.Port)
	}
}

// ParseBackends turns the text of a file of backends into those. It is a list as
// under a pool's backends, or a mapping with one under that key, in YAML or JSON;
// an empty list is no fault. name stands for the text in messages. The error is
// an *Errors with every fault, as for a configuration; the environment is not
// consulted.
func ParseBackends(name string, text []byte) ([]Backend, error) {
	if len(text) > maxText {
		return nil, &Errors{Faults: []Fault{{
			Pos: Position{File: name, Line: 1, Col: 1}, Len: 1,
			What: "the text is larger than " + showBytes(maxText), Fix: "check that this is a list of backends",
		}}}
	}
	body := strings.TrimPrefix(string(text), "\ufeff")
	if s := strings.TrimLeft(body, " \t\r\n"); strings.Contains(body, "\t") && (strings.HasPrefix(s, "[") || strings.HasPrefix(s, "{")) {
		// JSON may be indented with tabs, which YAML does not allow.
		var b bytes.Buffer
		if json.Indent(&b, []byte(s), "", " ") == nil {
			body = b.String()
		}
	}
	f := &faults{src: newSource(name, body)}
	b := &builder{faults: f, env: func(string) (string, bool) { return "", false }}
	root := b.parse(body)
	if len(f.list) > 0 {
		return nil, f.err()
	}
	var p Pool
	d := &decoder{faults: f, plan: &Plan{}, known: specsOf(fileFields)}
	if root.kind == mapping {
		readBlock(d, root, "the file", fileFields, &p)
	} else {
		backendsField.read(d, root, &p)
	}
	items := root.items
	if given := root.get("backends"); given != nil {
		items = given.value.items
	} else if root.kind == mapping && len(f.list) == 0 {
		d.fault(root, "the file has no backends", "write a list of URLs, or backends: [...]")
	}
	if len(items) == len(p.Backends) && len(items) > 0 {
		checkBackends(d, &p, items)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return p.Backends, nil
}

var fileFields = []field[Pool]{backendsField}

// checkBackends refuses ids that are there twice, and lists in which nobody takes
// work. items are the nodes of the backends.
func checkBackends(d *decoder, p *Pool, items []*node) {
	ids := map[string]*node{}
	weight := uint64(0)
	for i := range p.Backends {
		b, at := &p.Backends[i], items[i]
		weight += uint64(b.Weight)
		if first := ids[b.ID]; first != nil {
			d.fault(at.at("id"), "two backends are called "+quote(b.ID), "give one another id, or remove it; the first is in line "+itoa(first.pos.Line))
		}
		ids[b.ID] = at
	}
	if weight == 0 {
		d.fault(items[0], "every backend has weight 0, so nothing takes work", "give at least one a weight")
	}
}

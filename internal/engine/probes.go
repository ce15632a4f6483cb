// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/probe"
)

// sharedKey is the same for checks that ask the same of the same address, in
// whatever pool.
func sharedKey(cfg *config.Pool, p *probe.Target) string {
	a := cfg.Active
	key := fmt.Sprintf("%s %t %s %s", p.Address, p.OnTrafficPort, a.Protocol, a.Timeout)
	switch {
	case p.HTTP != nil:
		key += fmt.Sprintf(" h2=%t %s %s %s %v %q %t %t", p.HTTP.H2, p.HTTP.Method, p.HTTP.Path, p.HTTP.Host, p.HTTP.Expect, a.Body, p.HTTP.Overload, p.HTTP.LoadReports)
	case p.Talk != nil:
		key += fmt.Sprintf(" %q %q", p.Talk.Send, a.Body)
	case p.GRPC != nil:
		key += fmt.Sprintf(" %s %s %t", p.GRPC.Host, p.GRPC.Service, p.GRPC.LoadReports)
	}
	if p.Proxy != 0 {
		key += fmt.Sprintf(" proxy v%d", p.Proxy)
	}
	if p.TLS != nil {
		key += fmt.Sprintf(" %q %q %+v", p.TLS.ServerName, p.TLS.NextProtos, cfg.TLS)
	}
	return key
}

// probeTarget says where and how a backend is asked: like the traffic, unless
// the configuration says otherwise (S1).
func probeTarget(cfg *config.Pool, address string, secure *tls.Config) probe.Target {
	a := &cfg.Active
	out := probe.Target{Pool: cfg.Name, Address: address, OnTrafficPort: true, TLS: secure}
	host, port, err := net.SplitHostPort(address)
	if err == nil && a.Port != 0 && strconv.Itoa(a.Port) != port {
		out.Address = net.JoinHostPort(host, strconv.Itoa(a.Port))
		out.OnTrafficPort = false
	}
	if out.OnTrafficPort {
		out.Proxy = proxyVersion(cfg) // who listens on another port expects none
	}
	if addr, err := netip.ParseAddrPort(out.Address); err == nil {
		out.Addr = addr
	}
	switch a.Protocol {
	case "http":
	case "grpc":
		out.GRPC = &probe.GRPC{Service: a.Service, Host: a.Host, LoadReports: wantsLoad(&cfg.Overload)}
		if out.GRPC.Host == "" {
			out.GRPC.Host = hostField(out.Address, out.TLS != nil)
		}
		if out.TLS != nil {
			out.TLS.NextProtos = []string{"h2"} // its own copy, see setProbe
		}
		return out
	case "udp":
		out.Talk = &probe.Talk{Datagrams: true, Want: contentMatch(a.Body)}
		if out.Talk.Want != nil {
			out.Talk.Want.Bytes = true
		}
		out.Talk.Send, _ = config.SendText(a.Send)
		return out
	default:
		if a.Send != "" || a.Body != "" {
			out.Talk = &probe.Talk{Want: contentMatch(a.Body)}
			out.Talk.Send, _ = config.SendText(a.Send) // config has looked at it
		}
		return out
	}
	out.HTTP = &probe.HTTP{Method: a.Method, Path: a.Path, Host: a.Host, Overload: !cfg.Overload.Off, LoadReports: wantsLoad(&cfg.Overload)}
	if out.HTTP.Host == "" {
		out.HTTP.Host = hostField(out.Address, out.TLS != nil)
	}
	out.HTTP.Body = contentMatch(a.Body)
	for _, r := range a.Expect {
		out.HTTP.Expect = append(out.HTTP.Expect, probe.Range(r))
	}
	return out
}

// contentMatch is what an answer must contain; nil: anything.
func contentMatch(body string) *probe.Match {
	if pattern, ok := config.BodyPattern(body); ok {
		return &probe.Match{Pattern: regexp.MustCompile(pattern)} // config has compiled it before
	}
	if body == "" {
		return nil
	}
	return &probe.Match{Text: body}
}

// asTraffic has an HTTP check made in what the traffic is spoken in (S1). Behind another
// port there may be another server, which speaks HTTP/1.1 as most do; under TLS that is
// agreed on. A check that speaks no HTTP offers none to backends of sessions.
func asTraffic(p *probe.Target, scheme string, offered bool) {
	if p.HTTP == nil {
		if p.TLS != nil && p.GRPC == nil && ofSessions(scheme) {
			p.TLS.NextProtos = nil // its own copy, see setProbe
		}
		return
	}
	only := speaksHTTP2(scheme)
	p.HTTP.H2 = only && p.OnTrafficPort
	if p.TLS != nil && (only || offered && !ofSessions(scheme)) {
		p.TLS.NextProtos = []string{"h2", "http/1.1"} // its own copy, see setProbe
	}
}

// proxyVersion is the version of the PROXY header that a pool's connections begin
// with; 0: none.
func proxyVersion(cfg *config.Pool) int {
	switch cfg.SendProxyProtocol {
	case "v1":
		return 1
	case "v2":
		return 2
	}
	return 0
}

// hostField is the Host that belongs to an address: the port is left out where
// it is the scheme's own (RFC 9110 section 7.2).
func hostField(address string, https bool) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if https && port == "443" || !https && port == "80" {
		if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
			return "[" + host + "]"
		}
		return host
	}
	return address
}

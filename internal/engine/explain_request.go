// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/admin"
)

// asked is a URL in pieces, as the client would send it: nothing is decoded.
type asked struct {
	scheme    string // one of schemes, or empty
	authority string // empty: the URL is a path
	target    string // path and query
}

// schemes are those of what can be explained.
var schemes = []string{"http", "https", "tcp", "udp"}

// splitURL takes a URL apart. net/url would normalise what is to be explained.
func splitURL(s string) (asked, error) {
	var u asked
	rest := s
	if scheme, after, ok := strings.Cut(s, "://"); ok && !strings.ContainsAny(scheme, "/?#") {
		u.scheme = strings.ToLower(scheme)
		if !slices.Contains(schemes, u.scheme) {
			return u, unclear("URL %q: the scheme is one of %s", s, strings.Join(schemes, ", "))
		}
		end := strings.IndexAny(after, "/?#")
		if end < 0 {
			end = len(after)
		}
		u.authority, rest = after[:end], after[end:]
		if i := strings.LastIndexByte(u.authority, '@'); i >= 0 {
			return u, unclear("URL %q holds a user name, which is no part of a request", s)
		}
		if u.authority == "" {
			return u, unclear("URL %q names no host", s)
		}
	} else if s == "" || s[0] != '/' && s != "*" {
		return u, unclear("URL %q: give http://host/path, or a path that starts with a slash", s)
	}
	rest, _, _ = strings.Cut(rest, "#")
	if u.target = rest; rest == "" || rest[0] == '?' {
		u.target = "/" + rest
	}
	return u, nil
}

// serverName is what a client asks for in TLS that opens a URL, unless it was said.
// Addresses are not asked for.
func serverName(said, authority string) string {
	if said == "none" {
		return ""
	}
	host := said
	if said == "" {
		if host = authority; strings.Contains(host, ":") {
			host, _, _ = net.SplitHostPort(authority)
		}
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// choose finds the listener: the one that is named, else the one that the URL's
// port leads to, else the only one of the URL's scheme, else the only one.
// assumed says in words that the last but one or the last is so.
func (x *explainer) choose(name string, u *asked) (d *door, assumed string, err error) {
	var names, byScheme []string
	var byPort, only, other *door
	_, port, noPort := net.SplitHostPort(u.authority)
	if noPort != nil {
		port = map[string]string{"http": "80", "https": "443"}[u.scheme]
	} else {
		who := "no listener"
		if u.scheme != "" {
			who += " that takes " + u.scheme + "://"
		}
		assumed = who + " is on port " + port + "; this is the only one"
	}
	for i := range x.doors {
		d := &x.doors[i]
		names = append(names, d.cfg.Name)
		if d.cfg.Name == name {
			return d, "", nil
		}
		if len(d.bound) == 0 {
			continue // nobody connects there
		}
		takes, there := u.scheme == "" || d.takes(u.scheme), d.on(port)
		if takes {
			byScheme, only = append(byScheme, d.cfg.Name), d
		}
		switch {
		case there && takes && byPort == nil:
			byPort = d
		case there && !takes:
			other = d
		}
	}
	switch {
	case name != "":
		return nil, "", unclear("there is no listener %q; there is %s", name, strings.Join(names, ", "))
	case byPort != nil:
		return byPort, "", nil
	case len(byScheme) == 1:
		return only, assumed, nil
	case len(x.doors) == 1:
		return &x.doors[0], assumed, nil
	case other != nil:
		return nil, "", unclear("listener %s, which is on that port, is asked about by %s://HOST:PORT", other.cfg.Name, other.scheme())
	case u.scheme == "":
		return nil, "", unclear("name the listener (--listener), as a path alone says no port: there is %s", strings.Join(names, ", "))
	default:
		return nil, "", unclear("name the listener (--listener), as none is on that port: there is %s", strings.Join(names, ", "))
	}
}

// on reports whether clients connect to the listener at a port.
func (d *door) on(port string) bool {
	return slices.ContainsFunc(d.bound, func(b string) bool {
		_, p, err := net.SplitHostPort(b)
		return err == nil && p == port
	})
}

// scheme is what a URL of the listener's begins with.
func (d *door) scheme() string {
	switch {
	case d.cfg.Protocol == "tcp" || d.cfg.Protocol == "udp":
		return d.cfg.Protocol
	case d.cfg.TLS != nil || d.cfg.Protocol == "sni":
		return "https"
	}
	return "http"
}

// takes reports whether clients that would say the scheme are for the listener.
// tcp is anything that is passed on whole.
func (d *door) takes(scheme string) bool {
	switch scheme {
	case "tcp":
		return d.cfg.Sessions() && !d.cfg.Datagrams()
	case "udp":
		return d.cfg.Protocol == "udp"
	}
	if d.cfg.Protocol == "tcp" || d.cfg.Protocol == "udp" {
		return false
	}
	return (d.cfg.TLS != nil || d.cfg.Protocol == "sni") == (scheme == "https")
}

// wire writes the head of the request as its client would.
func wire(q *admin.Question, u *asked) ([]byte, error) {
	lines := []string{q.Method + " " + u.target + " HTTP/1.1"}
	host := false
	for _, h := range q.Headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || name == "" {
			return nil, unclear("header %q is not \"Name: value\"", h)
		}
		host = host || strings.EqualFold(name, "Host")
		lines = append(lines, name+": "+strings.TrimSpace(value))
	}
	if !host {
		authority := u.authority
		if authority == "" {
			authority = "localhost"
		}
		lines = append(lines[:1], append([]string{"Host: " + authority}, lines[1:]...)...)
	}
	for _, l := range lines {
		if strings.ContainsAny(l, "\r\n") {
			return nil, unclear("a line break in %q would make two lines of it", l)
		}
	}
	return []byte(strings.Join(lines, "\r\n") + "\r\n\r\n"), nil
}

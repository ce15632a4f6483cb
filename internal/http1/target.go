// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"net/netip"

	"github.com/weirlb/weir/internal/message"
)

var (
	slash    = []byte("/")
	asterisk = []byte("*")
)

// parseTarget splits the request-target by the four forms of RFC 9112 section
// 3.2. In authority-form (CONNECT) Path stays nil.
func parseTarget(r *message.Request) *Error {
	t := r.Target
	if string(r.Method) == "CONNECT" {
		if e := authorityFault(t, true); e != nil {
			return e
		}
		r.Authority = t
		return nil
	}
	switch {
	case t[0] == '/':
		r.Path = t
		if q := bytes.IndexByte(t, '?'); q >= 0 {
			r.Path, r.Query = t[:q:q], t[q+1:]
		}
		return nil
	case len(t) == 1 && t[0] == '*':
		if string(r.Method) != "OPTIONS" {
			return errTargetForm
		}
		r.Path = t
		return nil
	}
	return parseAbsolute(r, t)
}

// parseAbsolute reads an absolute-form target of scheme http or https.
func parseAbsolute(r *message.Request, t []byte) *Error {
	scheme, rest, ok := bytes.Cut(t, []byte("://"))
	if !ok || !foldEqual(scheme, "http") && !foldEqual(scheme, "https") {
		return errTargetForm
	}
	end := bytes.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	if e := authorityFault(rest[:end], false); e != nil {
		return e
	}
	r.Authority = rest[:end:end]
	rest = rest[end:]
	r.Path = rest
	if q := bytes.IndexByte(rest, '?'); q >= 0 {
		r.Path, r.Query = rest[:q:q], rest[q+1:]
	}
	if len(r.Path) == 0 {
		r.Path = slash
		if r.Query == nil && string(r.Method) == "OPTIONS" {
			r.Path = asterisk // RFC 9112 section 3.2.4
		}
	}
	return nil
}

// authorityFault checks host [":" port]: a name of unreserved characters, an
// IPv4 address, or an IPv6 address in brackets; a port of 1 to 65535. What
// RFC 3986 allows beyond that (escapes, sub-delimiters, an empty host or port,
// zones) names no host that exists, and parsers differ about it.
func authorityFault(b []byte, needPort bool) *Error {
	if len(b) > 0 && b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < 0 || !isIPv6(b[1:end]) {
			return errAuthority
		}
		return portFault(b[end+1:], needPort)
	}
	i := 0
	for i < len(b) && class[b[i]]&hostChar != 0 {
		i++
	}
	if i < len(b) && b[i] != ':' || i > 255 {
		if bytes.IndexByte(b, '@') >= 0 {
			return errUserinfo
		}
		return errAuthority
	}
	if i == 0 {
		return errAuthority
	}
	return portFault(b[i:], needPort)
}

// isIPv6 is called for literals only; it may allocate.
func isIPv6(b []byte) bool {
	if len(b) > 45 || bytes.IndexByte(b, '%') >= 0 {
		return false
	}
	a, err := netip.ParseAddr(string(b))
	return err == nil && a.Is6()
}

func portFault(b []byte, need bool) *Error {
	if len(b) == 0 {
		if need {
			return errAuthority
		}
		return nil
	}
	if b[0] != ':' || len(b) < 2 || len(b) > 6 {
		if bytes.IndexByte(b, '@') >= 0 {
			return errUserinfo
		}
		return errAuthority
	}
	port := 0
	for _, c := range b[1:] {
		if class[c]&digitChar == 0 {
			if bytes.IndexByte(b, '@') >= 0 {
				return errUserinfo
			}
			return errAuthority
		}
		port = port*10 + int(c-'0')
	}
	if port == 0 || port > 65535 {
		return errAuthority
	}
	return nil
}

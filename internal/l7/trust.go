// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"net/netip"

	"github.com/weirlb/weir/internal/message"
)

// Trust holds whose words about the client are believed (S13). It is immutable.
type Trust struct {
	proxies []netip.Prefix
	weirs   []netip.Prefix
}

// NewTrust returns the trust in proxies (forwarding fields) and weirs (X-Weir-*
// fields). Prefixes of IPv4 match IPv4-mapped IPv6 peers too.
func NewTrust(proxies, weirs []netip.Prefix) *Trust {
	return &Trust{proxies: cleanPrefixes(proxies), weirs: cleanPrefixes(weirs)}
}

func cleanPrefixes(in []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked())
	}
	return out
}

func (t *Trust) proxy(a netip.Addr) bool { return t != nil && within(t.proxies, a) }
func (t *Trust) weir(a netip.Addr) bool  { return t != nil && within(t.weirs, a) }

func within(list []netip.Prefix, a netip.Addr) bool {
	if len(list) == 0 || !a.IsValid() {
		return false
	}
	a = a.Unmap().WithZone("")
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// chain is what a trusted peer says about the hops before it.
type chain struct {
	client netip.Addr // the first untrusted address from the right, or the leftmost trusted one
	ended  bool
}

// walk goes through one field value from the right; each element is turned into
// an address by parse. An element that is no address ends the chain: what lies
// left of it was vouched for by nobody that weir can name.
func (c *chain) walk(t *Trust, value []byte, quotes bool, parse func([]byte) netip.Addr) {
	for !c.ended && len(value) > 0 {
		i := bytes.LastIndexByte(value, ',')
		if quotes {
			i = lastComma(value)
		}
		elem := trimOWS(value[i+1:])
		value = value[:max(i, 0)]
		if len(elem) == 0 {
			continue // empty list elements are legal (RFC 9110 section 5.6.1.2)
		}
		a := parse(elem)
		if !a.IsValid() {
			c.ended = true
			return
		}
		c.client = a
		c.ended = !t.proxy(a)
	}
}

// lastComma finds the last comma outside quotes, -1 when there is none. It reads
// from the right, as the chain is trusted: what a client put on the left, such
// as a quote without its partner, cannot swallow what a proxy appended to it.
func lastComma(v []byte) int {
	quoted := false
	for i := len(v) - 1; i >= 0; i-- {
		switch {
		case v[i] == '"' && !(quoted && escaped(v, i)):
			quoted = !quoted
		case v[i] == ',' && !quoted:
			return i
		}
	}
	return -1
}

// escaped reports that an odd number of backslashes stands before v[i].
func escaped(v []byte, i int) bool {
	n := 0
	for i > n && v[i-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// balanced reports that every quote of a value is closed.
func balanced(v []byte) bool {
	quoted := false
	for i := 0; i < len(v); i++ {
		switch {
		case v[i] == '"':
			quoted = !quoted
		case v[i] == '\\' && quoted:
			i++
		}
	}
	return !quoted
}

func trimOWS(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// parseHop reads an element of X-Forwarded-For: an address, with or without
// port, brackets and zone.
func parseHop(e []byte) netip.Addr {
	if len(e) > 64 {
		return netip.Addr{}
	}
	if e[0] == '[' {
		end := bytes.IndexByte(e, ']')
		if end < 0 {
			return netip.Addr{}
		}
		if rest := e[end+1:]; len(rest) > 0 && !isPort(rest) {
			return netip.Addr{}
		}
		e = e[1:end]
	} else if i := bytes.IndexByte(e, ':'); i >= 0 && bytes.IndexByte(e[i+1:], ':') < 0 {
		if !isPort(e[i:]) {
			return netip.Addr{}
		}
		e = e[:i]
	}
	a, err := netip.ParseAddr(string(e))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

func isPort(b []byte) bool {
	if len(b) < 2 || len(b) > 6 || b[0] != ':' {
		return false
	}
	for _, c := range b[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parseForwarded reads the for parameter of one element of Forwarded (RFC 7239
// section 4): for=192.0.2.43 or for="[2001:db8::17]:4711".
func parseForwarded(e []byte) netip.Addr {
	for len(e) > 0 {
		pair := e
		if i := semicolon(e); i >= 0 {
			pair, e = e[:i], e[i+1:]
		} else {
			e = nil
		}
		name, value, ok := bytes.Cut(trimOWS(pair), []byte("="))
		if !ok || !message.EqualFold(name, "for") {
			continue
		}
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if len(value) == 0 {
			return netip.Addr{}
		}
		return parseHop(value)
	}
	return netip.Addr{}
}

func semicolon(v []byte) int {
	quoted := false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == ';' && !quoted:
			return i
		}
	}
	return -1
}

// clientOf returns the client's address as the fields of a trusted peer tell
// it. X-Forwarded-For decides when it is there, else Forwarded.
func clientOf(t *Trust, peer netip.Addr, f *message.Fields) netip.Addr {
	c := chain{client: peer}
	id, parse := message.XForwardedFor, parseHop
	if _, ok := f.Get(id); !ok {
		id, parse = message.Forwarded, parseForwarded
	}
	for i := f.Len() - 1; i >= 0 && !c.ended; i-- {
		if f.ID(i) == id && !f.Removed(i) {
			c.walk(t, f.Value(i), id == message.Forwarded, parse)
		}
	}
	return c.client
}

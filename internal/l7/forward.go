// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"net/netip"
	"strconv"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// clientScratch is what a client connection's requests have in common. For a
// peer that is not trusted, all forwarding fields depend on the connection and
// on the authority alone, so they are written once and copied per request.
type clientScratch struct {
	known   bool
	trust   *Trust
	certs   CertFields
	proxy   bool       // the peer is a trusted proxy
	weir    bool       // the peer is a trusted weir
	peer    netip.Addr // unmapped, without zone; invalid for unix sockets
	peerKey uint64

	ready     bool   // lines are written, for authority and tls
	authority []byte // they were written for
	lines     message.Fields

	headers [2][]byte // PROXY headers for backends, by version; nil: not asked for yet
}

// refresh decides once per connection and generation how far the peer is
// trusted.
func (c *ClientInfo) refresh(t *Trust, certs CertFields) {
	s := &c.scratch
	if s.known && s.trust == t && s.certs == certs {
		return
	}
	s.known, s.trust, s.certs, s.ready = true, t, certs, false
	s.peer = c.Peer.Addr().Unmap().WithZone("")
	s.proxy, s.weir = t.proxy(s.peer), t.weir(s.peer)
	s.peerKey = addrKey(s.peer)
}

// addrKey hashes a client address for the "two addresses" rule of S9.
func addrKey(a netip.Addr) uint64 {
	b := a.As16()
	var hi, lo uint64
	for i := range 8 {
		hi = hi<<8 | uint64(b[i])
		lo = lo<<8 | uint64(b[8+i])
	}
	return mix(hi ^ mix(lo))
}

// mix is splitmix64's finalizer.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// found is what one pass over the request's fields came across.
type found struct {
	chain       bool // forwarding fields were there
	id          int  // line of a usable X-Request-Id, or -1
	traceparent int  // line of a usable traceparent, or -1
	tracestate  bool
	te          bool // TE: trailers
	keys        int  // lines of Idempotency-Key; of two a backend may take either
	keyed       bool // the last of them is not empty
	content     int  // first line of Content-Type, or -1
}

// prepareFields turns the client's fields into the backend's: what concerns
// this hop goes, what the client may not say goes, and weir's own come (S13).
func (e *exchange) prepareFields() {
	f := &e.req.Fields
	s := &e.ci.scratch
	if e.req.ConnectionNamed {
		removeNamed(f)
	}
	seen := e.classify(f)

	if seen.chain && s.proxy {
		e.client = clientOf(s.trust, s.peer, f)
		e.clientKey = addrKey(e.client)
		e.extendChain(f)
	} else {
		e.client, e.clientKey = s.peer, s.peerKey
		if seen.chain {
			removeChain(f)
		}
		if !s.ready || !bytes.Equal(s.authority, e.req.Authority) {
			e.writeLines()
		}
		f.AddAll(&s.lines)
	}
	if seen.id >= 0 {
		e.requestID = f.Value(seen.id)
	} else {
		f.AddBytes(message.XRequestID, "X-Request-Id", e.makeRequestID())
	}
	if seen.traceparent < 0 {
		if seen.tracestate {
			f.RemoveID(message.Tracestate) // it belongs to the parent that is not there
		}
		f.AddFunc(message.Traceparent, "traceparent", appendTraceparent)
	}
	if seen.te {
		f.Add(message.TE, "TE", "trailers") // weir carries trailers
	}
	e.keyed = seen.keyed && seen.keys == 1
	e.call.on = seen.content >= 0 && grpcContent(f.Value(seen.content)) && string(e.req.Method) == "POST"
}

// classify makes the one pass over the fields.
func (e *exchange) classify(f *message.Fields) found {
	seen := found{id: -1, traceparent: -1, content: -1}
	ids, parents := 0, 0
	for i := range f.Len() {
		id := f.ID(i)
		if id == message.Other || f.Removed(i) {
			continue
		}
		switch id {
		case message.Connection, message.KeepAlive, message.ProxyConnection, message.HTTP2Settings, message.Lookalike:
			f.Remove(i)
		case message.Upgrade:
			if !e.req.WebSocket {
				f.Remove(i)
			}
		case message.TE:
			seen.te = seen.te || onlyTrailers(f.Value(i))
			f.Remove(i)
		case message.XForwardedFor, message.XForwardedProto, message.XForwardedHost, message.XForwardedPort,
			message.XRealIP, message.Forwarded:
			seen.chain = true
		case message.ClientCert:
			if !e.ci.scratch.proxy {
				f.Remove(i)
			}
		case message.ContentType:
			if seen.content < 0 {
				seen.content = i
			}
		case message.XRequestID:
			if ids++; ids == 1 && validRequestID(f.Value(i)) {
				seen.id = i
			} else {
				f.Remove(i)
			}
		case message.Traceparent:
			if parents++; parents == 1 && validTraceparent(f.Value(i)) {
				seen.traceparent = i
			} else {
				f.Remove(i)
			}
		case message.Tracestate:
			seen.tracestate = true
		case message.IdempotencyKey:
			seen.keys++
			seen.keyed = len(f.Value(i)) > 0
		case message.WeirAny:
			e.readMark(f, i)
		}
	}
	if ids > 1 && seen.id >= 0 {
		f.Remove(seen.id) // two ids are no id
		seen.id = -1
	}
	if parents > 1 && seen.traceparent >= 0 {
		f.Remove(seen.traceparent)
		seen.traceparent = -1
	}
	return seen
}

func removeChain(f *message.Fields) {
	for i := range f.Len() {
		switch f.ID(i) {
		case message.XForwardedFor, message.XForwardedProto, message.XForwardedHost, message.XForwardedPort,
			message.XRealIP, message.Forwarded:
			f.Remove(i)
		}
	}
}

// writeLines writes the forwarding fields for a peer whose own word does not
// count: it is the client.
func (e *exchange) writeLines() {
	s := &e.ci.scratch
	s.ready = true
	s.authority = append(s.authority[:0], e.req.Authority...)
	s.lines.Reset(nil)
	peer, proto := s.peer, e.proto()
	// They live as long as the connection, of which there may be many idle ones.
	address := 16
	if peer.Is6() {
		address = 40
	}
	s.lines.Grow(6, len("X-Forwarded-For: \r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: \r\nX-Forwarded-Port: 65535\r\n"+
		"X-Real-IP: \r\nForwarded: for=;host=\"\";proto=https\r\n")+3*address+2*len(s.authority))
	if peer.IsValid() {
		s.lines.AddFunc(message.XForwardedFor, "X-Forwarded-For", peer.AppendTo)
	}
	s.lines.Add(message.XForwardedProto, "X-Forwarded-Proto", proto)
	if len(s.authority) > 0 {
		s.lines.AddBytes(message.XForwardedHost, "X-Forwarded-Host", s.authority)
	}
	if port := e.ci.Local.Port(); port != 0 {
		s.lines.Add(message.XForwardedPort, "X-Forwarded-Port", strconv.Itoa(int(port)))
	}
	if peer.IsValid() {
		s.lines.AddFunc(message.XRealIP, "X-Real-IP", peer.AppendTo)
	}
	s.lines.AddFunc(message.Forwarded, "Forwarded", func(b []byte) []byte {
		return appendElement(b, peer, s.authority, proto)
	})
	if !s.proxy {
		certLines(&s.lines, e.ci.Secure, s.certs)
	}
}

func (e *exchange) proto() string {
	if e.ci.TLS {
		return "https"
	}
	return "http"
}

// extendChain adds the peer, which is a trusted proxy, to what it told. Proto,
// Host and Port are kept as it says where it says them usably, else weir's own
// view is added.
func (e *exchange) extendChain(f *message.Fields) {
	s := &e.ci.scratch
	xff, fwd := f.Has(message.XForwardedFor), f.Has(message.Forwarded)
	onlyNewer := fwd && !xff
	if fwd {
		fwd = dropOpen(f)
	}
	switch {
	case !onlyNewer:
		appendTo(f, message.XForwardedFor, "X-Forwarded-For", s.peer.AppendTo)
	default:
		// Only the newer field came: whoever reads the older one gets the client.
		client := e.client
		f.AddFunc(message.XForwardedFor, "X-Forwarded-For", func(b []byte) []byte {
			b = client.AppendTo(b)
			if client != s.peer {
				b = append(b, ", "...)
				b = s.peer.AppendTo(b)
			}
			return b
		})
	}
	if v, ok := only(f, message.XForwardedProto); !ok || !usableProto(v) {
		f.RemoveID(message.XForwardedProto)
		f.Add(message.XForwardedProto, "X-Forwarded-Proto", e.proto())
	}
	if _, ok := only(f, message.XForwardedHost); !ok {
		f.RemoveID(message.XForwardedHost)
		if len(e.req.Authority) > 0 {
			f.AddBytes(message.XForwardedHost, "X-Forwarded-Host", e.req.Authority)
		}
	}
	if _, ok := only(f, message.XForwardedPort); !ok {
		f.RemoveID(message.XForwardedPort)
		if port := e.ci.Local.Port(); port != 0 {
			f.Add(message.XForwardedPort, "X-Forwarded-Port", strconv.Itoa(int(port)))
		}
	}
	f.RemoveID(message.XRealIP)
	client := e.client
	f.AddFunc(message.XRealIP, "X-Real-IP", client.AppendTo)

	own := func(b []byte) []byte {
		if !fwd && client != s.peer {
			b = appendFor(b, client) // what the older field told, in the newer one's words
			b = append(b, ", "...)
		}
		return appendElement(b, s.peer, e.req.Authority, e.proto())
	}
	appendTo(f, message.Forwarded, "Forwarded", own)
}

// dropOpen removes the lines of Forwarded that leave a quote open: whoever reads
// them from the left would take what is appended for a part of the quote. It
// reports whether a line is left.
func dropOpen(f *message.Fields) (left bool) {
	for i := range f.Len() {
		switch {
		case f.ID(i) != message.Forwarded || f.Removed(i):
		case balanced(f.Value(i)):
			left = true
		default:
			f.Remove(i)
		}
	}
	return left
}

// only returns the value of a field that must come once: of two lines one is a
// client's that a proxy passed on beside its own, and receivers differ in which
// they take.
func only(f *message.Fields, id message.FieldID) (value []byte, ok bool) {
	for i := range f.Len() {
		if f.ID(i) != id || f.Removed(i) {
			continue
		}
		if ok {
			return nil, false
		}
		value, ok = f.Value(i), true
	}
	return value, ok
}

// appendTo replaces all lines of a list field by one that holds their values in
// order and one more element.
func appendTo(f *message.Fields, id message.FieldID, name string, element func([]byte) []byte) {
	n := f.Len()
	f.AddFunc(id, name, func(b []byte) []byte {
		for i := range n {
			if f.ID(i) == id && !f.Removed(i) && len(f.Value(i)) > 0 {
				b = append(b, f.Value(i)...)
				b = append(b, ", "...)
			}
		}
		return element(b)
	})
	for i := range n {
		if f.ID(i) == id {
			f.Remove(i)
		}
	}
}

func usableProto(v []byte) bool { return message.EqualFold(v, "http") || message.EqualFold(v, "https") }

// appendElement writes one element of Forwarded (RFC 7239 section 4): addresses
// of IPv6 in brackets and quotes, a host with a port in quotes.
func appendElement(b []byte, peer netip.Addr, host []byte, proto string) []byte {
	b = appendFor(b, peer)
	if len(host) > 0 {
		b = append(b, ";host="...)
		if isToken(host) {
			b = append(b, host...)
		} else {
			b = append(b, '"')
			for _, c := range host {
				if c == '"' || c == '\\' {
					b = append(b, '\\')
				}
				b = append(b, c)
			}
			b = append(b, '"')
		}
	}
	b = append(b, ";proto="...)
	return append(b, proto...)
}

func appendFor(b []byte, a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return append(b, "for=unknown"...)
	case a.Is6():
		b = append(b, `for="[`...)
		b = a.AppendTo(b)
		return append(b, `]"`...)
	default:
		b = append(b, "for="...)
		return a.AppendTo(b)
	}
}

// isToken reports that a host needs no quotes: letters, digits and "-._~" are
// what hosts consist of besides the colon and the brackets.
func isToken(v []byte) bool {
	for _, c := range v {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
		default:
			return false
		}
	}
	return len(v) > 0
}

func idOf(name string) message.FieldID { return http1.FieldID([]byte(name)) }

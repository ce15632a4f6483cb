// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// part is a piece of a stream's own text; start 0 and end 0: there is none. Text
// begins with a byte of no meaning.
type part struct{ start, end int }

// headReader gathers what a header block says about a request.
type headReader struct {
	s   *ServerStream
	lim *http1.Limits
	bad *http1.Error // the first thing that is wrong

	method, scheme, authority, path, protocol part
	regular                                   bool // a field that is no pseudo-field came
	hosted, lengths                           bool
	host                                      part
}

// Faults of heads that have names of their own.
var (
	errPseudoOrder   = bad("pseudo-field behind a field")
	errPseudoTwice   = bad("pseudo-field repeated")
	errPseudoUnknown = bad("unknown pseudo-field")
	errPseudoMissing = bad("pseudo-field missing")
	errPseudoTrailer = bad("pseudo-field in trailers")
	errScheme        = bad("scheme is neither http nor https")
	errConnField     = bad("field that concerns a connection")
	errHostDiffers   = bad("Host differs from :authority")
	errHostTwice     = bad("repeated Host field")
	errNoAuthority   = bad("no :authority and no Host field")
	errName          = bad("field name with capitals, or that is none")
	errLengthTwice   = bad("repeated Content-Length")
	errLengthConnect = bad("Content-Length of a CONNECT")
	errLengthEnd     = bad("Content-Length of content that does not come")
	errTooMuch       = bad("more content than Content-Length says")
	errTooLittle     = bad("less content than Content-Length says")
	errExpect        = &http1.Error{Reason: message.BadRequest, Detail: "unknown expectation", Code: 417}
	errTooLarge      = &http1.Error{Reason: message.HeaderTooLarge, Detail: "head exceeds the limit"}
	errTooMany       = &http1.Error{Reason: message.HeaderTooLarge, Detail: "too many fields"}
	errProtocol      = &http1.Error{Reason: message.BadRequest, Detail: "CONNECT to a protocol other than websocket", Code: 501}
)

// readHead decodes a request's header block. Whatever is wrong with the request,
// the block is decoded to its end: an error is a block that cannot be.
func (s *ServerStream) readHead(d *decoder, block []byte, lim *http1.Limits) (*http1.Error, error) {
	s.text = append(s.text[:0], 0)
	s.crumbs = s.crumbs[:0]
	fields, scratch := s.req.Fields, s.req.Scratch
	s.req = message.Request{Fields: fields, Scratch: scratch, Major: 2, TLS: s.conn.tls}
	s.req.Fields.Reset(nil)
	h := headReader{s: s, lim: lim}
	_, bad, err := d.lines(block, lim, h.line, h.kind)
	if err != nil {
		return nil, err
	}
	h.bad = bad
	h.finish()
	return h.bad, nil
}

func (h *headReader) fail(e *http1.Error) {
	if h.bad == nil {
		h.bad = e
	}
}

func (h *headReader) keep(v []byte) part {
	s := h.s
	p := part{len(s.text), len(s.text) + len(v)}
	s.text = append(s.text, v...)
	return p
}

func (p part) of(s *ServerStream) []byte {
	if p.start == 0 {
		return nil
	}
	return s.text[p.start:p.end:p.end]
}

// line takes one line.
func (h *headReader) line(f *entry, _ int) *http1.Error {
	h.field(f)
	return h.bad
}

func (h *headReader) field(f *entry) {
	switch {
	case len(f.name) > 0 && f.name[0] == ':':
		h.pseudo(f)
		return
	case f.id == unfit:
		h.fail(errName)
		return
	}
	if e := http1.CheckValue(f.value); e != nil {
		h.fail(e)
		return
	}
	if !h.regular {
		h.regular = true
		if a := h.authority.of(h.s); a != nil {
			h.s.req.Fields.AddBytes(message.Host, "Host", a)
		}
	}
	if f.id == message.Other || f.id > message.Expect && f.id != message.Cookie && f.id != message.HTTP2Settings {
		h.s.req.Fields.AddRaw(f.id, f.name, f.value)
		return
	}
	h.special(f)
}

// kind keeps of a head that is refused the field that tells how its sender wants to
// be refused: a gRPC client by a status of gRPC's.
func (h *headReader) kind(f *entry) {
	if q := &h.s.req.Fields; f.id == message.ContentType && len(f.value) <= 64 && !q.Has(f.id) && http1.CheckValue(f.value) == nil {
		q.AddRaw(f.id, f.name, f.value)
	}
}

// pseudo takes a pseudo-field (RFC 9113 section 8.3).
func (h *headReader) pseudo(f *entry) {
	var p *part
	switch string(f.name) {
	case ":method":
		p = &h.method
	case ":scheme":
		p = &h.scheme
	case ":authority":
		p = &h.authority
	case ":path":
		p = &h.path
	case ":protocol":
		p = &h.protocol
	default:
		h.fail(errPseudoUnknown)
		return
	}
	switch {
	case h.regular:
		h.fail(errPseudoOrder)
	case p.start != 0:
		h.fail(errPseudoTwice)
	default:
		*p = h.keep(f.value)
	}
}

// special takes a field that concerns framing, the connection or the request as
// a whole (RFC 9113 section 8.2).
func (h *headReader) special(f *entry) {
	r := &h.s.req
	switch f.id {
	case message.Host:
		if h.hosted {
			h.fail(errHostTwice)
			return
		}
		h.hosted, h.host = true, h.keep(f.value)
		if h.authority.start == 0 {
			r.Fields.AddRaw(f.id, f.name, f.value)
		}
	case message.ContentLength:
		if h.lengths {
			h.fail(errLengthTwice)
			return
		}
		n, e := http1.ParseLength(f.value)
		if e != nil {
			h.fail(e)
			return
		}
		h.lengths, r.ContentLength, r.Body = true, n, message.Sized
		r.Fields.AddRaw(f.id, f.name, f.value)
	case message.TransferEncoding, message.Connection, message.KeepAlive, message.ProxyConnection, message.Upgrade:
		h.fail(errConnField)
	case message.TE:
		if string(f.value) != "trailers" {
			h.fail(errConnField)
			return
		}
		r.Fields.AddRaw(f.id, f.name, f.value)
	case message.Expect:
		if !message.EqualFold(f.value, "100-continue") {
			h.fail(errExpect)
			return
		}
		r.ExpectContinue = true
		r.Fields.AddRaw(f.id, f.name, f.value)
	case message.Cookie: // crumbs become one line again (section 8.2.3)
		s := h.s
		if len(s.crumbs) > 0 {
			s.crumbs = append(s.crumbs, ';', ' ')
		}
		s.crumbs = append(s.crumbs, f.value...)
	case message.HTTP2Settings: // of an upgrade that weir does not do
	default:
		r.Fields.AddRaw(f.id, f.name, f.value)
	}
}

// finish judges the whole.
func (h *headReader) finish() {
	s := h.s
	r := &s.req
	r.Method, r.Authority = h.method.of(s), h.authority.of(s)
	if len(s.crumbs) > 0 {
		r.Fields.AddBytes(message.Cookie, "cookie", s.crumbs)
	}
	if !h.regular && r.Authority != nil {
		r.Fields.AddBytes(message.Host, "Host", r.Authority)
	}
	switch {
	case h.bad != nil:
		return
	case r.Method == nil:
		h.fail(errPseudoMissing)
		return
	}
	if e := http1.CheckMethod(r.Method); e != nil {
		h.fail(e)
		return
	}
	h.target()
	h.content()
}

// target settles scheme, authority and path.
func (h *headReader) target() {
	s := h.s
	r := &s.req
	connect := string(r.Method) == "CONNECT"
	scheme, path, protocol := h.scheme.of(s), h.path.of(s), h.protocol.of(s)
	switch {
	case h.protocol.start != 0 && !connect:
		h.fail(errPseudoUnknown)
		return
	case connect && h.protocol.start == 0:
		if h.scheme.start != 0 || h.path.start != 0 || r.Authority == nil {
			h.fail(errPseudoMissing)
			return
		}
		r.Target = r.Authority
		if e := http1.CheckAuthority(r.Authority, true); e != nil {
			h.fail(e)
		}
		return
	case h.scheme.start == 0 || h.path.start == 0:
		h.fail(errPseudoMissing)
		return
	case !message.EqualFold(scheme, "http") && !message.EqualFold(scheme, "https"):
		h.fail(errScheme)
		return
	}
	if e := h.lim.SplitTarget(r, path); e != nil {
		h.fail(e)
		return
	}
	switch host := h.host.of(s); {
	case r.Authority == nil && !h.hosted:
		h.fail(errNoAuthority)
		return
	case r.Authority == nil:
		r.Authority = host
	case h.hosted && !bytes.EqualFold(host, r.Authority):
		h.fail(errHostDiffers)
		return
	}
	if e := http1.CheckAuthority(r.Authority, false); e != nil {
		h.fail(e)
		return
	}
	if connect {
		if string(protocol) != "websocket" {
			h.fail(errProtocol)
			return
		}
		s.askTunnel()
	}
}

// content settles how much content there is to come.
func (h *headReader) content() {
	s := h.s
	r := &s.req
	switch {
	case h.bad != nil:
	case s.remote && r.ContentLength > 0:
		h.fail(errLengthEnd)
	case s.tunnel || string(r.Method) == "CONNECT":
		// It has no content (RFC 9110 section 9.3.6): a length would have the backend take
		// what is tunnelled for it, or, where it declines, the next request on its connection.
		if h.lengths {
			h.fail(errLengthConnect)
		}
		r.Body, r.ExpectContinue = message.NoBody, false
		r.Fields.RemoveID(message.Expect)
	case s.remote && r.Body != message.Sized:
		r.Body = message.NoBody
	case r.Body != message.Sized:
		r.Body = message.Streamed
	}
	s.sized, s.expect = r.Body == message.Sized, r.ContentLength
	r.Trailing = s.sized && !s.remote
	if s.remote && r.ExpectContinue { // nothing is to come
		r.ExpectContinue = false
		r.Fields.RemoveID(message.Expect)
	}
}

// readTrailers decodes the block that ends a request's content.
func (s *ServerStream) readTrailers(d *decoder, block []byte) (*http1.Error, error) {
	_, bad, err := d.lines(block, &s.conn.set.Limits, func(f *entry, _ int) *http1.Error { return addTrailer(&s.trailers, f) }, nil)
	if err != nil {
		return nil, err
	}
	http1.FilterTrailers(&s.trailers)
	return bad, nil
}

// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

const (
	// maxInterim is how many 1xx answers one request may get, as over HTTP/1.1.
	maxInterim = 64
	// maxUnread is how many of them may lie here while nobody takes them.
	maxUnread = 8
)

// readHead decodes the head of an answer, interim or final. Called under the
// connection's mutex; an error is a block that cannot be decoded.
func (s *ClientStream) readHead(d *decoder, block []byte, end bool) (bad *http1.Error, _ error) {
	r := &s.res
	if s.ready { // an interim one lies here
		r = &message.Response{}
	}
	fields := r.Fields
	*r = message.Response{Major: 2, ContentLength: -1, Fields: fields}
	r.Fields.Reset(nil)
	fail := func(e *http1.Error) {
		if bad == nil {
			bad = e
		}
	}
	lim := &s.conn.set.Limits
	size, lines, status := 0, 0, 0
	var f entry
	for d.begin(block); ; {
		more, err := d.next(&f)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		size += len(f.name) + len(f.value) + entryOverhead
		lines++
		switch {
		case bad != nil:
		case size > lim.HeaderBytes():
			fail(badAnswer("head exceeds the limit"))
		case lines > lim.Fields():
			fail(badAnswer("too many fields"))
		case len(f.name) > 0 && f.name[0] == ':':
			switch {
			case string(f.name) != ":status":
				fail(badAnswer("pseudo-field of an answer other than :status"))
			case lines > 1:
				fail(badAnswer("repeated :status, or not in front"))
			default:
				status = statusOf(f.value)
			}
		default:
			fail(s.field(r, &f))
		}
	}
	if status == 0 || status == 101 {
		fail(badAnswer("no :status, or none of HTTP/2"))
	}
	if bad != nil {
		return bad, nil
	}
	r.Status = status
	return s.gotHead(r, end), nil
}

// statusOf reads three digits; 0: that is no status.
func statusOf(v []byte) int {
	if len(v) != 3 || v[0] < '1' || v[0] > '9' || v[1] < '0' || v[1] > '9' || v[2] < '0' || v[2] > '9' {
		return 0
	}
	return int(v[0]-'0')*100 + int(v[1]-'0')*10 + int(v[2]-'0')
}

// field takes one line of a head.
func (s *ClientStream) field(r *message.Response, f *entry) *http1.Error {
	if f.id == unfit {
		return badAnswer(errName.Detail)
	}
	if e := http1.CheckValue(f.value); e != nil {
		return badAnswer(e.Detail)
	}
	switch f.id {
	case message.TransferEncoding, message.Connection, message.KeepAlive, message.ProxyConnection, message.Upgrade:
		return badAnswer(errConnField.Detail)
	case message.ContentLength:
		n, e := http1.ParseLength(f.value)
		switch {
		case e != nil:
			return badAnswer(e.Detail)
		case r.ContentLength >= 0:
			return badAnswer(errLengthTwice.Detail)
		}
		r.ContentLength = n
	}
	r.Fields.AddRaw(f.id, f.name, f.value)
	return nil
}

// gotHead takes a head whose fields are in order.
func (s *ClientStream) gotHead(r *message.Response, end bool) *http1.Error {
	if r.Status < 200 {
		s.interims++
		switch {
		case end:
			return badAnswer("an interim answer as the last one")
		case s.interims > maxInterim || len(s.later) >= maxUnread:
			return badAnswer("too many interim responses")
		}
		r.Fields.RemoveID(message.ContentLength)
		r.ContentLength = -1
		s.keep(r)
		return nil
	}
	if s.tunnel && r.Status < 300 {
		s.gotTunnel(r, end)
		return nil
	}
	s.final, s.tunnel = true, false
	bodyless := s.toHEAD || r.Status == 204 || r.Status == 304
	switch {
	case r.Status == 204:
		r.Fields.RemoveID(message.ContentLength)
		r.ContentLength = -1
	case bodyless:
	case end && r.ContentLength > 0:
		return badAnswer(errTooLittle.Detail)
	case r.ContentLength >= 0:
		r.Body = message.Sized
	case !end:
		r.Body = message.Streamed
	}
	s.sized, s.expect, s.excess = r.Body == message.Sized, r.ContentLength, errTooMuch.Detail
	if bodyless {
		s.sized, s.expect, s.excess = true, 0, "content where none may be"
	}
	s.remote = end
	s.keep(r)
	return nil
}

// keep makes a head one that ReadHead returns.
func (s *ClientStream) keep(r *message.Response) {
	s.started = true
	if s.ready {
		s.later = append(s.later, r)
		return
	}
	s.ready = true
}

// readTrailers decodes the block that ends an answer's content. Called under the
// connection's mutex.
func (s *ClientStream) readTrailers(d *decoder, block []byte, end bool) (bad *http1.Error, _ error) {
	lim := &s.conn.set.Limits
	size, lines := 0, 0
	var f entry
	for d.begin(block); ; {
		more, err := d.next(&f)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		size += len(f.name) + len(f.value) + entryOverhead
		lines++
		switch {
		case bad != nil:
		case s.remote:
			bad = badAnswer("a head behind the answer's end")
		case !end:
			bad = badAnswer("a second head")
		case size > lim.HeaderBytes():
			bad = badAnswer("trailers exceed the limit")
		case lines > lim.Fields():
			bad = badAnswer("too many trailers")
		case len(f.name) > 0 && f.name[0] == ':':
			bad = badAnswer(errPseudoTrailer.Detail)
		case f.id == unfit:
			bad = badAnswer(errName.Detail)
		case http1.CheckValue(f.value) != nil:
			bad = badAnswer(http1.CheckValue(f.value).Detail)
		case f.id == message.Connection || f.id == message.TransferEncoding:
			bad = badAnswer(errConnField.Detail)
		default:
			s.trailers.AddRaw(f.id, f.name, f.value)
		}
	}
	if bad == nil && lines == 0 && (s.remote || !end) {
		bad = badAnswer("a second head")
	}
	if bad != nil {
		return bad, nil
	}
	http1.FilterTrailers(&s.trailers)
	return s.settleContent(), nil
}

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
func (s *ClientStream) readHead(d *decoder, block []byte, end bool) (*http1.Error, error) {
	r := &s.res
	if s.ready { // an interim one lies here
		r = &message.Response{}
	}
	fields := r.Fields
	*r = message.Response{Major: 2, ContentLength: -1, Fields: fields}
	r.Fields.Reset(nil)
	status := 0
	_, bad, err := d.lines(block, &s.conn.set.Limits, func(f *entry, n int) *http1.Error {
		switch {
		case len(f.name) == 0 || f.name[0] != ':':
			return s.field(r, f)
		case string(f.name) != ":status":
			return badAnswer("pseudo-field of an answer other than :status")
		case n > 1:
			return badAnswer("repeated :status, or not in front")
		}
		status = statusOf(f.value)
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	if bad == nil && (status == 0 || status == 101) {
		bad = badAnswer("no :status, or none of HTTP/2")
	}
	if bad != nil {
		return badAnswer(bad.Detail), nil
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
func (s *ClientStream) readTrailers(d *decoder, block []byte, end bool) (*http1.Error, error) {
	n, bad, err := d.lines(block, &s.conn.set.Limits, func(f *entry, _ int) *http1.Error {
		switch {
		case s.remote:
			return badAnswer("a head behind the answer's end")
		case !end:
			return badAnswer("a second head")
		}
		return addTrailer(&s.trailers, f)
	}, nil)
	switch {
	case err != nil:
		return nil, err
	case bad != nil:
		return badAnswer(bad.Detail), nil
	case n == 0 && (s.remote || !end):
		return badAnswer("a second head"), nil
	}
	http1.FilterTrailers(&s.trailers)
	return s.settleContent(), nil
}

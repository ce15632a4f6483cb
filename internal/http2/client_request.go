// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"strconv"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// WriteHead writes the head and the first piece of content. With them the stream
// gets its number: HEADERS leave in the order of numbers.
func (s *ClientStream) WriteHead(r *message.Request, body []byte, end bool) error {
	if r.WebSocket {
		if err := s.askTunnel(r); err != nil {
			return err
		}
	}
	s.kind, s.left, s.trailing = r.Body, r.ContentLength, r.Trailing
	if r.Body == message.NoBody {
		body, end = nil, !s.tunnel
	}
	s.block = appendRequest(s.block[:0], r, s.conn.set.Secure)
	if err := s.account(len(body), &end); err != nil {
		return err
	}
	c := s.conn
	c.mu.Lock()
	switch {
	case s.dead != nil:
		defer c.mu.Unlock()
		return s.dead
	case c.fault != nil:
		defer c.mu.Unlock()
		return c.fault
	case c.away != nil:
		s.refused = true
		defer c.mu.Unlock()
		return c.away
	}
	s.toHEAD = string(r.Method) == "HEAD"
	s.id = c.nextID
	if c.nextID += 2; c.nextID > maxWindow-2 && c.leaving == nil {
		c.leaving = errLeft // there are no more numbers
		c.setRoom()
	}
	c.streams[s.id] = s
	s.mark = c.taken + int64(len(c.out)) + 1
	only := end && len(body) == 0
	c.out = appendBlock(c.output.room(), s.id, c.opened(s.block), only, maxFrame)
	s.local = only
	return s.put(body, end)
}

// account holds content to what the head announced.
func (s *ClientStream) account(n int, end *bool) error {
	if s.kind != message.Sized {
		return nil
	}
	if s.left -= int64(n); s.left < 0 || *end && s.left != 0 {
		s.Cut()
		return errMismatch
	}
	*end = *end || s.left == 0 && !s.trailing
	return nil
}

// WriteBody writes a piece of content; with end it is the last one.
func (s *ClientStream) WriteBody(p []byte, end bool) error {
	if len(p) == 0 && !end {
		return nil
	}
	if err := s.account(len(p), &end); err != nil {
		return err
	}
	s.conn.mu.Lock()
	return s.put(p, end)
}

// WriteTrailers ends the request with trailers.
func (s *ClientStream) WriteTrailers(t *message.Fields) error {
	if s.kind == message.Sized && !s.trailing || t == nil || t.Len() == 0 {
		return s.WriteBody(nil, true)
	}
	if s.kind == message.Sized && s.left != 0 {
		s.Cut()
		return errMismatch
	}
	s.block = appendRequestFields(s.block[:0], t, message.Streamed, -1)
	if len(s.block) == 0 {
		return s.WriteBody(nil, true)
	}
	c := s.conn
	c.mu.Lock()
	if err := s.unwritable(); err != nil {
		c.mu.Unlock()
		return err
	}
	c.out = appendBlock(c.output.room(), s.id, c.opened(s.block), true, maxFrame)
	s.local = true
	c.mu.Unlock()
	c.flush(1)
	return nil
}

// unwritable says why nothing (more) can be written. Called under mu.
func (s *ClientStream) unwritable() error {
	switch {
	case s.dead != nil:
		return s.dead
	case s.noWrite != nil:
		return s.noWrite
	case s.conn.writeFault != nil:
		return s.conn.writeFault
	case s.local || s.id == 0:
		return errOrder
	}
	return nil
}

// put writes content as far as windows and room allow, and waits for more of them
// until the deadline. Called under mu, which it gives up.
func (s *ClientStream) put(p []byte, end bool) error {
	c := s.conn
	for !s.local || len(p) > 0 {
		if err := s.unwritable(); err != nil {
			c.mu.Unlock()
			return err
		}
		n := c.allowed(&s.sender, len(p))
		if n == 0 && len(p) > 0 {
			c.enqueue(&s.sender)
			c.mu.Unlock()
			c.flush(1)
			c.mu.Lock()
			if c.allowed(&s.sender, 1) == 0 && s.unwritable() == nil {
				if err := s.writeAlarm.wait(c, s.writeBy); err != nil {
					c.mu.Unlock()
					return err
				}
			}
			continue
		}
		c.spend(&s.sender, n)
		last := end && n == len(p)
		if n > 0 || last {
			c.out = appendData(c.output.room(), s.id, p[:n], last)
			c.calm.sent(n, len(p))
		}
		s.local = last
		if p = p[n:]; len(p) == 0 {
			break
		}
	}
	c.mu.Unlock()
	c.flush(1)
	return nil
}

// appendRequest appends a request's header block: Routed (Path when it is empty)
// with the query, and the remaining fields.
func appendRequest(b []byte, r *message.Request, secure bool) []byte {
	switch method := string(r.Method); {
	case r.WebSocket:
		b = appendText(append(b, 2), methodConnect)
		b = appendText(appendText(append(b, 0), protocolName), websocket)
	case method == "GET":
		b = append(b, 0x80|2)
	case method == "POST":
		b = append(b, 0x80|3)
	default:
		b = appendText(append(b, 2), r.Method)
	}
	if secure {
		b = append(b, 0x80|7)
	} else {
		b = append(b, 0x80|6)
	}
	authority, ok := r.Fields.Get(message.Host)
	if !ok {
		authority = r.Authority
	}
	if len(authority) > 0 {
		b = appendText(append(b, 1), authority)
	}
	path := r.Routed
	if len(path) == 0 {
		path = r.Path
	}
	if r.Query == nil && len(path) == 1 && path[0] == '/' {
		b = append(b, 0x80|4)
	} else {
		n := len(path)
		if r.Query != nil {
			n += 1 + len(r.Query)
		}
		b = appendInteger(append(b, 4), 0, 7, n)
		b = append(b, path...)
		if r.Query != nil {
			b = append(append(b, '?'), r.Query...)
		}
	}
	length := int64(-1)
	if r.Body == message.Sized {
		length = r.ContentLength
	}
	if r.WebSocket {
		return appendConnectFields(b, &r.Fields)
	}
	return appendRequestFields(b, &r.Fields, r.Body, length)
}

// appendConnectFields is appendRequestFields for a request that asks for a WebSocket:
// the key is HTTP/1.1's alone. The request stays as it is, since another backend may
// be asked in HTTP/1.1.
func appendConnectFields(b []byte, f *message.Fields) []byte {
	for i := range f.Len() {
		if !f.Removed(i) && message.EqualFold(f.Name(i), keyName) {
			f.Remove(i)
			b = appendRequestFields(b, f, message.NoBody, -1)
			f.Restore(i)
			return b
		}
	}
	return appendRequestFields(b, f, message.NoBody, -1)
}

// What asks for a WebSocket (RFC 8441 section 4).
var (
	methodConnect = []byte("CONNECT")
	protocolName  = []byte(":protocol")
	websocket     = []byte("websocket")
)

// appendRequestFields appends what of a request's fields goes over HTTP/2, and its
// length if that is known (not -1) and missing. Of TE only what RFC 9113 section
// 8.2.2 allows is left.
func appendRequestFields(b []byte, f *message.Fields, kind message.Body, length int64) []byte {
	told := false
	for i := range f.Len() {
		if f.Removed(i) {
			continue
		}
		id := f.ID(i)
		switch id {
		case message.Connection, message.KeepAlive, message.ProxyConnection, message.TransferEncoding,
			message.Upgrade, message.HTTP2Settings, message.Host:
			continue
		case message.TE:
			if string(f.Value(i)) != "trailers" {
				continue
			}
		case message.ContentLength:
			n, err := http1.ParseLength(f.Value(i))
			if err != nil || told || kind == message.Sized && n != length || kind != message.Sized && (kind != message.NoBody || n != 0) {
				continue
			}
			told = true
		}
		b = appendField(b, id, f.Name(i), f.Value(i))
	}
	if length >= 0 && !told {
		var digits [20]byte
		b = appendField(b, message.ContentLength, nil, strconv.AppendInt(digits[:0], length, 10))
	}
	return b
}

// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"strconv"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// WriteInterim writes a 1xx answer at once; a 100 only when the client waits for
// one, a 101 never.
func (s *ServerStream) WriteInterim(h *message.Response) error {
	if s.started || h.Status == 101 {
		return nil
	}
	h.Fields.RemoveID(message.ContentLength)
	block := appendStatus(s.block[:0], h.Status)
	block = appendFields(block, &h.Fields, message.NoBody, -1)
	s.block = block
	c := s.conn
	c.mu.Lock()
	if s.dead != nil {
		defer c.mu.Unlock()
		return s.dead
	}
	if h.Status == 100 && !s.asked {
		c.mu.Unlock()
		return nil
	}
	s.asked = s.asked && h.Status != 100
	c.out = appendBlock(c.room(), s.id, c.opened(block), false, maxFrame)
	c.mu.Unlock()
	c.flush(1)
	return nil
}

// WriteHead writes the final head and the first piece of content. How the end is
// told follows from the protocol; a length is told where it is known.
func (s *ServerStream) WriteHead(h *message.Response, body []byte, end bool) error {
	if s.started {
		return errOrder
	}
	if h.Status == 101 {
		return s.openTunnel(h)
	}
	s.started, s.trailing = true, false
	kind, length := h.Body, h.ContentLength
	switch {
	case h.Status < 200 || h.Status == 204:
		h.Fields.RemoveID(message.ContentLength)
		kind, length, body, end = message.NoBody, -1, nil, true
	case h.Status == 304 || s.headRequest:
		if kind != message.Sized {
			length = -1
		}
		kind, body, end = message.NoBody, nil, true
	case kind == message.Sized:
		s.trailing = h.Trailing
		end = end || int64(len(body)) == length && !s.trailing
	case end && kind == message.NoBody:
		kind, length = message.Sized, int64(len(body))
	default:
		length = -1
	}
	s.left = -1
	if kind == message.Sized {
		s.left = length
	}
	block := appendStatus(s.block[:0], h.Status)
	s.block = appendFields(block, &h.Fields, kind, length)
	return s.put(s.block, body, end)
}

// appendFields appends what of a head's fields goes over HTTP/2, and its length
// if that is known (not -1) and missing.
func appendFields(b []byte, f *message.Fields, kind message.Body, length int64) []byte {
	told := false
	for i := range f.Len() {
		if f.Removed(i) {
			continue
		}
		id := f.ID(i)
		switch id {
		case message.Connection, message.KeepAlive, message.ProxyConnection, message.TransferEncoding,
			message.Upgrade, message.HTTP2Settings, message.Host, message.TE:
			continue
		case message.ContentLength:
			n, err := http1.ParseLength(f.Value(i))
			if err != nil || told || kind == message.Sized && n != length || kind != message.Sized && kind != message.NoBody {
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

// WriteBody writes a piece of content; with end it is the last one.
func (s *ServerStream) WriteBody(p []byte, end bool) error {
	if !s.started {
		return errOrder
	}
	if len(p) == 0 && !end {
		return nil
	}
	return s.put(nil, p, end)
}

// WriteTrailers ends the answer with trailers.
func (s *ServerStream) WriteTrailers(t *message.Fields) error {
	switch {
	case !s.started:
		return errOrder
	case s.left > 0:
		s.Abort()
		return errMismatch
	}
	block := s.block[:0]
	if t != nil {
		block = appendFields(block, t, message.Streamed, -1)
	}
	s.block = block
	if len(block) == 0 {
		return s.put(nil, nil, true)
	}
	c := s.conn
	c.mu.Lock()
	switch {
	case s.dead != nil:
		c.mu.Unlock()
		return s.dead
	case s.local:
		c.mu.Unlock()
		return errOrder
	}
	c.out = appendBlock(c.room(), s.id, c.opened(block), true, maxFrame)
	s.local = true
	c.mu.Unlock()
	return nil // whoever ends the stream writes it
}

// put writes a head, if there is one, and content, as far as windows and room
// allow, and waits for more of them. The end leaves when the handler returns,
// which is in a moment; everything else at once.
func (s *ServerStream) put(head, p []byte, end bool) error {
	if s.left >= 0 {
		if s.left -= int64(len(p)); s.left < 0 || end && s.left != 0 {
			s.Abort()
			return errMismatch
		}
		end = end || s.left == 0 && !s.trailing
	}
	c := s.conn
	c.mu.Lock()
	if s.local && s.dead == nil {
		c.mu.Unlock()
		if len(p) == 0 {
			return nil
		}
		return errOrder
	}
	if head != nil && s.dead == nil {
		s.asked = false
		c.out = appendBlock(c.room(), s.id, c.opened(head), end && len(p) == 0, maxFrame)
		s.local = end && len(p) == 0
	}
	for !s.local {
		if s.dead != nil {
			err := s.dead
			c.mu.Unlock()
			return err
		}
		n := c.allowed(&s.sender, len(p))
		if n == len(p) || n > 0 {
			c.spend(&s.sender, n)
			s.earnPatience(n)
			last := end && n == len(p)
			if n > 0 || last {
				c.out = appendData(c.room(), s.id, p[:n], last)
			}
			s.local = last
			s.sent.Add(int64(n))
			c.calm.sent(n, len(p))
			if p = p[n:]; len(p) == 0 {
				break
			}
			continue
		}
		if err := s.awaitRoom(); err != nil {
			return err
		}
	}
	err := s.dead
	over := s.local
	c.mu.Unlock()
	if err == nil && !over {
		c.flush(1)
	}
	return err
}

// awaitRoom waits until more may be written. Called under mu, which is held
// again when it returns nil, and free otherwise.
//
// Whoever takes nothing for the write time is given up. Windows that are opened byte by
// byte would be progress for ever, so the waiting for them uses up an allowance, the
// write time at first, and what they let through earns it back at the rate that is
// the least for content of requests: of the stream, or of all streams where it is the
// connection's window that is waited for. What waits for the network to take more is
// held to no rate.
//
// Worked example, with 30s and 240 bytes a second: a client that opens the window by a
// byte every second earns 4 ms a second, and is reset after 30 s. One that takes
// nothing for 20 s and then 64 KiB has all 30 s again.
func (s *ServerStream) awaitRoom() error {
	c := s.conn
	own, shared, spent := s.send <= 0, c.send <= 0, c.spent
	c.enqueue(&s.sender)
	limit := s.set.Timeouts.Write
	c.mu.Unlock()
	c.flush(1)
	if limit <= 0 {
		<-s.writeWake
		c.mu.Lock()
		return nil
	}
	metered := (own || shared) && s.leastRate() > 0
	wait := limit
	if metered {
		wait = max(s.patience, time.Millisecond)
	}
	begun := clock.Now()
	late := s.timer(&s.writeTimer, wait)
	select {
	case <-s.writeWake:
	case <-late:
	}
	s.writeTimer.Stop()
	waited := clock.Now().Sub(begun)
	c.mu.Lock()
	over := waited >= limit
	if metered {
		if s.patience -= waited; !own {
			s.earnPatience(int(min(c.spent-spent, 1<<30)))
		}
		over = s.patience <= 0
	}
	if s.dead == nil && over && c.allowed(&s.sender, 1) == 0 {
		s.resetLocked(CodeCancel)
		c.kickLocked()
		c.mu.Unlock()
		return errNotRead
	}
	return nil
}

// leastRate is how many bytes a second of an answer are to be taken; 0: there is no
// such rate.
func (s *ServerStream) leastRate() int64 {
	if s.tunnel || s.unpaced {
		return 0
	}
	return s.set.Timeouts.BodyMinRate
}

// earnPatience gives time to wait for n bytes that were taken.
func (s *ServerStream) earnPatience(n int) {
	rate, limit := s.leastRate(), s.set.Timeouts.Write
	if rate <= 0 {
		return
	}
	s.patience = min(s.patience+time.Duration(n)*time.Second/time.Duration(rate), limit)
}

// resetLocked ends the stream from this side.
func (s *ServerStream) resetLocked(code Code) {
	c := s.conn
	s.dead = errReset
	c.resetLocked(s.id, code)
	delete(c.streams, s.id)
}

// refuse answers a request that cannot become an exchange, in the form of all of
// weir's errors, and resets the stream: a malformed one is a stream error, and
// may be answered before (RFC 9113 section 8.1.1). It is called by the reader.
func (s *ServerStream) refuse(e *http1.Error) error {
	c := s.conn
	h := &s.scratch
	fields := h.Fields
	*h = message.Response{Status: e.Status(), Fields: fields}
	h.Fields.Reset(nil)
	h.Fields.Add(message.ContentType, "Content-Type", "text/plain; charset=utf-8")
	h.Fields.Add(message.Other, "Cache-Control", "no-store")
	h.Fields.AddFunc(message.Date, "Date", appendDate)
	if f := c.srv.OnBadRequest; f != nil {
		f(s, e)
	}
	text := strconv.AppendInt([]byte("weir: "), int64(h.Status), 10)
	text = append(append(append(text, ' '), e.Reason.String()...), ": "...)
	text = append(text, e.Detail...)
	if id, ok := h.Fields.Get(message.XRequestID); ok {
		text = append(append(append(text, " (request "...), id...), ')')
	}
	text = append(text, '\n')
	length := int64(len(text))

	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.serving.Done()
	switch {
	case h.Fields.Has(message.GRPCStatusOf): // its status is all there is
		text, length = nil, -1
	case string(s.req.Method) == "HEAD":
		text = nil
	case min(s.send, c.send) < sendWindow(length): // the reader does not wait for more
		text, length = nil, 0
	}
	s.block = appendFields(appendStatus(s.block[:0], h.Status), &h.Fields, message.Sized, length)
	c.out = appendBlock(c.room(), s.id, c.opened(s.block), len(text) == 0, maxFrame)
	if len(text) > 0 {
		c.spend(&s.sender, len(text))
		c.out = appendData(c.out, s.id, text, true)
	}
	code := CodeProtocol
	if e.Reason != message.BadRequest || e.Code != 0 {
		code = CodeNo
	}
	if code != CodeNo || !s.remote {
		c.resetLocked(s.id, code)
	}
	s.id = 0
	c.release(s)
	return c.payLocked(costMadeReset, CauseMadeReset)
}

// appendDate appends the current IMF-fixdate (RFC 9110 section 5.6.7).
func appendDate(b []byte) []byte {
	return clock.Time(clock.Now()).UTC().AppendFormat(b, "Mon, 02 Jan 2006 15:04:05 GMT")
}

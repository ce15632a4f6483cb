// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"strconv"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// drainLimit is how much unread content is read away to keep a connection.
const drainLimit = 256 << 10

// lingerLimit is how much is read away from a connection that is being closed.
const lingerLimit = 8 << 20

// WriteInterim writes a 1xx answer at once. It is dropped for HTTP/1.0, after
// the final head, and a 100 also when the client does not wait for one.
func (c *ServerConn) WriteInterim(h *message.Response) error {
	if c.req.Minor == 0 || c.out.started {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Status == 100 {
		if c.asked != askedPending {
			return nil
		}
		c.asked = askedSent
	}
	buf := writeBuffers.Get().(*[writeSize]byte)
	h.Fields.RemoveID(message.ContentLength)
	settleFraming(&h.Fields, message.NoBody, 0, false)
	b := h.Fields.AppendWire(appendStatusLine(buf[:0], h))
	err := c.out.write(append(b, '\r', '\n'), nil)
	writeBuffers.Put(buf)
	return err
}

// WriteHead writes the final head and the first piece of content in one write.
// The framing follows from h and the peer: Sized is sent Sized; what has no
// length goes chunked to HTTP/1.1 and until close to HTTP/1.0; a NoBody head
// (an answer of weir's own) gets the length of body when end is set.
func (c *ServerConn) WriteHead(h *message.Response, body []byte, end bool) error {
	if c.out.started {
		return errOrder
	}
	c.settleAsked()
	kind, length, body, end := c.frame(h, body, end)
	if c.in.unread() > drainLimit || c.link.srv.isClosing() || c.old() {
		c.mustClose.Store(true)
	}
	if c.mayHold(kind, length, body, end) {
		return c.hold(h, kind, length, body)
	}
	buf := writeBuffers.Get().(*[writeSize]byte)
	b := c.appendHead(buf[:0], h, kind, length)
	err := c.out.begin(b, kind, length, body, end)
	writeBuffers.Put(buf)
	return c.judge(err)
}

// appendHead appends the head of an answer that is framed as kind and length
// (-1: none announced) say.
func (c *ServerConn) appendHead(b []byte, h *message.Response, kind message.Body, length int64) []byte {
	b = appendStatusLine(b, h)
	announced := kind
	if announced == message.NoBody && length >= 0 {
		announced = message.Sized // HEAD: the length without the content
	}
	seen := settleFraming(&h.Fields, announced, length, h.Status == 101 || h.Status == 426 && c.req.Minor != 0)
	b = h.Fields.AppendWire(b)
	b = appendFraming(b, seen, announced, length)
	b = c.appendConnection(b, h.Status, seen)
	return append(b, '\r', '\n')
}

// settleAsked decides, once an answer is final, that no 100 will be sent. The
// client may still send its content or not, so the connection cannot go on.
func (c *ServerConn) settleAsked() {
	if !c.req.ExpectContinue {
		return
	}
	c.mu.Lock()
	if c.asked == askedPending {
		c.asked = askedNever
		c.mustClose.Store(true)
	}
	c.mu.Unlock()
}

// frame decides how the content is delimited. length is -1 where none is
// announced.
func (c *ServerConn) frame(h *message.Response, body []byte, end bool) (message.Body, int64, []byte, bool) {
	switch {
	case h.Status < 200 || h.Status == 204:
		h.Fields.RemoveID(message.ContentLength)
		return message.NoBody, -1, nil, true
	case h.Status == 304:
		return message.NoBody, -1, nil, true
	case c.headRequest:
		switch {
		case h.Body == message.Sized:
			return message.NoBody, h.ContentLength, nil, true
		case h.Body == message.NoBody && len(body) > 0:
			return message.NoBody, int64(len(body)), nil, true
		}
		return message.NoBody, -1, nil, true
	case h.Body == message.Sized:
		return message.Sized, h.ContentLength, body, end
	case end && h.Body != message.Chunked && h.Body != message.UntilClose:
		return message.Sized, int64(len(body)), body, true
	case c.req.Minor == 0:
		c.mustClose.Store(true)
		return message.UntilClose, -1, body, end
	default:
		return message.Chunked, -1, body, end
	}
}

// appendConnection says whether the connection goes on.
func (c *ServerConn) appendConnection(b []byte, status int, seen uint8) []byte {
	switch {
	case status == 101:
		return appendUpgrade(b, seen)
	case seen&seenUpgrade != 0 && c.mustClose.Load(): // 426
		return append(b, "Connection: close, Upgrade\r\n"...)
	case seen&seenUpgrade != 0:
		return append(b, "Connection: Upgrade\r\n"...)
	case c.mustClose.Load():
		return append(b, "Connection: close\r\n"...)
	case c.req.Minor == 0:
		return append(b, "Connection: keep-alive\r\n"...)
	}
	return b
}

// WriteBody writes a piece of content at once; with end it is the last one.
func (c *ServerConn) WriteBody(p []byte, end bool) error { return c.judge(c.out.piece(p, end)) }

// WriteTrailers ends the answer with trailers; they are dropped where the
// framing has no place for them.
func (c *ServerConn) WriteTrailers(t *message.Fields) error { return c.judge(c.out.trailers(t)) }

// judge resets the connection where the content contradicts the head: the
// client must not take what it got for whole.
func (c *ServerConn) judge(err error) error {
	if err != nil {
		c.mustClose.Store(true)
		if errors.Is(err, errMismatch) {
			c.Abort()
		}
	}
	return err
}

// AnswerSpace reports how many bytes of the answer's content may be put on the
// connection directly: what a Sized one lacks, -1 when it ends with the
// connection. AnswerMoved must be told of them.
func (c *ServerConn) AnswerSpace() (int64, bool) { return c.out.space() }

// AnswerMoved notes that n bytes of the answer's content were put on the
// connection, and that the next write may take as long as any.
func (c *ServerConn) AnswerMoved(n int64) {
	c.out.moved(n)
	if c.out.stall > 0 {
		c.nc.SetWriteDeadline(clock.Now().Add(c.out.stall))
	}
}

// ErrorHead is the head of the answer that follows OnBadRequest, for fields.
func (c *ServerConn) ErrorHead() *message.Response { return &c.scratch }

// refuse answers a request that cannot become an exchange, in the form of all
// of weir's errors, and gives the connection up: what follows in the stream is not to be trusted.
func (c *ServerConn) refuse(e *Error) waitResult {
	h := &c.scratch
	fields := h.Fields
	*h = message.Response{Status: e.Status(), Fields: fields}
	h.Fields.Reset(nil)
	h.Fields.Add(message.ContentType, "Content-Type", "text/plain; charset=utf-8")
	h.Fields.Add(message.Other, "Cache-Control", "no-store") // a 414 might be kept otherwise
	h.Fields.AddFunc(message.Date, "Date", appendDate)
	if h.Status == 503 {
		h.Fields.Add(message.RetryAfter, "Retry-After", "1")
	}
	c.in.kind, c.headRequest = message.NoBody, string(c.req.Method) == "HEAD"
	c.in.done.Store(true)
	c.req.ExpectContinue = false
	c.out.reset()
	c.mustClose.Store(true)
	if f := c.link.srv.OnBadRequest; f != nil {
		f(c, e)
	}
	var text [256]byte
	b := strconv.AppendInt(append(text[:0], "weir: "...), int64(h.Status), 10)
	b = append(append(append(b, ' '), e.Reason.String()...), ": "...)
	b = append(b, e.Detail...)
	if id, ok := h.Fields.Get(message.XRequestID); ok {
		b = append(append(append(b, " (request "...), id...), ')')
	}
	b = append(b, '\n')
	if err := c.WriteHead(h, b, true); err == nil {
		c.linger()
	}
	return waitClosed
}

// appendDate appends the current IMF-fixdate (RFC 9110 section 5.6.7).
func appendDate(b []byte) []byte {
	return clock.Time(clock.Now()).UTC().AppendFormat(b, "Mon, 02 Jan 2006 15:04:05 GMT")
}

// finish ends an exchange after its handler and reports whether the connection
// goes on.
func (c *ServerConn) finish() bool {
	if c.held != nil && (c.mustClose.Load() || c.aborted.Load()) && !c.flush() {
		return false
	}
	switch {
	case c.aborted.Load() || c.taken:
		return false
	case !c.out.ended:
		c.Abort() // a plain end could be taken for the content's
		return false
	}
	if !c.mustClose.Load() && !c.in.done.Load() {
		c.drainBody()
	}
	if c.mustClose.Load() || !c.in.done.Load() {
		c.closeGently()
		return false
	}
	c.in.endMessage()
	c.shrunk()
	return true
}

// drainBody reads the rest of the content away so that the next request can be
// read.
func (c *ServerConn) drainBody() {
	for n := 0; n <= drainLimit; {
		p, err := c.ReadBody()
		if err != nil {
			return
		}
		n += len(p)
	}
}

// closeGently closes so that the client gets the answer: closing a socket with
// unread bytes resets it, and the reset may overtake the answer.
func (c *ServerConn) closeGently() {
	quiet := c.in.done.Load() && c.in.empty()
	if quiet && c.nc.Peek() != netconn.HasBytes {
		return
	}
	c.linger()
}

// linger ends the sending half and reads until the client has ended its own,
// within bounds of time and bytes (RFC 9112 section 9.6).
func (c *ServerConn) linger() {
	if c.nc.CloseWrite() != nil {
		return
	}
	limit := c.set.Timeouts.Linger
	if limit <= 0 {
		limit = defaultLinger
	}
	if c.link.srv.isClosing() {
		limit = min(limit, time.Second)
	}
	c.nc.SetReadDeadline(clock.Now().Add(limit))
	c.in.release()
	for n := 0; n < lingerLimit; n += c.in.w {
		var err error
		c.in.buf, c.in.w, err = c.nc.ReadInto(c.in.get)
		if err != nil || c.in.w == 0 {
			return
		}
		giveBuffer(c.in.buf)
		c.in.buf = nil
	}
}

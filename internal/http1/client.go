// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"errors"
	"io"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// maxInterim is how many 1xx answers one request may get.
const maxInterim = 64

var (
	errInterims   = &Error{Reason: message.BadResponse, Detail: "too many interim responses"}
	errNotAskedUp = &Error{Reason: message.BadResponse, Detail: "101 without a request for it"}
	errSecond     = &Error{Reason: message.BadResponse, Detail: "a second answer right behind the first"}
	errUnasked    = &Error{Reason: message.BadResponse, Detail: "bytes before a request"}
)

// ClientConn is the backend's half: one connection, one exchange at a time. It
// satisfies l7.Upstream. WriteHead begins an exchange. One goroutine uses it;
// while content is streamed, WriteBody, WriteTrailers and BytesWritten may
// belong to a second one. Deadlines for writes and for content are the
// caller's, on Conn.
type ClientConn struct {
	nc  *netconn.Conn
	lim Limits

	// Owned by the goroutine that writes.
	out outgoing

	// Owned by the goroutine that reads.
	in       incoming
	used     bool // an exchange has begun
	again    bool // this is not the first one
	upgrade  bool // the request asked for a WebSocket
	started  bool // a byte of an answer has arrived
	final    bool // the final head has arrived
	close    bool // the backend closes after this answer
	broken   bool // framing is lost, or an error ended the exchange
	interims int
	awaitBy  balance.Instant // see AwaitBy
	early    error           // of the read that WriteHead made
}

// NewClientConn begins to speak HTTP/1.1 on a connection to a backend.
func NewClientConn(nc *netconn.Conn, lim Limits) *ClientConn {
	c := &ClientConn{nc: nc, lim: lim}
	c.in.attach(nc)
	c.in.done.Store(true)
	c.out.nc = nc
	return c
}

// SetReadDeadline bounds waiting for content.
func (c *ClientConn) SetReadDeadline(t balance.Instant) { c.nc.SetReadDeadline(t) }

// SetWriteDeadline bounds what writes.
func (c *ClientConn) SetWriteDeadline(t balance.Instant) { c.nc.SetWriteDeadline(t) }

// Cut ends the exchange, and the connection with it, at once.
func (c *ClientConn) Cut() { c.nc.Abort() }

// Unprocessed is false: what has left may have been acted on, and nobody can say
// that it was not.
func (c *ClientConn) Unprocessed() bool { return false }

// Refusable is false for the same reason.
func (c *ClientConn) Refusable() bool { return false }

// Unacked reports that the backend's host has not acknowledged what was sent.
func (c *ClientConn) Unacked() bool { return c.nc.Unacked() }

// Conn leads to the connection.
func (c *ClientConn) Conn() *netconn.Conn { return c.nc }

// WriteHead begins an exchange and writes the head and the first piece of
// content in one write.
func (c *ClientConn) WriteHead(r *message.Request, body []byte, end bool) error {
	c.out.reset()
	if !c.in.empty() {
		c.broken = true
		return errUnasked
	}
	c.in.release()
	c.in.done.Store(false)
	c.again, c.used = c.used, true
	c.upgrade, c.started, c.final, c.close, c.interims = r.WebSocket, false, false, false, 0
	kind := r.Body
	if kind == message.Streamed {
		kind = message.Chunked
	}
	by := c.awaitBy
	c.awaitBy, c.early = 0, nil
	if by != 0 && c.whole(kind, r.ContentLength, body, end) {
		return c.sendAndAwait(r, kind, body, by)
	}
	buf := writeBuffers.Get().(*[writeSize]byte)
	err := c.out.begin(AppendRequest(buf[:0], r), kind, r.ContentLength, body, end)
	writeBuffers.Put(buf)
	return err
}

// AwaitBy allows the next WriteHead to wait until then for the first bytes of
// the answer, which saves a read where the request is small and leaves whole.
// ReadHead goes on from there; what became of the writing is not affected.
func (c *ClientConn) AwaitBy(t balance.Instant) { c.awaitBy = t }

// whole reports that the request is complete with the piece, small, and on a
// plain connection.
func (c *ClientConn) whole(kind message.Body, length int64, body []byte, end bool) bool {
	if len(body) > smallRead || !c.nc.Spliceable() {
		return false
	}
	return kind == message.NoBody || kind == message.Sized && end && int64(len(body)) == length
}

// sendAndAwait writes a whole request and waits for the answer. The request lies
// in the buffer that the answer is then read into.
func (c *ClientConn) sendAndAwait(r *message.Request, kind message.Body, body []byte, by balance.Instant) error {
	buf := takeHeadBuffer()
	if kind == message.NoBody {
		body = nil
	}
	req := append(AppendRequest(buf[:0], r), body...)
	o := &c.out
	o.started, o.ended, o.kind, o.left = true, true, kind, 0
	if len(req) > len(buf) { // it has moved to memory of its own
		giveBuffer(buf)
		return o.write(req, nil)
	}
	c.nc.SetReadDeadline(by)
	sent, n, err := c.nc.SendInto(buf, len(req), nil)
	o.sent = int64(sent)
	switch {
	case sent < len(req) && (err == nil || isTimeout(err)):
		err = o.write(req[sent:], nil)
	case sent == len(req):
		if n > 0 {
			c.in.buf, c.in.r, c.in.w, c.in.tried = buf, 0, n, n
			return nil
		}
		if err != nil && !isTimeout(err) {
			c.early = err
		}
		err = nil
	}
	o.torn = o.torn || err != nil
	giveBuffer(buf)
	return err
}

// WriteBody writes a piece of content at once; with end it is the last one.
func (c *ClientConn) WriteBody(p []byte, end bool) error { return c.out.piece(p, end) }

// WriteTrailers ends a chunked request with trailers.
func (c *ClientConn) WriteTrailers(t *message.Fields) error { return c.out.trailers(t) }

// BytesWritten is what left since WriteHead began, also by failed writes.
func (c *ClientConn) BytesWritten() int64 { return c.out.sent }

// BodySpace reports how many bytes of a Sized request's content may be put on
// the connection directly; BodyMoved must be told of them.
func (c *ClientConn) BodySpace() (int64, bool) { return c.out.space() }

// BodyMoved notes that n bytes of content were put on the connection.
func (c *ClientConn) BodyMoved(n int64) { c.out.moved(n) }

// ReadHead reads the next head, interim (1xx) or final, into r; r borrows from
// the connection until the next call or the end of the exchange. A timeout
// (os.ErrDeadlineExceeded) is resumable. io.EOF: the backend closed without a
// byte of answer. *Error: the answer is malformed (bad_response) or ended
// within its head (reset_before_response).
func (c *ClientConn) ReadHead(r *message.Response, toHEAD bool, deadline balance.Instant) error {
	if c.final {
		return errOrder
	}
	c.nc.SetReadDeadline(deadline)
	limit := c.lim.headerBytes()
	for {
		if !c.in.empty() {
			c.started = true
			n, err := ParseResponse(c.in.buffered(), &c.lim, r, toHEAD)
			if err == nil && n > 0 {
				err = c.gotHead(r, n)
			}
			if err != nil {
				c.broken = true
				return err
			}
			if n > 0 {
				return nil
			}
		}
		if err := c.moreHead(limit); err != nil {
			return err
		}
	}
}

// moreHead reads until parsing again is worth it.
func (c *ClientConn) moreHead(limit int) error {
	for {
		worth, err := false, c.early
		if err == nil {
			worth, err = c.in.more(limit)
		}
		c.early = nil
		if worth {
			return nil
		}
		if err == nil {
			continue
		}
		c.started = c.started || !c.in.empty()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			c.broken = true
			if c.started {
				return &Error{Reason: message.ResetBeforeResponse, Detail: "connection closed within the head", Err: io.ErrUnexpectedEOF}
			}
			return io.EOF
		}
		if !isTimeout(err) {
			c.broken = true
		}
		return err
	}
}

// gotHead takes a parsed head off the buffer.
func (c *ClientConn) gotHead(r *message.Response, n int) error {
	switch {
	case r.Status == 101:
		if !c.upgrade || !r.WebSocket {
			return errNotAskedUp
		}
	case r.Status < 200:
		if c.interims++; c.interims > maxInterim {
			return errInterims
		}
		c.close = c.close || r.Close
		c.in.r += n
		return nil
	}
	if c.again && c.secondAnswer(r, n) {
		return errSecond
	}
	c.final = true
	c.close = c.close || r.Close
	c.in.begin(n, r.Body, r.ContentLength)
	return nil
}

// secondAnswer reports that another answer came with this one, whose head of n
// bytes is buffered. On a connection that was used before, the first of them may
// have been sent before the request, and the client must get neither: what a
// backend sends between two requests that follow each other closely is not
// looked for (sendAndAwait waits without looking first) and mostly comes to light
// like this, when the answer that was asked for arrives behind it. On a new
// connection the first answers the request, and the second ends the connection.
func (c *ClientConn) secondAnswer(r *message.Response, n int) bool {
	rest := c.in.buffered()[n:]
	switch r.Body {
	case message.NoBody:
	case message.Sized:
		if int64(len(rest)) <= r.ContentLength {
			return false
		}
		rest = rest[r.ContentLength:]
	default:
		return false
	}
	// A late 1xx is a known slip, and takes no answer's place.
	return len(rest) > 9 && bytes.HasPrefix(rest, []byte("HTTP/1.")) && rest[9] != '1'
}

// ResponseStarted reports that a byte of an answer has arrived.
func (c *ClientConn) ResponseStarted() bool { return c.started }

// BodyDone reports that no (more) content is to be read, as far as that is
// known without reading.
func (c *ClientConn) BodyDone() bool {
	return c.final && c.in.ready() && c.in.pending == nil && c.in.fault == nil
}

// Buffered reports that ReadBody would return without waiting.
func (c *ClientConn) Buffered() bool { return c.final && c.in.ready() }

// Trailers returns the answer's trailer fields, complete after io.EOF.
func (c *ClientConn) Trailers() *message.Fields { return c.in.chunks.Trailers() }

// ReadBody returns the next piece of content, borrowed until the next call, and
// io.EOF after the last. Content that ends early is a *Error of reason
// reset_mid_response, bad framing one of bad_response. It waits until the read
// deadline of Conn; such a timeout is resumable.
func (c *ClientConn) ReadBody() ([]byte, error) {
	if !c.final {
		return nil, errOrder
	}
	for {
		p, err := c.in.next()
		if c.in.fault != nil && p == nil {
			c.broken = true
			err = c.in.fault.fromBackend()
		}
		if p != nil || err != nil {
			return p, err
		}
		if err := c.in.moreBody(c.in.readLimit()); err != nil {
			return nil, c.bodyFault(err)
		}
	}
}

// bodyFault judges an error while content was expected.
func (c *ClientConn) bodyFault(err error) error {
	switch {
	case isTimeout(err):
		return err
	case errors.Is(err, io.EOF) && c.in.kind == message.UntilClose && !c.nc.Truncated():
		c.in.done.Store(true)
		return io.EOF
	}
	c.broken = true
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Error{Reason: message.ResetMidResponse, Detail: "connection closed within the content", Err: err}
}

// Spliceable reports how many bytes of content are still to come, raw on a
// plain connection and none of them buffered; -1 when they end with it.
func (c *ClientConn) Spliceable() (int64, bool) {
	if !c.final {
		return 0, false
	}
	return c.in.raw()
}

// Spliced notes that n bytes of content were moved from the connection. Content
// until close is over when ReadBody has said io.EOF.
func (c *ClientConn) Spliced(n int64) { c.in.skipped(n) }

// Reusable reports that the message is complete both ways, that no close was
// announced and that no stray byte has arrived. Call Release before keeping
// the connection.
func (c *ClientConn) Reusable() bool {
	return c.out.started && c.out.ended && !c.out.torn && c.final && c.in.done.Load() && c.in.fault == nil &&
		!c.close && !c.broken && !c.upgrade && c.in.empty()
}

// Release gives the buffers back; an idle connection holds none. What ReadHead
// returned is no longer valid.
func (c *ClientConn) Release() {
	if c.in.empty() {
		c.in.release()
	}
}

// Takeover gives the connection away after a 101, with the bytes that were read
// ahead. The head is not valid any more: the buffer is given back.
func (c *ClientConn) Takeover() (nc *netconn.Conn, buffered []byte) {
	c.broken = true
	c.nc.SetReadDeadline(0)
	c.nc.SetWriteDeadline(0)
	ahead := c.in.takeAhead()
	c.in.release()
	return c.nc, ahead
}

// Close closes the connection and gives the buffers back. No other goroutine
// may be using it; to interrupt one, abort Conn.
func (c *ClientConn) Close() {
	c.broken = true
	_ = c.nc.Close() // the connection is being thrown away
	c.in.release()
}

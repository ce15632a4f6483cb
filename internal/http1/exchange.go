// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// What has been done about a client that waits for 100 Continue.
const (
	askedNothing uint8 = iota // it does not wait
	askedPending              // it waits
	askedSent                 // it was told to go on, or went on by itself
	askedNever                // it got a final answer instead
)

// ServerConn is the client's half of one exchange: it satisfies l7.Downstream.
// It is valid until the Handler returns. One goroutine uses it, but ReadBody,
// BodyDone and Trailers may belong to a second one; CancelRead and Abort may be
// called by any.
type ServerConn struct {
	link      *link
	nc        *netconn.Conn
	set       *Settings // in force for this exchange; written by the goroutine that answers, between two
	headLimit int       // of set

	// Owned by the goroutine that answers.
	req         message.Request
	out         outgoing
	scratch     message.Response // interim and error answers
	headRequest bool
	idleUntil   balance.Instant
	taken       bool
	held        []byte      // a whole answer that leaves when the next request is awaited, see hold
	nowIdle     func() bool // becameIdle, bound once

	// Owned by the goroutine that reads content.
	in        incoming
	allowance time.Duration // how long content may still be waited for
	waitFrom  balance.Instant
	received  int64
	grown     int64 // of the head, see mayGrow

	mustClose atomic.Bool // the connection ends with this exchange
	cancelled atomic.Bool
	paused    atomic.Bool // see PauseRead
	aborted   atomic.Bool

	mu    sync.Mutex // guards asked, and the writing of 100 Continue
	asked uint8
}

var conns = sync.Pool{New: func() any {
	c := new(ServerConn)
	c.nowIdle = c.becameIdle
	return c
}}

func (c *ServerConn) attach(l *link) {
	c.link, c.nc = l, l.nc
	c.in.attach(l.nc)
	c.out.nc = l.nc
	c.obey()
	c.out.reset()
	c.idleUntil, c.taken = 0, false
	c.scratch.Fields.Reset(nil)
	c.mustClose.Store(false)
	c.cancelled.Store(false)
	c.paused.Store(false)
	c.aborted.Store(false)
}

// obey takes the settings that are in force now.
func (c *ServerConn) obey() {
	if s := c.link.srv.now(); s != c.set {
		c.set, c.headLimit, c.out.stall = s, s.Limits.headerBytes(), s.Timeouts.Write
		if c.nc != nil {
			c.nc.SetLeast(s.Timeouts.least())
		}
		if c.out.stall <= 0 && c.nc != nil {
			c.nc.SetWriteDeadline(0) // that of an earlier write is nobody's any more
		}
	}
}

// detach gives the ServerConn back; nothing of the connection is kept.
func (c *ServerConn) detach() {
	c.in.release()
	c.shrunk()
	c.dropHeld()
	fields, scratch := c.req.Fields, c.req.Scratch // keep their memory
	fields.Reset(nil)
	c.req = message.Request{Fields: fields, Scratch: scratch}
	c.link, c.nc, c.in.nc, c.out.nc, c.set = nil, nil, nil, nil, nil
	conns.Put(c)
}

// Request is the parsed head; its fields may be edited in place.
func (c *ServerConn) Request() *message.Request { return &c.req }

// Info is what Serve was given.
func (c *ServerConn) Info() any { return c.link.info }

// Conn leads to the connection.
func (c *ServerConn) Conn() *netconn.Conn { return c.nc }

// BytesIn and BytesOut count the exchange's bytes on the connection, heads and
// framing included.
func (c *ServerConn) BytesIn() int64  { return c.received }
func (c *ServerConn) BytesOut() int64 { return c.out.sent }

// BodyDone reports that nothing (more) is to be read.
func (c *ServerConn) BodyDone() bool { return c.in.done.Load() }

// Trailers returns the request's trailer fields, complete once ReadBody has
// returned io.EOF or BodyDone reports true.
func (c *ServerConn) Trailers() *message.Fields { return c.in.chunks.Trailers() }

// errNotAsked is content of a client that was never told to send it.
var errNotAsked = errors.New("http1: content was not asked for")

// errCancelled and errPaused are what ReadBody returns after CancelRead and PauseRead.
var (
	errCancelled = errors.New("http1: reading was cancelled")
	errPaused    = errors.New("http1: reading is paused")
)

// ReadBody returns the next piece of content, borrowed until the next call, and
// io.EOF after the last. The first call tells a client that waits for it to go
// on. A *Error is the client's bad framing or its slowness (body_timeout); any
// other error means that the client is gone.
func (c *ServerConn) ReadBody() ([]byte, error) {
	for {
		p, err := c.in.next()
		if p != nil || err != nil {
			if err != nil && !errors.Is(err, io.EOF) {
				c.mustClose.Store(true)
			} else if c.req.ExpectContinue {
				c.wentOn()
			}
			return p, err
		}
		if err := c.goOn(); err != nil {
			return nil, err
		}
		if err := c.readMore(); err != nil {
			if err != errPaused { //nolint:errorlint // it is never wrapped
				c.mustClose.Store(true)
			}
			return nil, err
		}
	}
}

// wentOn notes that a client sends its content without having been told to.
func (c *ServerConn) wentOn() {
	c.mu.Lock()
	if c.asked == askedPending {
		c.asked = askedSent
	}
	c.mu.Unlock()
}

// goOn sends 100 Continue where it is due.
func (c *ServerConn) goOn() error {
	if !c.req.ExpectContinue {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.asked {
	case askedPending:
		c.asked = askedSent
		_, err := writeAll(c.nc, c.set.Timeouts.Write, continueLine, nil)
		return err
	case askedNever:
		return errNotAsked
	}
	return nil
}

var continueLine = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// readMore reads content under the minimum rate: each wait uses up the
// allowance, each byte earns some back, never more than the grace at the start.
func (c *ServerConn) readMore() error {
	c.armBody()
	if err := c.interrupted(); err != nil { // after arming, so that CancelRead is not overruled
		return err
	}
	err := c.in.moreBody(c.in.readLimit())
	n := c.in.w - c.in.r
	c.received += int64(n)
	c.earn(int64(n))
	switch {
	case err == nil:
		return nil
	case c.interrupted() != nil && (c.cancelled.Load() || isTimeout(err)):
		return c.interrupted()
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case isTimeout(err):
		return errNoProgress
	}
	return err
}

// interrupted says why nothing is to be waited for; nil: it is.
func (c *ServerConn) interrupted() error {
	switch {
	case c.cancelled.Load():
		return errCancelled
	case c.paused.Load():
		return errPaused
	}
	return nil
}

// armBody sets the read deadline to what the allowance leaves.
func (c *ServerConn) armBody() {
	if c.set.Timeouts.BodyMinRate <= 0 {
		c.nc.SetReadDeadline(0)
		return
	}
	c.waitFrom = clock.Now()
	c.nc.SetReadDeadline(c.waitFrom.Add(max(c.allowance, time.Millisecond)))
}

// earn books a wait that ended with n bytes.
func (c *ServerConn) earn(n int64) {
	t := &c.set.Timeouts
	if t.BodyMinRate <= 0 {
		return
	}
	c.allowance -= clock.Now().Sub(c.waitFrom)
	if n >= t.BodyMinRate*int64(1+t.BodyGrace/time.Second) {
		c.allowance = t.BodyGrace
		return
	}
	c.allowance = min(c.allowance+time.Duration(n)*time.Second/time.Duration(t.BodyMinRate), t.BodyGrace)
}

// CancelRead makes a ReadBody that waits, and every later one that would, end
// with an error. The connection is closed after the exchange.
func (c *ServerConn) CancelRead() {
	c.mustClose.Store(true)
	c.cancelled.Store(true)
	c.nc.SetReadDeadline(clock.Now())
}

// PauseRead makes a ReadBody that waits, and those that would, return an error, until
// ResumeRead; a splice ends with a timeout. Nothing is lost by it.
func (c *ServerConn) PauseRead() {
	c.paused.Store(true)
	c.nc.SetReadDeadline(clock.Now())
}

// ResumeRead takes PauseRead back. Nobody may be reading.
func (c *ServerConn) ResumeRead() { c.paused.Store(false) }

// Spliceable reports how many bytes of content are still to come if they lie
// raw on a plain connection; a client that waits is told to go on. The read
// deadline is set for the first wait; Spliced moves it.
func (c *ServerConn) Spliceable() (remaining int64, ok bool) {
	if remaining, ok = c.in.raw(); !ok || c.goOn() != nil {
		return 0, false
	}
	c.armBody()
	return remaining, c.interrupted() == nil
}

// Spliced notes that n bytes of content were moved from the connection. Time
// that the other side took to accept them cannot be told from time spent
// waiting; where more passed than could be waited, the client gets half the
// grace anew.
func (c *ServerConn) Spliced(n int64) {
	c.in.skipped(n)
	c.received += n
	c.earn(n)
	if c.allowance <= 0 {
		c.allowance = c.set.Timeouts.BodyGrace / 2
	}
	c.armBody()
	if c.interrupted() != nil {
		c.nc.SetReadDeadline(clock.Now())
	}
}

// MarkClose makes the answer say Connection: close, and closes after it.
func (c *ServerConn) MarkClose() { c.mustClose.Store(true) }

// Abort resets the connection: the client must not take what it got for whole.
func (c *ServerConn) Abort() {
	if !c.aborted.Swap(true) {
		_ = c.nc.Reset() // nothing can be done about a failed reset
	}
}

// Takeover gives the connection away, with the bytes that were read ahead. It
// is closed when the Handler returns; until then Request stays valid.
func (c *ServerConn) Takeover() (nc *netconn.Conn, buffered []byte) {
	c.taken = true
	c.link.age.taken.Store(true)
	c.nc.SetReadDeadline(0)
	c.nc.SetWriteDeadline(0)
	c.nc.SetLeast(0)
	return c.nc, c.in.takeAhead()
}

// Detach lets a connection that was taken over outlive the Handler, which calls it,
// and returns what ends it, to be called once by whoever has it then: until that the
// ServerConn is valid. What has lasted until here has grown a stack that what is to
// come may not need.
func (c *ServerConn) Detach() (over func()) {
	l := c.link
	l.gone = true
	return func() {
		l.nc.Close()
		l.srv.remove(l)
		c.detach()
	}
}

// Slim makes the head of a connection that was taken over, perhaps for hours, hold
// no more memory than it needs. Slices of its text that were kept elsewhere are to be
// named; others are not valid any more.
func (c *ServerConn) Slim(kept ...*[]byte) {
	from, n := c.in.head()
	to := append(make([]byte, 0, n), from[:n]...)
	c.req.Move(from, to)
	for _, p := range kept {
		message.Move(p, from, to)
	}
	c.in.release()
}

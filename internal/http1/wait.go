// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

type waitResult uint8

const (
	waitRequest waitResult = iota // a head has been read
	waitClosed                    // nothing (more) will come, or it has been refused
	waitParked                    // idle: give up the goroutine
	waitOther                     // it speaks another version
)

// errNoRequest is a connection on which nothing was ever sent.
var (
	errNoRequest  = &Error{Reason: message.HeaderTimeout, Detail: "no request was sent", Silent: true}
	errHalfHead   = &Error{Reason: message.HeaderTimeout, Detail: "the head took too long"}
	errNoProgress = &Error{Reason: message.BodyTimeout, Detail: "the content came too slowly"}
	errShort      = &Error{Reason: message.LocalMemory, Detail: "no memory left for a larger head"}
)

// awaitRequest waits for a request and reads its head.
func (c *ServerConn) awaitRequest() waitResult {
	var until balance.Instant // for the whole head; 0 none
	if c.in.empty() {
		r := c.awaitBytes()
		if r != waitRequest {
			return r
		}
		if c.link.first.Load() {
			until = c.idleUntil // from accept
		}
	} else {
		c.link.state.Store(stateActive)
	}
	return c.readHead(until)
}

// awaitBytes waits for the first bytes of a request, holding no buffer.
func (c *ServerConn) awaitBytes() waitResult {
	l, s := c.link, c.link.srv
	c.obey()
	now := clock.Now()
	l.quiet.Store(int64(now))
	limit := c.set.Timeouts.Idle
	if l.first.Load() {
		limit = c.set.Timeouts.Header
	}
	c.idleUntil = 0
	if limit > 0 {
		c.idleUntil = now.Add(limit)
	}
	wake := c.idleUntil
	park := s.Park != nil && c.nc.Spliceable()
	if park {
		after := c.set.Timeouts.ParkAfter
		if after <= 0 {
			after = defaultParkAfter
		}
		if t := now.Add(after); wake == 0 || t < wake {
			wake = t
		} else {
			park = false
		}
	}
	if c.held != nil {
		switch c.sendHeld(holdUntil(wake, now)) {
		case heldOver:
			return waitClosed
		case heldBytes:
			return c.wakeUp()
		}
	}
	c.nc.SetReadDeadline(wake)
	l.state.Store(stateIdle)
	if s.drained.Load() && !l.first.Load() && c.nc.Peek() != netconn.HasBytes {
		return waitClosed // a request that has arrived already is answered
	}
	_, err := c.in.more(c.headLimit)
	if c.in.empty() {
		if isTimeout(err) {
			if park {
				return waitParked
			}
			if l.first.Load() && s.OnBadRequest != nil {
				s.OnBadRequest(c, errNoRequest)
			}
		}
		return waitClosed
	}
	return c.wakeUp()
}

// wakeUp makes an idle connection an active one, unless Drain was first.
func (c *ServerConn) wakeUp() waitResult {
	if !c.link.state.CompareAndSwap(stateIdle, stateActive) {
		return waitClosed
	}
	return waitRequest
}

// holdFor is how long a connection that awaits its next request keeps the buffer
// of the last answer. A busy one never waits so long; of clients that come by
// the thousand, ask once and stay, each would add its buffer to the pool.
const holdFor = 50 * time.Millisecond

// holdUntil is until when a wait may hold a buffer.
func holdUntil(wake, now balance.Instant) balance.Instant {
	if t := now.Add(holdFor); wake == 0 || t < wake {
		return t
	}
	return wake
}

// readHead parses what is buffered and reads on until the head is complete.
// until is 0 where the time starts with the first byte, which is there.
func (c *ServerConn) readHead(until balance.Instant) waitResult {
	c.obey()
	timed, ended := false, false
	for {
		n, e := parseRequest(c.in.buffered(), &c.set.Limits, &c.req)
		if e != nil {
			switch {
			case c.isHTTP2():
				return waitOther
			case c.link.first.Load() && beginsProxy(c.in.buffered()):
				return c.refuseSilently(ErrProxyHeader)
			case e == errVersion && c.mayBeOther() && !namesHTTP(c.in.buffered()):
				return c.refuseSilently(errForeign)
			}
			return c.refuse(e)
		}
		if n > 0 {
			c.beginExchange(n)
			return waitRequest
		}
		if ended {
			return waitClosed
		}
		if !timed {
			if t := c.set.Timeouts.Header; until == 0 && t > 0 {
				until = clock.Now().Add(t)
			}
			c.nc.SetReadDeadline(until)
			timed = true
		}
		for {
			if c.in.full() && !c.mayGrow() {
				return c.refuse(errShort)
			}
			worth, err := c.in.more(c.headLimit)
			if err != nil && isTimeout(err) {
				if b := c.in.buffered(); string(b) == "\r" || string(b) == "\r\n" {
					return waitClosed // an idle connection but for a stray line end
				}
				return c.refuse(errHalfHead)
			}
			if worth {
				break
			}
			if errors.Is(err, io.EOF) { // the client sends no more: look once again at what came
				ended = true
				break
			}
			if err != nil {
				return waitClosed // the client left
			}
		}
	}
}

// preface2 is what a client begins with that knows the server to speak HTTP/2; up
// to its first line it is a head that no server of HTTP/1.1 takes.
const preface2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// isHTTP2 reports that a plain connection begins so. It is asked for heads that
// are refused.
func (c *ServerConn) isHTTP2() bool {
	b := c.in.buffered()
	n := min(len(b), len(preface2))
	return c.mayBeOther() && string(b[:n]) == preface2[:n]
}

// mayBeOther reports that nothing says yet that the client speaks HTTP/1.
func (c *ServerConn) mayBeOther() bool {
	return c.set.HTTP2 && c.link.srv.HTTP2 != nil && c.link.first.Load() && !c.link.tls
}

// errForeign is what neither version is: an answer would be in one that the
// client has not shown to speak (RFC 9113 section 3.4 wants the end).
var errForeign = &Error{Reason: message.BadRequest, Detail: "neither HTTP/1 nor the preface of HTTP/2", Silent: true}

// ErrProxyHeader is what a connection is closed for that begins with a PROXY header
// where none is read: in version 1 it would be a strange request line, and what it
// says of the client is nobody's to believe.
var ErrProxyHeader = &Error{Reason: message.BadRequest, Detail: "a PROXY header where none is expected", Silent: true}

// beginsProxy reports that a connection begins as a PROXY header does. It is asked
// for heads that are refused.
func beginsProxy(b []byte) bool {
	for _, p := range [...]string{"PROXY TCP", "PROXY UNKNOWN", "\r\n\r\n\x00\r\nQUIT\n"} {
		if n := min(len(b), len(p)); n > 4 && string(b[:n]) == p[:n] {
			return true
		}
	}
	return false
}

// namesHTTP reports that a first line says of itself to be HTTP, if in a wrong way
// ("GET / http/1.1"): whoever sent it is told so.
func namesHTTP(b []byte) bool {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return bytes.Contains(bytes.ToUpper(line), []byte("HTTP/"))
}

func (c *ServerConn) refuseSilently(e *Error) waitResult {
	if f := c.link.srv.OnBadRequest; f != nil {
		f(c, e)
	}
	return waitClosed
}

// beginExchange readies everything for the request whose head takes n bytes.
func (c *ServerConn) beginExchange(n int) {
	r := &c.req
	r.TLS = c.link.tls
	if c.link.first.Load() {
		c.link.first.Store(false)
	}
	c.in.begin(n, r.Body, r.ContentLength)
	c.out.reset()
	c.allowance = c.set.Timeouts.BodyGrace
	c.received = int64(n)
	c.link.age.requests++
	c.mustClose.Store(r.Close)
	c.headRequest = string(r.Method) == "HEAD"
	c.asked = askedNothing
	if r.ExpectContinue {
		c.asked = askedPending
	}
}

// mayGrow reports that there is memory for the next larger buffer of a head.
func (c *ServerConn) mayGrow() bool {
	s, size := c.link.srv, int64(c.in.grow(c.headLimit))
	if s.isShort() || !s.Budget.Take(size) {
		return false
	}
	c.grown += size
	return true
}

// shrunk gives back what mayGrow took: the head is over.
func (c *ServerConn) shrunk() {
	if c.grown > 0 {
		c.link.srv.Budget.Give(c.grown)
		c.grown = 0
	}
}

// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// armRead sets the deadline of the next wait. It is moved by others as well.
func (c *ClientConn) armRead() {
	c.mu.Lock()
	c.armLocked()
	c.mu.Unlock()
}

func (c *ClientConn) armLocked() {
	if c.startBy != 0 {
		c.nc.SetReadDeadline(c.startBy)
		return
	}
	by := c.idleEnd()
	switch {
	case c.endBy != 0:
		by = c.endBy
	case c.running.Load() == 0 && c.leaving != nil:
		by = clock.Now()
	case c.set.Ping <= 0:
	case c.pingAt != 0:
		by = earlier(by, c.pingAt.Add(c.set.Ping))
	default:
		by = earlier(by, c.heardAt.Add(c.pingDelay()))
	}
	c.nc.SetReadDeadline(by)
}

// idleEnd is when the connection ends unless a stream is opened; 0: not. Called
// under mu.
func (c *ClientConn) idleEnd() balance.Instant {
	if c.running.Load() > 0 {
		return 0
	}
	by := c.set.Dies
	if d := time.Duration(c.keep.Load()); d > 0 {
		by = earlier(by, c.idleSince.Add(d))
	}
	return by
}

// pingDelay is after what silence the next PING is sent. Servers of gRPC end
// connections whose client pings more than twice within five minutes in which
// they send nothing ("too_many_pings"), so after two PINGs there is a pause.
//
// Worked example, with Ping 10s: a backend falls silent at 0. PING at 10s; it is
// answered at once. PING at 30s; no answer until 40s: the connection is over.
func (c *ClientConn) pingDelay() time.Duration {
	switch c.pings {
	case 0:
		return c.set.Ping
	case 1:
		return 3 * c.set.Ping
	default:
		return 3*c.set.Ping + time.Duration(c.pings-1)*(5*time.Minute+c.set.Ping)
	}
}

// healthPing is the content of PINGs that ask whether somebody is there.
var healthPing = [8]byte{'w', 'e', 'i', 'r', 'p', 'i', 'n', 'g'}

// isLate says what it means that a deadline has passed: the end, or nothing.
func (c *ClientConn) isLate() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := func(t balance.Instant) bool { return t != 0 && c.now >= t }
	switch {
	case c.startBy != 0:
		return ErrNoHello
	case c.endBy != 0:
		return c.writeFault
	case c.running.Load() == 0 && (c.leaving != nil || passed(c.idleEnd())):
		return errGone
	case c.set.Ping <= 0:
	case c.pingAt != 0:
		if c.got > c.pingAt {
			c.pingAt = c.got // in the midst of a frame
		} else if passed(c.pingAt.Add(c.set.Ping)) {
			return ErrSilent
		}
	case passed(c.heardAt.Add(c.pingDelay())):
		c.pings++
		c.pingAt = c.now
		c.out = appendPing(c.output.room(), false, healthPing)
		c.kickLocked()
	}
	return nil
}

// lost notes that nothing can be written any more. What the backend has said
// before that may still be read, above all which requests it has processed.
func (c *ClientConn) lost(err error) {
	c.mu.Lock()
	c.endBy = clock.Now().Add(goodbyeTime)
	if c.leaving == nil {
		c.leaving = err
	}
	c.setRoom()
	c.nc.SetReadDeadline(c.endBy)
	for _, s := range c.streams {
		s.wakeWriter()
	}
	c.mu.Unlock()
	c.over(err, false)
}

// end ends the connection.
func (c *ClientConn) end(err error) {
	c.in.release()
	var ce *ConnError
	polite := errors.As(err, &ce)
	c.mu.Lock()
	idle := time.Duration(0)
	if c.running.Load() == 0 {
		idle = max(c.now.Sub(c.idleSince), 1)
	}
	if polite && c.writeFault == nil {
		detail := ce.Detail
		if ce == errGone {
			detail = ""
		}
		c.out = appendGoAway(c.output.room(), 0, ce.Code, detail)
		c.stallBy = goodbyeTime
	}
	away := c.away
	c.mu.Unlock()
	switch cause := answerFault(err); {
	case away != nil && !polite && !errors.Is(err, ErrSilent):
		c.kill(fmt.Errorf("%w: %w", cause, away))
	default:
		c.kill(cause)
	}
	c.overAfter(err, idle, !polite && !errors.Is(err, ErrSilent) && !c.nc.Aborted())
	if polite {
		c.nc.SetWriteDeadline(clock.Now().Add(goodbyeTime))
		_ = c.flushAll() // it is over either way
	}
	_ = c.nc.Close() // as above
	c.settle()
}

// over tells the owner, once, that no further stream can be opened.
func (c *ClientConn) over(err error, closed bool) {
	c.mu.Lock()
	idle := time.Duration(0)
	if c.running.Load() == 0 {
		idle = max(clock.Now().Sub(c.idleSince), 1)
	}
	c.mu.Unlock()
	c.overAfter(err, idle, closed)
}

func (c *ClientConn) overAfter(err error, idle time.Duration, closed bool) {
	c.mu.Lock()
	told := c.told
	c.told = true
	if c.leaving == nil {
		c.leaving = errLeft
	}
	c.setRoom()
	c.mu.Unlock()
	if !told {
		c.owner.Over(c, err, idle, closed)
	}
}

// kill ends every stream, for the reason given.
func (c *ClientConn) kill(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		c.fault = cause
	}
	for _, s := range c.streams {
		s.dieLocked(cause)
	}
	clear(c.streams)
	c.setRoom()
}

// answerFault is the fault of the connection as its exchanges see it: what the
// backend may not do is a bad answer. The end of the connection is none of content.
func answerFault(err error) error {
	var ce *ConnError
	switch {
	case errors.As(err, &ce) && ce != errGone:
		return &http1.Error{Reason: message.BadResponse, Detail: ce.Detail, Err: err}
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// ErrNoHello is a backend that has not answered the client's hello in time.
var ErrNoHello = errors.New("http2: the backend did not say hello in time")

// IsGoAway reports that a connection ended because the backend has said so before.
func IsGoAway(err error) bool {
	var g *goAway
	return errors.As(err, &g)
}

// badAnswer is an answer that is malformed (RFC 9113 section 8.1.1).
func badAnswer(detail string) *http1.Error {
	return &http1.Error{Reason: message.BadResponse, Detail: detail}
}

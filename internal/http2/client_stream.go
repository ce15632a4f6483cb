// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// ClientStream is the backend's half of one exchange: it satisfies l7.Upstream.
// It is valid until Done or Close. One goroutine uses it; while content is
// streamed, WriteBody, WriteTrailers and BytesWritten may belong to a second one;
// Cut and the deadlines may be set by any.
type ClientStream struct {
	conn *ClientConn // constant

	// Owned by the goroutine that writes.
	block []byte // header block that is being written
	kind  message.Body
	left  int64 // of a Sized request's content
	// trailing says that trailers may follow it.
	trailing bool
	tunnel   bool   // a WebSocket is asked for, see client_tunnel.go
	accept   string // what belongs to its key
	started  bool   // guarded by mu: a head has arrived; it stands here for its size
	first    bool   // of its connection

	// Guarded by the connection's mutex.
	stream
	open     bool  // until Done or Close
	closed   bool  // nothing more may be said of it to the backend
	noWrite  error // why no more can be written, where the answer is whole
	refused  bool  // the backend has said that it was not processed
	spoken   bool  // the backend has said something of it
	toHEAD   bool
	final    bool // the final head has arrived
	ready    bool // a head lies in res
	res      message.Response
	later    []*message.Response // those behind it
	interims int
	excess   string // what it is that more content came than may
	trailers message.Fields
	mark     int64 // how much had been written of the connection when the request began

	readBy, writeBy       balance.Instant
	readAlarm, writeAlarm alarm
}

var (
	errCut = errors.New("http2: the exchange was cut")
	// ErrNoMemory ends an exchange whose content weir has no memory for.
	ErrNoMemory = errors.New("http2: no memory left for content")
)

// newStream returns a stream without an id. Called under mu.
func (c *ClientConn) newStream() *ClientStream {
	var s *ClientStream
	if n := len(c.free); n > 0 {
		s = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		s = &ClientStream{conn: c}
		s.readWake, s.writeWake = make(chan struct{}, 1), make(chan struct{}, 1)
		s.readAlarm.wake, s.writeAlarm.wake = s.readWake, s.writeWake
	}
	s.first = c.nextID == 1 && c.running.Load() == 0
	s.open, s.id, s.local, s.remote, s.closed, s.dead, s.noWrite = true, 0, false, false, false, nil, nil
	s.refused, s.spoken, s.started, s.final, s.ready, s.toHEAD = false, false, false, false, false, false
	s.later, s.interims, s.unwanted, s.tunnel, s.accept = nil, 0, false, false, ""
	s.sized, s.expect, s.received, s.excess = false, 0, 0, ""
	s.trailers.Reset(nil)
	s.window, s.send = newRecvWindow(c.window), sendWindow(c.initial)
	s.readBy, s.writeBy, s.mark = 0, 0, 0
	drain(s.readWake)
	drain(s.writeWake)
	return s
}

// dieLocked ends a stream for a reason. Content of an answer that is not whole is
// dropped. Called under mu.
func (s *ClientStream) dieLocked(why error) {
	switch {
	case s.dead != nil:
	case s.remote && s.final && !errors.Is(why, errCut):
		if s.noWrite == nil {
			s.noWrite = why
		}
	default:
		s.dead = why
		s.discard(s.conn.k.Budget)
	}
	s.wakeReader()
	s.wakeWriter()
}

// resetFault is what the backend's reset means at this moment.
func (s *ClientStream) resetFault(e *StreamError) error {
	reason := message.ResetBeforeResponse
	if s.final {
		reason = message.ResetMidResponse
	}
	return &http1.Error{Reason: reason, Detail: "RST_STREAM " + e.Code.String(), Err: e}
}

// endContent notes that the content has come to its end. Called under mu.
func (c *ClientConn) endContent(s *ClientStream) error {
	if bad := s.settleContent(); bad != nil {
		return c.breakLocked(s, bad)
	}
	return nil
}

func (s *ClientStream) settleContent() *http1.Error {
	if s.sized && s.expect != 0 {
		return badAnswer(errTooLittle.Detail)
	}
	s.remote = true
	s.wakeReader()
	return nil
}

// release gives the stream back. Called under mu, which it gives up.
func (s *ClientStream) release() {
	c := s.conn
	s.open = false
	s.discard(c.k.Budget)
	s.content.giveBack()
	c.unqueue(&s.sender)
	if s.id != 0 {
		delete(c.streams, s.id)
	}
	c.grantLocked() // what it was woken for may be another's
	s.id = 0
	if len(c.free) < c.set.MaxStreams && cap(s.block) <= 16<<10 {
		c.free = append(c.free, s)
	}
	idle := c.running.Add(-1) == 0
	over := idle && c.leaving != nil
	if idle {
		c.idleSince = clock.Now()
		if c.fault == nil {
			c.armLocked()
		}
	}
	write := len(c.out) > 0
	c.mu.Unlock()
	if write {
		c.kick()
	}
	if over {
		c.over(errLeft, false)
	}
	c.owner.Freed(c, idle)
}

// Done gives the stream back after a complete exchange.
func (s *ClientStream) Done() { s.Close() }

// Close ends the exchange: the backend hears of it unless it is complete.
func (s *ClientStream) Close() {
	c := s.conn
	c.mu.Lock()
	if !s.open {
		c.mu.Unlock()
		return
	}
	if s.dead == nil && !(s.local && s.remote) {
		c.resetLocked(s, CodeCancel)
	} else if s.dead == nil {
		c.calm.earn(earnAnswer)
	}
	s.release()
}

// Cut ends the exchange at once, and tells the backend.
func (s *ClientStream) Cut() {
	c := s.conn
	c.mu.Lock()
	if s.open && s.dead == nil {
		if !(s.local && s.remote) {
			c.resetLocked(s, CodeCancel)
		}
		s.dieLocked(errCut)
		c.kickLocked()
	}
	c.mu.Unlock()
}

// Reusable reports that the exchange is complete both ways.
func (s *ClientStream) Reusable() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dead == nil && s.noWrite == nil && s.local && s.remote && s.final
}

// Unprocessed reports that the backend has certainly not acted on the request.
func (s *ClientStream) Unprocessed() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.refused || s.mark == 0 || s.conn.writeFault != nil && s.mark > s.conn.taken
}

// Refusable is true: GOAWAY and REFUSED_STREAM say what was not processed.
func (s *ClientStream) Refusable() bool { return true }

// Reused reports that the connection has carried another request before.
func (s *ClientStream) Reused() bool { return !s.first }

// CutShort reports that the connection was ended by ClientConn.Cut.
func (s *ClientStream) CutShort() bool { return s.conn.cut.Load() }

// Unacked reports that the backend's host acknowledges nothing.
func (s *ClientStream) Unacked() bool { return s.conn.nc.Unacked() }

// ResponseStarted reports that the backend has said something of the request.
func (s *ClientStream) ResponseStarted() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.spoken
}

// BytesWritten is more than 0 when a byte of the request may have left.
func (s *ClientStream) BytesWritten() int64 {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.mark == 0 {
		return 0
	}
	return max(s.conn.taken-s.mark+1, 0)
}

// AwaitBy does nothing: the answer is read by the connection's own goroutine.
func (s *ClientStream) AwaitBy(balance.Instant) {}

// Release does nothing: buffers are the connection's.
func (s *ClientStream) Release() {}

// Conn is nil: the connection carries other exchanges, too.
func (s *ClientStream) Conn() *netconn.Conn { return nil }

// Spliceable is false: content is framed.
func (s *ClientStream) Spliceable() (int64, bool) { return 0, false }

// Spliced is not called.
func (s *ClientStream) Spliced(int64) {}

// BodySpace is false: content is framed.
func (s *ClientStream) BodySpace() (int64, bool) { return 0, false }

// BodyMoved is not called.
func (s *ClientStream) BodyMoved(int64) {}

// SetReadDeadline bounds the waiting for content.
func (s *ClientStream) SetReadDeadline(t balance.Instant) {
	s.conn.mu.Lock()
	s.readBy = t
	s.conn.mu.Unlock()
}

// SetWriteDeadline bounds what writes, also at this moment.
func (s *ClientStream) SetWriteDeadline(t balance.Instant) {
	s.conn.mu.Lock()
	s.writeBy = t
	s.conn.mu.Unlock()
	s.wakeWriter()
}

// ReadHead waits until the deadline for the next head, interim or final, and puts
// it into r. A timeout (os.ErrDeadlineExceeded) is resumable.
func (s *ClientStream) ReadHead(r *message.Response, _ bool, deadline balance.Instant) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.dead != nil:
			return s.dead
		case s.ready:
			*r, s.res = s.res, *r
			if s.ready = len(s.later) > 0; s.ready {
				s.res, s.later = *s.later[0], s.later[1:]
			}
			return nil
		}
		if err := s.readAlarm.wait(c, deadline); err != nil {
			return err
		}
	}
}

// ReadBody returns the next piece of content, borrowed until the next call, and
// io.EOF after the last. A timeout (os.ErrDeadlineExceeded) is resumable.
func (s *ClientStream) ReadBody() ([]byte, error) { return s.conn.readBody(s) }

// lacks implements bodyReader.
func (s *ClientStream) lacks() error {
	if s.remote {
		return io.EOF
	}
	return nil
}

// awaitContent implements bodyReader.
func (s *ClientStream) awaitContent() error { return s.readAlarm.wait(s.conn, s.readBy) }

// BodyDone reports that no (more) content is to be read.
func (s *ClientStream) BodyDone() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dead == nil && s.remote && s.content.first == nil
}

// Buffered reports that ReadBody would return without waiting.
func (s *ClientStream) Buffered() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dead != nil || s.remote || s.content.first != nil
}

// Trailers are complete after io.EOF, or once BodyDone reports true.
func (s *ClientStream) Trailers() *message.Fields { return &s.trailers }

// alarm ends a wait at a deadline. Its timer is left running when the wait ends
// before: waits are many and short, and timers that fire early are cheaper than
// timers that are set for each. Guarded by the connection's mutex.
type alarm struct {
	wake  chan struct{}
	timer *time.Timer
	at    balance.Instant // when it fires; it may have
}

// wait waits for a wake-up, at most until the deadline (0: for ever). Called under
// the connection's mutex, which it gives up meanwhile.
func (a *alarm) wait(c *ClientConn, by balance.Instant) error {
	if by != 0 {
		now := clock.Now()
		if now >= by {
			return os.ErrDeadlineExceeded
		}
		if a.at <= now || a.at > by { // none runs that fires in time
			a.at = by
			if a.timer == nil {
				a.timer = time.AfterFunc(by.Sub(now), func() { wake(a.wake) })
			} else {
				a.timer.Reset(by.Sub(now))
			}
		}
	}
	c.mu.Unlock()
	<-a.wake
	c.mu.Lock()
	return nil
}

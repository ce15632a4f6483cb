// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// ServerStream is the client's half of one exchange: it satisfies l7.Downstream.
// It is valid until the Handler returns. One goroutine uses it, but ReadBody,
// BodyDone and Trailers may belong to a second one; CancelRead and Abort may be
// called by any.
type ServerStream struct {
	conn *conn // constant
	info any

	// Written by the reader before the stream is served.
	set      *Settings
	req      message.Request
	text     []byte // of the request's pseudo-fields
	crumbs   []byte // of its cookies
	born     balance.Instant
	unpaced  bool // no minimum rate: written by who serves, before content is read
	tunnel   bool // a WebSocket is asked for, see server_tunnel.go
	trailers message.Fields

	// Owned by the goroutine that answers.
	scratch     message.Response // of answers to bad requests
	block       []byte           // header block that is being written
	started     bool
	headRequest bool
	left        int64 // content of the answer still to come; -1: not known
	trailing    bool  // it may be followed by trailers although it is known
	writeTimer  *time.Timer
	patience    time.Duration // see awaitRoom
	accept      string        // what the backend must say to a WebSocket

	// Owned by the goroutine that reads content.
	allowance time.Duration
	readTimer *time.Timer

	cancelled atomic.Bool
	sent      atomic.Int64

	// Guarded by the connection's mutex.
	stream
	bad     *http1.Error
	paused  bool // ReadBody does not wait
	asked   bool // the client waits for 100 Continue
	onLeave func()
}

// newStream opens a stream. Called under mu, by the reader.
func (c *conn) newStream(o opening) *ServerStream {
	var s *ServerStream
	if n := len(c.free); n > 0 {
		s = c.free[n-1]
		c.free[n-1] = nil
		c.free = c.free[:n-1]
		c.freed -= s.holds()
	} else {
		s = &ServerStream{conn: c, info: c.info}
		s.readWake = make(chan struct{}, 1)
		s.writeWake = make(chan struct{}, 1)
		if c.srv.Info != nil {
			s.info = c.srv.Info(c.info)
		}
	}
	s.set, s.born, s.tunnel, s.accept = c.set, c.now, false, ""
	s.trailers.Reset(nil)
	s.started, s.headRequest, s.left = false, false, 0
	s.allowance, s.patience, s.unpaced = c.set.Timeouts.BodyGrace, c.set.Timeouts.Write, false
	s.cancelled.Store(false)
	s.sent.Store(0)
	s.id, s.remote, s.local, s.dead, s.bad, s.unwanted = o.stream, o.end, false, nil, nil, false
	s.paused, s.asked, s.sized, s.expect, s.received = false, false, false, 0, 0
	s.window, s.send = newRecvWindow(c.window), sendWindow(c.initial)
	s.queued, s.onLeave = false, nil
	drain(s.readWake)
	drain(s.writeWake)
	c.running++
	c.serving.Add(1)
	return s
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// run serves the stream: it is a worker's task.
func (s *ServerStream) run() {
	c := s.conn
	defer c.serving.Done()
	s.headRequest = string(s.req.Method) == "HEAD"
	if s.req.ExpectContinue {
		c.mu.Lock()
		s.asked = s.received == 0
		c.mu.Unlock()
	}
	s.handle()
	s.finish()
	c.flush(allRounds) // there is nothing else to do here: nobody else need be asked to go on
}

// handle calls the handler. A panic costs the stream.
func (s *ServerStream) handle() {
	defer func() {
		if v := recover(); v != nil {
			s.Abort()
			s.conn.srv.panicked(v)
		}
	}()
	s.conn.srv.Handler(s)
}

// finish ends what the handler left open, and gives the stream back.
func (s *ServerStream) finish() {
	c := s.conn
	c.mu.Lock()
	s.discard(c.srv.Budget)
	s.content.giveBack()
	switch {
	case s.dead != nil:
	case !s.local: // an end now could be taken for the answer's
		c.resetLocked(s.id, CodeInternal)
	case s.bad != nil:
		c.resetLocked(s.id, CodeProtocol)
		c.calm.pay(costMadeReset, clock.Now()) // the next frame finds the purse empty
	case !s.remote: // answered: the rest is of no use (RFC 9113 section 8.1)
		c.resetLocked(s.id, CodeNo)
		c.calm.earn(earnAnswer)
	default:
		c.calm.earn(earnAnswer)
	}
	delete(c.streams, s.id)
	c.unqueue(&s.sender)
	c.grantLocked() // what it was woken for may be another's
	s.id, s.onLeave = 0, nil
	c.release(s)
	c.mu.Unlock()
}

// What of streams that are over a connection keeps for those to come: a hundred usual
// ones, since it may be idle for long, as thousands of its kind may be.
const (
	freeStream  = 16 << 10
	freeStreams = 256 << 10
)

// holds is how much memory the stream has for texts.
func (s *ServerStream) holds() int {
	return streamSize + cap(s.text) + cap(s.block) + cap(s.crumbs) + cap(s.req.Scratch) +
		s.req.Fields.Holds() + s.trailers.Holds() + s.scratch.Fields.Holds()
}

const streamSize = int(unsafe.Sizeof(ServerStream{}))

// release gives a stream's memory back for the next one. Called under mu.
func (c *conn) release(s *ServerStream) {
	if n := s.holds(); n <= freeStream && c.freed+n <= freeStreams {
		c.free = append(c.free, s)
		c.freed += n
	}
	if c.running--; c.running > 0 || c.fault != nil {
		if c.stage == staying && c.fault == nil && c.srv.isClosing() {
			c.leaveLocked()
		}
		return
	}
	c.touchIdle(clock.Now())
	switch {
	case c.stage == leaveFinal:
		c.idleUntil = clock.Now() // the reader ends it
	case c.stage == staying && c.srv.isClosing():
		c.leaveLocked()
	}
	by := earlier(earlier(c.idleUntil, c.shedAt), c.oldAt)
	if c.stage == leaveTold {
		by = earlier(by, c.leaveBy)
	}
	if !c.settled {
		by = earlier(by, c.settleBy)
	}
	c.nc.SetReadDeadline(earlier(by, c.oldCut))
}

// dieLocked ends a stream for a reason, and returns whom to tell. Called under mu.
func (s *ServerStream) dieLocked(why error) (leave func()) {
	if s.dead == nil {
		s.dead = why
	}
	s.discard(s.conn.srv.Budget)
	leave, s.onLeave = s.onLeave, nil
	s.wakeReader()
	s.wakeWriter()
	return leave
}

// breakContent says that what the client sends is not what it said. Called under
// mu.
func (s *ServerStream) breakContent(e *http1.Error) {
	if s.bad == nil {
		s.bad = e
	}
	s.remote = true // nothing more is taken
	s.wakeReader()
}

// endContent notes that the content has come to its end. Called under mu.
func (c *conn) endContent(s *ServerStream) error {
	if s.sized && s.expect != 0 && s.bad == nil {
		s.bad = errTooLittle
	}
	s.remote = true
	s.wakeReader()
	return nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Request is the parsed head; its fields may be edited in place.
func (s *ServerStream) Request() *message.Request { return &s.req }

// Info is what Server.Info made.
func (s *ServerStream) Info() any { return s.info }

// Conn is nil: the connection carries other streams, too.
func (s *ServerStream) Conn() *netconn.Conn { return nil }

// OnAbort calls fn once when the client resets the stream or leaves, which it
// may have done. fn must not block.
func (s *ServerStream) OnAbort(fn func()) netconn.AbortWatch {
	c := s.conn
	c.mu.Lock()
	if s.dead == nil {
		s.onLeave = fn
		c.mu.Unlock()
	} else {
		c.mu.Unlock()
		fn()
		return netconn.WatchOf(func() bool { return false })
	}
	return netconn.WatchOf(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		there := s.onLeave != nil
		s.onLeave = nil
		return there
	})
}

// BytesOut counts what was written of the answer's content.
func (s *ServerStream) BytesOut() int64 { return s.sent.Load() }

// BodyDone reports that nothing (more) is to be read.
func (s *ServerStream) BodyDone() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.tunnel || s.remote && s.content.first == nil && s.bad == nil
}

// Trailers returns the request's trailer fields, complete once ReadBody has
// returned io.EOF or BodyDone reports true.
func (s *ServerStream) Trailers() *message.Fields { return &s.trailers }

var (
	errNoProgress = &http1.Error{Reason: message.BodyTimeout, Detail: "the content came too slowly"}
	errNotRead    = &http1.Error{Reason: message.WriteTimeout, Detail: "the client does not read"}
	errCancelled  = errors.New("http2: reading was cancelled")
)

// ReadBody returns the next piece of content, borrowed until the next call, and
// io.EOF after the last. The first call tells a client that waits for it to go
// on. A *http1.Error is the client's bad framing or its slowness (body_timeout);
// any other error means that the client is gone.
func (s *ServerStream) ReadBody() ([]byte, error) { return s.conn.readBody(s) }

// lacks implements bodyReader. Who waits to be told to go on is told.
func (s *ServerStream) lacks() error {
	switch c := s.conn; {
	case s.bad != nil:
		return s.bad
	case s.remote:
		return io.EOF
	case s.cancelled.Load(), s.paused:
		return errCancelled
	case s.asked:
		s.asked = false
		c.out = appendBlock(c.room(), s.id, c.opened(appendStatus(nil, 100)), false, maxFrame)
		c.kickLocked()
	}
	return nil
}

// awaitContent waits under the minimum rate: each wait uses up the allowance,
// each byte earns some back, never more than the grace at the start. Called
// under mu, which it gives up meanwhile.
func (s *ServerStream) awaitContent() error {
	c := s.conn
	t := &s.set.Timeouts
	before := s.received
	c.mu.Unlock()
	defer c.mu.Lock()
	if t.BodyMinRate <= 0 || s.tunnel || s.unpaced {
		<-s.readWake
		return nil
	}
	begun := clock.Now()
	late := s.timer(&s.readTimer, max(s.allowance, time.Millisecond))
	select {
	case <-s.readWake:
	case <-late:
	}
	s.readTimer.Stop()
	s.allowance -= clock.Now().Sub(begun)
	c.mu.Lock()
	n := s.received - before
	c.mu.Unlock()
	if n < t.BodyMinRate*int64(1+t.BodyGrace/time.Second) {
		s.allowance = min(s.allowance+time.Duration(n)*time.Second/time.Duration(t.BodyMinRate), t.BodyGrace)
	} else {
		s.allowance = t.BodyGrace
	}
	if s.allowance <= 0 {
		return errNoProgress
	}
	return nil
}

// timer starts one of the stream's timers.
func (s *ServerStream) timer(t **time.Timer, d time.Duration) <-chan time.Time {
	if *t == nil {
		*t = time.NewTimer(d)
	} else {
		(*t).Reset(d)
	}
	return (*t).C
}

// CancelRead makes a ReadBody that waits, and every later one that would, end
// with an error. What the client still sends is dropped.
func (s *ServerStream) CancelRead() {
	s.conn.mu.Lock()
	s.unwanted = true
	s.conn.mu.Unlock()
	s.cancelled.Store(true)
	s.wakeReader()
}

// PauseRead makes a ReadBody that waits, and those that would, return an error,
// until ResumeRead. Nothing is lost by it.
func (s *ServerStream) PauseRead() { s.pause(true) }

// ResumeRead takes PauseRead back.
func (s *ServerStream) ResumeRead() { s.pause(false) }

func (s *ServerStream) pause(v bool) {
	s.conn.mu.Lock()
	s.paused = v
	s.conn.mu.Unlock()
	s.wakeReader()
}

// Spliceable is false: content is framed.
func (s *ServerStream) Spliceable() (int64, bool) { return 0, false }

// Spliced is not called.
func (s *ServerStream) Spliced(int64) {}

// AnswerSpace is false: content is framed.
func (s *ServerStream) AnswerSpace() (int64, bool) { return 0, false }

// AnswerMoved is not called.
func (s *ServerStream) AnswerMoved(int64) {}

// MarkClose does nothing: the connection goes on, and a stream whose content has
// not come to its end is reset when its answer has.
func (s *ServerStream) MarkClose() {}

// Abort resets the stream: the client must not take what it got for whole.
func (s *ServerStream) Abort() {
	c := s.conn
	c.mu.Lock()
	if s.dead == nil && s.id != 0 && !(s.local && s.remote) {
		code := CodeInternal
		if s.bad != nil {
			code = CodeProtocol
		}
		s.dead = errReset
		c.resetLocked(s.id, code)
		delete(c.streams, s.id)
		s.wakeReader()
		s.wakeWriter()
		c.kickLocked()
	}
	c.mu.Unlock()
}

// OverAge reports that the stream was cut because of its connection's age.
func (s *ServerStream) OverAge() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return errors.Is(s.dead, errAged)
}

// ErrorHead is the head of the answer that follows OnBadRequest, for fields.
func (s *ServerStream) ErrorHead() *message.Response { return &s.scratch }

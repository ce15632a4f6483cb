// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// conn is a connection from a client.
type conn struct {
	// Constant.
	srv     *Server
	nc      *netconn.Conn
	info    any
	tls     bool
	since   balance.Instant
	most    int             // streams at once
	oldAt   balance.Instant // when it is to end because of its age; 0: never
	oldCut  balance.Instant // when it is cut because of that
	serving sync.WaitGroup  // streams that are being served, and writing on their behalf

	set *Settings // in force; owned by the reader

	first   atomic.Bool // no request has come yet
	leaving atomic.Bool // the client was told that the connection is to end

	mu sync.Mutex
	// What follows is guarded by mu.
	streams map[uint32]*ServerStream
	free    []*ServerStream
	freed   int // what they hold
	running int // being served, whether still open or not
	lastID  uint32
	fault   error // why it is over; nil while it is not

	settled   bool            // SETTINGS were acknowledged
	settleBy  balance.Instant // when they must have been
	quiet     balance.Instant // when running became 0 last
	idleUntil balance.Instant // counts while running is 0
	shedAt    balance.Instant // as well: when what free holds is let go; 0: it holds nothing
	stage     leaveStage
	leaveBy   balance.Instant // when the client has had time to see the first GOAWAY

	// Streams that weir has reset lately, twice as many as may be open: what is on its
	// way for them is not held against the client. Nil until the first.
	resets []uint32
	reset  int

	core // its reading half is the reader's
}

// leaveStage is how far a connection has come to its end (RFC 9113 section 6.8).
type leaveStage uint8

const (
	staying    leaveStage = iota
	leaveTold             // a GOAWAY was sent that still lets every stream come
	leaveFinal            // a GOAWAY was sent that names the last stream
)

// leavePing is the PING behind the first GOAWAY: who answers it has seen that.
var leavePing = [8]byte{'w', 'e', 'i', 'r', 'g', 'o', 'n', 'e'}

// leaveTime is how long that answer is waited for.
const leaveTime = time.Second

func newConn(s *Server, nc *netconn.Conn, info any) *conn {
	now := clock.Now()
	set := s.now()
	c := &conn{
		srv: s, nc: nc, info: info, tls: nc.TLS() != nil, since: now, set: set, most: set.streams(),
		streams: make(map[uint32]*ServerStream),
	}
	c.budget, c.initial = s.Budget, startWindow
	if set.MaxAge > 0 {
		age := set.MaxAge - time.Duration(rand.Int64N(int64(set.MaxAge/10)+1))
		c.oldAt = now.Add(age)
		if set.AgeGrace > 0 {
			c.oldCut = c.oldAt.Add(set.AgeGrace)
		}
	}
	c.first.Store(true)
	c.input.begin(nc, now)
	c.idle, c.arm, c.late = c.kick, c.armRead, c.isLate
	c.patience = func() time.Duration { return c.set.Timeouts.Header }
	c.calm.begin(now)
	c.output.begin(nc, &c.mu, s.workers.start, &c.serving, c.lost, errNotRead)
	c.stallBy = set.Timeouts.Write
	return c
}

// serve is the life of a connection.
func (c *conn) serve(ahead []byte) {
	if len(ahead) > 0 {
		c.in.put(ahead, len(ahead))
	}
	c.hello()
	err := c.readPreface()
	for err == nil {
		if err = c.readFrame(); err != nil {
			var sf *streamFault
			if errors.As(err, &sf) {
				err = c.resetStream(sf.stream, sf.code)
			}
		}
	}
	c.end(err)
}

// hello sends the server's preface.
func (c *conn) hello() {
	c.mu.Lock()
	defer c.mu.Unlock()
	window := firstWindow
	if c.srv.Budget.Pressure() >= 0.75 {
		window = leastWindow
	}
	c.window = window
	c.out = appendSettings(c.room(),
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.most)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(window)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.set.Limits.HeaderBytes())},
		http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1},
	)
	c.out = appendWindow(c.out, 0, connWindow-startWindow)
	if t := c.set.Timeouts.Header; t > 0 {
		c.settleBy = c.now.Add(t)
	}
	c.touchIdle(c.now)
}

// readPreface reads what a client begins with.
func (c *conn) readPreface() error {
	c.frameBy = 0
	if t := c.set.Timeouts.Header; t > 0 {
		c.frameBy = c.since.Add(t)
	}
	for i := 0; i < len(preface); {
		p, err := c.in.next(len(preface) - i)
		if err != nil {
			return err
		}
		if string(p) != preface[i:i+len(p)] {
			return protocolError("no preface of HTTP/2")
		}
		i += len(p)
	}
	fh, err := c.fr.ReadFrameHeader()
	switch {
	case err != nil:
		return readFault(err)
	case fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck):
		return protocolError("the preface is not followed by SETTINGS")
	}
	return c.readPayload(fh)
}

// readFrame waits for a frame and does what it says.
func (c *conn) readFrame() error {
	fh, err := c.next()
	switch {
	case err != nil:
		return err
	case fh.Type == http2.FrameData:
		return readData(&c.core, c, fh)
	}
	return c.readPayload(fh)
}

// Ends that are nobody's fault.
var (
	errIdle  = &ConnError{Code: CodeNo, Detail: "idle"}
	errAged  = &ConnError{Code: CodeNo, Detail: "too old"}
	errGone  = &ConnError{Code: CodeNo, Detail: "told to end, and done"}
	errStall = &ConnError{Code: CodeNo, Detail: "a frame took too long"}
)

// armRead sets the deadline of the next wait. It is moved by others when the last
// stream ends.
func (c *conn) armRead() {
	c.mu.Lock()
	c.armLocked()
	c.mu.Unlock()
}

func (c *conn) armLocked() {
	by := c.frameBy
	if c.noLimit {
		by = 0
	}
	if !c.settled {
		by = earlier(by, c.settleBy)
	}
	if c.running == 0 {
		by = earlier(earlier(by, c.idleUntil), c.shedAt)
	}
	switch c.stage {
	case staying:
		by = earlier(by, c.oldAt)
	case leaveTold:
		by = earlier(by, c.leaveBy)
	}
	by = earlier(by, c.oldCut)
	c.nc.SetReadDeadline(by)
}

// isLate says what it means that a deadline has passed: the end, or nothing.
func (c *conn) isLate() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := func(t balance.Instant) bool { return t != 0 && c.now >= t }
	switch {
	case passed(c.oldCut):
		return errAged
	case !c.noLimit && passed(c.frameBy):
		return errStall
	case !c.settled && passed(c.settleBy):
		return &ConnError{Code: CodeSettingsTimeout, Detail: "SETTINGS were not acknowledged"}
	case c.running == 0 && c.stage == leaveFinal:
		return errGone
	case c.running == 0 && passed(c.idleUntil):
		return errIdle
	case c.running == 0 && passed(c.shedAt):
		c.free, c.freed, c.shedAt = nil, 0, 0
	case c.stage == staying && passed(c.oldAt):
		c.leaveLocked()
		c.kickLocked()
	case c.stage == leaveTold && passed(c.leaveBy):
		return c.leaveForGood()
	}
	return nil
}

// shedAfter is how long a connection without a stream keeps the memory of those that
// it had: a client that is busy comes sooner, and of those that come once and stay
// there may be thousands.
const shedAfter = time.Second

// touchIdle begins the wait for a further stream. Called under mu.
func (c *conn) touchIdle(now balance.Instant) {
	c.quiet, c.idleUntil = now, 0
	if t := c.srv.now().Timeouts.Idle; t > 0 {
		c.idleUntil = now.Add(t)
	}
	if c.shedAt = 0; len(c.free) > 0 {
		c.shedAt = now.Add(shedAfter)
	}
}

// leave tells the client that the connection is to end.
func (c *conn) leave() {
	c.mu.Lock()
	if c.stage == staying && c.fault == nil {
		c.leaveLocked()
		c.kickLocked()
		c.nc.SetReadDeadline(c.leaveBy) // the reader may be waiting for longer
	}
	c.mu.Unlock()
}

func (c *conn) leaveLocked() {
	c.stage = leaveTold
	c.leaving.Store(true)
	c.out = appendGoAway(c.room(), maxWindow, CodeNo, "")
	c.out = appendPing(c.out, false, leavePing)
	c.leaveBy = clock.Now().Add(leaveTime)
}

// leaveForGood names the last stream, and ends the connection if none is open.
// Called under mu, by the reader.
func (c *conn) leaveForGood() error {
	c.stage = leaveFinal
	c.leaving.Store(true)
	c.out = appendGoAway(c.room(), c.lastID, CodeNo, "")
	c.kickLocked()
	if c.running == 0 {
		return errGone
	}
	return nil
}

// streamCount returns how many streams are being served.
func (c *conn) streamCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// end ends the connection: what is open is cut, the client hears why, and gets
// what was written before.
func (c *conn) end(err error) {
	c.in.release()
	var ce *ConnError
	polite := errors.As(err, &ce)
	if polite && ce.Calm != CauseNone && c.srv.OnCalm != nil {
		c.srv.OnCalm(c.info, ce.Calm)
	}
	cause := errClosed
	if polite && ce == errAged {
		cause = errAged
	}
	c.kill(cause)
	if polite {
		c.mu.Lock()
		if ce != errGone && c.writeFault == nil {
			c.out = appendGoAway(c.room(), c.lastID, ce.Code, ce.Detail)
		}
		c.mu.Unlock()
		c.goodbye()
	}
	c.nc.Close()
	c.settle()
}

// goodbyeTime bounds what a connection that is over may still take.
const goodbyeTime = time.Second

// goodbye sends what is left and reads on for a moment: closing a socket with
// unread bytes resets it, and the reset may overtake what was written.
func (c *conn) goodbye() {
	c.mu.Lock()
	c.stallBy = goodbyeTime
	c.mu.Unlock()
	c.nc.SetWriteDeadline(clock.Now().Add(goodbyeTime))
	if c.flushAll() != nil || c.nc.CloseWrite() != nil {
		return
	}
	c.nc.SetReadDeadline(clock.Now().Add(goodbyeTime))
	buf := takeReadBuffer()
	defer readBuffers.Put((*[readSize]byte)(buf))
	for n := 0; n < 8<<20; {
		k, err := c.nc.Read(buf)
		if err != nil || k == 0 {
			return
		}
		n += k
	}
}

// lost ends a connection that cannot be written to.
func (c *conn) lost(err error) {
	c.kill(err)
	c.nc.Abort() // ends the reader
}

// kill ends every stream, for the reason given.
func (c *conn) kill(cause error) {
	c.mu.Lock()
	if c.fault == nil {
		c.fault = cause
	}
	var leave []func()
	for _, s := range c.streams {
		leave = append(leave, s.dieLocked(cause))
	}
	clear(c.streams)
	c.mu.Unlock()
	for _, fn := range leave {
		if fn != nil {
			fn()
		}
	}
}

// calmFault is the end because of too much of something.
func calmFault(c Cause) *ConnError {
	return &ConnError{Code: CodeEnhanceYourCalm, Detail: "too much: " + c.String(), Calm: c}
}

// earlier returns the earlier of two deadlines, 0 meaning none.
func earlier(a, b balance.Instant) balance.Instant {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	default:
		return min(a, b)
	}
}

// bad is a request that is malformed (RFC 9113 section 8.1.1).
func bad(detail string) *http1.Error {
	return &http1.Error{Reason: message.BadRequest, Detail: detail}
}

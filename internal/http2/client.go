// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"runtime/debug"
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

// Client is what connections to backends have in common. The zero value is ready
// for use. Its methods may be called from any goroutine.
type Client struct {
	// Budget bounds the content that is held, with what others who share it hold.
	// nil: there is no bound.
	Budget *netconn.Budget
	// OnPanic hears of a panic of a reader, which costs its connection only. nil:
	// the panic goes on.
	OnPanic func(v any, stack []byte)

	workers workers
	readers sync.WaitGroup
}

// Close waits for connections to end, which somebody else brings about, and ends
// the goroutines that are kept for further ones.
func (k *Client) Close() {
	k.readers.Wait()
	k.workers.stop()
}

// ClientSettings are those of one connection. Durations of 0 mean never.
type ClientSettings struct {
	Limits     http1.Limits  // of heads
	Secure     bool          // the scheme of requests is https
	MaxStreams int           // at once; fewer where the backend says so; 0: DefaultStreams
	MaxTotal   int64         // ever; 0: no limit
	Keep       time.Duration // how long it may have no stream
	Dies       balance.Instant
	Stall      time.Duration // how long a write may make no progress
	// Ping is after what silence a backend is asked whether it is there, and how
	// long its answer may take. See pingDelay.
	Ping time.Duration
}

// Owner hears of a connection, never with a lock of it held, and must not wait.
type Owner interface {
	// Freed says that a stream ended; idle: it was the last one.
	Freed(c *ClientConn, idle bool)
	// More says that more streams may be open at once than before.
	More(c *ClientConn)
	// Over says that no further stream can be opened: err is the reason. It is said
	// once. idle is for how long there had been no stream; 0: there are some. closed
	// says that the connection itself was ended by the backend.
	Over(c *ClientConn, err error, idle time.Duration, closed bool)
}

// ErrSilent ends a connection whose peer answers no PING any more.
var ErrSilent = errors.New("http2: no answer to PING")

// ClientConn is a connection to a backend that carries many exchanges. Make it
// with Client.Start. Its methods may be called from any goroutine.
type ClientConn struct {
	// Constant.
	k      *Client
	nc     *netconn.Conn
	set    ClientSettings
	owner  Owner
	flight sync.WaitGroup // writing on behalf of streams

	keep    atomic.Int64 // ClientSettings.Keep
	running atomic.Int32 // streams that are open; changed under mu
	room    atomic.Int32 // how many may be; 0 when no further one may be opened
	cut     atomic.Bool  // CutShort

	mu sync.Mutex
	// What follows is guarded by mu.
	streams  map[uint32]*ClientStream
	free     []*ClientStream
	nextID   uint32
	total    int64
	peer     int             // how many streams the backend allows
	leaving  error           // why no further stream is opened; nil: they may be
	told     bool            // Over was called
	away     *goAway         // what the backend said last
	fault    error           // why it is over; nil while it is not
	settled  bool            // SETTINGS were acknowledged
	connects bool            // the backend takes WebSockets over a stream (RFC 8441)
	startBy  balance.Instant // when the backend must have said hello; 0: it has
	endBy    balance.Instant // when reading ends after writing has failed; 0: it has not

	idleSince balance.Instant // when running became 0
	heardAt   balance.Instant // when silence began: a frame that is no answer to PING, or the first stream
	pings     int             // since then
	pingAt    balance.Instant // when the one was sent that is not answered; 0: there is none

	core // its reading half is the reader's
}

// goAway is what a backend has said in GOAWAY.
type goAway struct {
	last uint32
	code Code
	text string
}

func (g *goAway) Error() string {
	s := "http2: the backend ends the connection: " + g.code.String()
	if g.text != "" {
		s += " (" + g.text + ")"
	}
	return s
}

// StreamError is a RST_STREAM of the backend.
type StreamError struct{ Code Code }

// Error implements error.
func (e *StreamError) Error() string { return "http2: RST_STREAM " + e.Code.String() }

// errLeft is the fate of an exchange on a connection that takes no more.
var errLeft = errors.New("http2: the connection takes no further streams")

// errNoRead is a backend that does not read.
var errNoRead = &http1.Error{Reason: message.ResetBeforeResponse, Detail: "the backend does not read"}

// Start begins to speak HTTP/2 on a connection: it says hello, waits for the
// backend to do so until the deadline, and starts a goroutine that reads. After
// an error the connection is the caller's to close: *http1.Error (bad_response)
// where the backend speaks something else.
func (k *Client) Start(nc *netconn.Conn, set ClientSettings, owner Owner, deadline balance.Instant) (*ClientConn, error) {
	now := clock.Now()
	c := &ClientConn{
		k: k, nc: nc, set: set, owner: owner, streams: make(map[uint32]*ClientStream), nextID: 1,
		idleSince: now, heardAt: now, startBy: deadline, peer: 1 << 30,
	}
	c.budget, c.initial = k.Budget, startWindow
	if c.set.MaxStreams <= 0 {
		c.set.MaxStreams = DefaultStreams
	}
	c.keep.Store(int64(set.Keep))
	c.calm.begin(now)
	c.input.begin(nc, now)
	c.idle, c.arm, c.late = c.kick, c.armRead, c.isLate
	c.patience = func() time.Duration { return c.set.Ping }
	c.output.begin(nc, &c.mu, k.workers.start, &c.flight, c.lost, errNoRead)
	c.stallBy = set.Stall
	c.hello()
	err := c.greet()
	if err != nil {
		c.in.release()
		c.flight.Wait()
		return nil, err
	}
	k.readers.Add(1)
	go c.serve()
	return c, nil
}

// hello sends what a client begins with.
func (c *ClientConn) hello() {
	c.window = firstWindow
	if c.k.Budget.Pressure() >= 0.75 {
		c.window = leastWindow
	}
	c.mu.Lock()
	c.out = append(c.output.room(), preface...)
	c.out = appendSettings(c.out,
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(c.window)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.set.Limits.HeaderBytes())},
	)
	c.out = appendWindow(c.out, 0, connWindow-startWindow)
	c.mu.Unlock()
	c.flush(-1)
}

// greet reads what a server begins with.
func (c *ClientConn) greet() error {
	if err := c.await(); err != nil {
		return err
	}
	fh, err := c.next()
	switch {
	case err != nil:
		var ce *ConnError
		if errors.As(err, &ce) {
			return errNoHTTP2
		}
		return err
	case fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck) || fh.StreamID != 0:
		return errNoHTTP2
	}
	if err = c.readPayload(fh); err != nil {
		return answerFault(err)
	}
	c.mu.Lock()
	c.startBy = 0
	c.setRoom()
	c.mu.Unlock()
	return nil
}

var errNoHTTP2 = badAnswer("the backend does not speak HTTP/2")

// serve is the life of a connection.
func (c *ClientConn) serve() {
	defer c.k.readers.Done()
	defer func() {
		if v := recover(); v != nil {
			_ = c.nc.Reset() // nothing can be done about a failed reset
			c.kill(errClosed)
			c.over(errClosed, false)
			c.flight.Wait()
			if c.k.OnPanic == nil {
				panic(v)
			}
			c.k.OnPanic(v, debug.Stack())
		}
	}()
	var err error
	for err == nil {
		if err = c.readFrame(); err != nil {
			var sf *streamFault
			if errors.As(err, &sf) {
				err = c.resetStream(sf.stream, sf.code, badAnswer("malformed frame"))
			}
		}
	}
	c.end(err)
}

// readFrame waits for a frame and does what it says.
func (c *ClientConn) readFrame() error {
	fh, err := c.next()
	if err != nil {
		return err
	}
	if fh.Type != http2.FramePing || !fh.Flags.Has(http2.FlagPingAck) {
		c.mu.Lock()
		c.heardAt, c.pings, c.pingAt = c.now, 0, 0
		c.mu.Unlock()
	}
	if fh.Type == http2.FrameData {
		return readData(&c.core, c, fh)
	}
	return c.readPayload(fh)
}

// Settings of a connection that may change while it is open.

// SetKeep changes how long the connection may have no stream.
func (c *ClientConn) SetKeep(d time.Duration) { c.keep.Store(int64(d)) }

// Streams returns how many exchanges are open on the connection.
func (c *ClientConn) Streams() int { return int(c.running.Load()) }

// Room returns how many more may be opened.
func (c *ClientConn) Room() int { return int(c.room.Load() - c.running.Load()) }

// IdleFor returns for how long there has been no stream; 0: there are some, or
// there was none ever.
func (c *ClientConn) IdleFor(now balance.Instant) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running.Load() > 0 || c.total == 0 {
		return 0
	}
	return max(now.Sub(c.idleSince), 1)
}

// Open opens an exchange, or returns nil when there is no room. It is ended by
// ClientStream.Done or Close.
func (c *ClientConn) Open(now balance.Instant) *ClientStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running.Load() >= c.room.Load() || c.pingAt != 0 && now.Sub(c.pingAt) > time.Second {
		return nil // of one that may be dead not more is asked
	}
	c.total++
	if c.set.MaxTotal > 0 && c.total >= c.set.MaxTotal {
		c.leaving = errLeft // Over is said when the last stream ends
	}
	s := c.newStream()
	if c.running.Add(1) == 1 {
		c.heardAt, c.pings = now, 0
		if c.pingAt == 0 {
			c.armLocked()
		}
	}
	c.setRoom()
	return s
}

// setRoom settles how many streams may be open. Called under mu.
func (c *ClientConn) setRoom() {
	n := min(c.set.MaxStreams, c.peer)
	if c.leaving != nil || c.fault != nil {
		n = 0
	}
	c.room.Store(int32(n))
}

// Retire says that no further stream is opened; the connection ends with the last
// one that is open.
func (c *ClientConn) Retire() {
	c.mu.Lock()
	if c.leaving == nil {
		c.leaving = errLeft
	}
	c.setRoom()
	if c.running.Load() == 0 {
		c.nc.SetReadDeadline(clock.Now()) // the reader ends it
	}
	c.mu.Unlock()
}

// Cut ends the connection at once, and every exchange on it, of which CutShort
// then says so.
func (c *ClientConn) Cut() {
	c.cut.Store(true)
	c.nc.Abort()
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/websocket"
)

// tunnelBuffer is what a direction holds while bytes move, and only then.
const tunnelBuffer = 32 << 10

var tunnelBuffers = sync.Pool{New: func() any { return new([tunnelBuffer]byte) }}

// tunnel is one open WebSocket. Bytes are passed on as they come; on the way the
// frames' headers are read, so that it is known where a Close frame may stand
// when weir ends it. The payload of large frames is moved by the kernel.
type tunnel struct {
	// Constant.
	backend *balance.Backend
	since   balance.Instant
	facts   observe.LongLived
	idle    time.Duration   // 0: no bound
	ends    balance.Instant // its greatest age; 0: none
	// A side may be a stream of HTTP/2 that poses as a connection: then nothing is
	// spliced.
	client, server *netconn.Conn
	claimed        func() // it ends by itself

	up, down half // from the client, to the client

	last    atomic.Int64  // balance.Instant of the last byte either way
	why     atomic.Uint32 // observe.TunnelCause
	left    atomic.Bool   // one of the peers has ended its half without a Close frame
	closing atomic.Bool   // the client has begun to close by itself, and that was passed on
	told    atomic.Bool   // a Close frame of weir's has gone to the client
	middle  atomic.Int64  // when what was not answered is not waited for
	cut     atomic.Int64  // when everything ends

	mu  sync.Mutex // guards the first error, and end against itself
	err error
}

// tunnelError says which side of a tunnel failed.
type tunnelError struct {
	client bool
	write  bool
	err    error
}

func (e *tunnelError) Error() string {
	if e.write {
		return "write: " + e.err.Error()
	}
	return "read: " + e.err.Error()
}

func (e *tunnelError) Unwrap() error { return e.err }

// errOver ends a half that has nothing more to do, errLeft the one whose receiver
// has left.
var (
	errOver = errors.New("this half is over")
	errLeft = errors.New("the other peer has left")
)

// leftIdle is how long the half that is left may be without a byte. A WebSocket
// has no half-close: whoever ends its half without a Close frame is gone, or soon,
// but a peer that never notices would hold the tunnel for as long as it may idle.
const leftIdle = 10 * time.Second

// half is one direction of a tunnel. It belongs to the goroutine that moves it.
type half struct {
	t        *tunnel
	src, dst *netconn.Conn
	up       bool // toward the backend
	splices  bool
	frames   websocket.Frames
	moved    int64
	held     *[tunnelBuffer]byte
	get      func() []byte
	progress func(int64) error

	said   bool            // a Close frame has gone to dst: nothing may follow
	heard  bool            // src has sent its own, or ended its sending half
	linger balance.Instant // both, and the end of the connection is awaited until then; 0: it is not
}

// begin readies both directions.
func (t *tunnel) begin(now balance.Instant) {
	t.last.Store(int64(now))
	t.up.begin(t, t.client, t.server, true)
	t.down.begin(t, t.server, t.client, false)
}

func (h *half) begin(t *tunnel, src, dst *netconn.Conn, up bool) {
	h.t, h.src, h.dst, h.up = t, src, dst, up
	h.splices = src.Spliceable() && dst.Spliceable()
	h.get = func() []byte {
		h.held = tunnelBuffers.Get().(*[tunnelBuffer]byte)
		return h.held[:]
	}
	h.progress = func(n int64) error {
		h.moved += n
		h.frames.Skip(uint64(n))
		h.t.last.Store(int64(clock.Now()))
		h.arm()
		return nil
	}
}

// move moves both directions until both are over. early is what the client sent
// with its head, first what the backend did. It returns the first error that is
// not weir's doing.
func (t *tunnel) move(early, first []byte, bug func(v any)) error {
	over := make(chan struct{})
	run := func(h *half, ahead []byte) {
		defer func() {
			if v := recover(); v != nil {
				bug(v)
				t.fail(&tunnelError{client: !h.up, err: errPanicked})
			}
		}()
		if err := h.run(ahead); err != nil {
			t.fail(err)
		}
	}
	go func() {
		defer close(over)
		run(&t.down, first)
	}()
	run(&t.up, early)
	<-over
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

var errPanicked = errors.New("panic while moving bytes")

// fail ends both directions at once.
func (t *tunnel) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.client.Abort()
	t.server.Abort()
}

// run moves one direction to its end.
func (h *half) run(ahead []byte) error {
	err := error(nil)
	if len(ahead) > 0 {
		h.arm()
		err = h.pass(ahead)
	}
	for err == nil {
		h.arm()
		if h.t.ending() && !h.said {
			// The end may have come between the last read and the arming: then nobody
			// wakes this half any more.
			if err = h.last(clock.Now()); err != nil {
				break
			}
			h.arm()
		}
		if err = h.take(); err == nil {
			continue
		}
		var te *tunnelError
		switch {
		case errors.Is(err, errOver), errors.As(err, &te) && te.write:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if err = h.end(); err == nil {
				return nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err = h.late(clock.Now()); errors.Is(err, errLeft) {
				return nil
			}
		}
	}
	if h.t.ending() {
		return nil // who resets instead of answering does not keep the other peer from being told
	}
	return err
}

// take moves what is there, after waiting for it.
func (h *half) take() error {
	if h.splices && !h.said {
		n := int64(min(h.frames.Left(), 1<<62))
		if h.frames.Broken() {
			n = -1 // no boundary is looked for any more
		}
		if n < 0 || n >= spliceMin {
			_, err := netconn.Splice(h.dst, h.src, n, h.progress)
			if !errors.Is(err, netconn.ErrNoSplice) {
				return h.spliced(n, err)
			}
			h.splices = false
		}
	}
	buf, n, err := h.src.ReadInto(h.get)
	if n > 0 {
		h.t.last.Store(int64(clock.Now()))
		h.arm()
		if err = h.pass(buf[:n]); err == nil {
			h.drop()
			return nil
		}
	} else if err != nil {
		err = &tunnelError{client: h.up, err: err}
	}
	h.drop()
	return err
}

// spliced says what the end of a splice means.
func (h *half) spliced(n int64, err error) error {
	var c *netconn.CopyError
	switch {
	case err == nil && n < 0:
		return io.EOF
	case errors.As(err, &c):
		return &tunnelError{client: h.up == (c.Side == netconn.Source), write: c.Side == netconn.Destination, err: c.Err}
	}
	return err
}

func (h *half) drop() {
	if h.held != nil {
		tunnelBuffers.Put(h.held)
		h.held = nil
	}
}

// pass passes p on.
func (h *half) pass(p []byte) error {
	if h.t.ending() {
		return h.passLast(p)
	}
	if h.up && !h.frames.Closed() {
		h.frames.Feed(p)
		if h.frames.Closed() {
			h.t.closing.Store(true)
		}
	} else {
		h.frames.Feed(p)
	}
	return h.write(p)
}

func (h *half) write(p []byte) error {
	n, err := h.dst.Write(p)
	h.moved += int64(n)
	if err != nil {
		return &tunnelError{client: !h.up, write: true, err: err}
	}
	return nil
}

// end is the end of src's sending half.
func (h *half) end() error {
	h.heard = true
	if h.t.ending() {
		if !h.said && h.frames.Boundary() {
			return h.place()
		}
		return nil
	}
	h.t.last.Store(int64(clock.Now()))
	h.t.left.Store(true)
	if err := h.dst.CloseWrite(); err != nil {
		return &tunnelError{client: !h.up, write: true, err: err}
	}
	h.dst.SetReadDeadline(1) // the other half looks again
	return nil
}

// idleFor is how long the tunnel may be without a byte; 0: without bound.
func (t *tunnel) idleFor() time.Duration {
	if t.left.Load() && (t.idle == 0 || t.idle > leftIdle) {
		return leftIdle
	}
	return t.idle
}

// arm bounds both waits: by the idle time and the greatest age, or by the end
// that weir was asked to make.
func (h *half) arm() {
	t := h.t
	// What is set may overrule what the other half or the end has set: look after
	// setting.
	for again := !t.ending(); again; {
		last, idle := balance.Instant(t.last.Load()), t.idleFor()
		h.src.SetReadDeadline(earliest(after(last, idle), t.ends))
		h.dst.SetWriteDeadline(after(last, t.idle))
		again = t.idleFor() != idle
	}
	for t.ending() {
		cut, middle := balance.Instant(t.cut.Load()), balance.Instant(t.middle.Load())
		by := cut
		if h.linger != 0 {
			by = min(cut, h.linger)
		} else if !h.said && clock.Now() < middle {
			by = middle
		}
		h.src.SetReadDeadline(by)
		h.dst.SetWriteDeadline(cut)
		if t.cut.Load() == int64(cut) {
			return
		}
	}
}

// mask draws the mask of a Close frame. The payload is nobody's but weir's, so
// that nothing has to be kept from being guessed.
func mask() *[4]byte {
	r := rand.Uint32()
	return &[4]byte{byte(r), byte(r >> 8), byte(r >> 16), byte(r >> 24)}
}

// ending reports that weir ends the tunnel.
func (t *tunnel) ending() bool { return t.why.Load() != uint32(observe.TunnelByPeer) }

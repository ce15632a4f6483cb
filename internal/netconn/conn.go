// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/balance"
)

// ErrAborted is returned by reads and writes after Abort. It matches
// net.ErrClosed too.
var ErrAborted = fmt.Errorf("connection aborted: %w", net.ErrClosed)

// Bits of Conn.flags.
const (
	flagAborted   = 1 << iota // Abort was called: every operation ends at once
	flagClosed                // Close or Reset was called
	flagPolled                // registered once with a Poller: re-arm instead of add
	flagWriteOnce             // writes below TLS must not wait (closing alert)
)

// Conn is one connection. Make it with New, Server or Client; it must not be
// copied. An idle plain connection holds no buffer.
type Conn struct {
	// Constant after construction.
	nc  net.Conn        // the socket, or what tests use as one
	raw syscall.RawConn // of the socket; nil when nc is none
	tls *tls.Conn       // nil for plain
	// foreign: tls was made elsewhere, over a connection this package does not
	// see. Its writes cannot be resumed, so write deadlines are armed exactly.
	foreign bool
	onClose func() // see SetOnClose

	// Owned by the reader.
	nowait   bool // reads below TLS must not wait
	cutOff   bool // see Truncated
	hasSpare bool // spare holds a byte that Peek took out of the TLS stream
	spare    [1]byte
	least    int32 // see SetLeast; owned by the writer, here for its size
	rop      *readOp
	first    []byte // what TLS reads before anything else, see Secure
	turns    *Turns // during the handshake only

	// Owned by the writer below TLS, see writeRecord.
	recordUntil balance.Instant // the deadline that was seen last; 0: none
	recordTime  time.Duration   // what the caller gave

	// Atomic.
	flags  atomic.Uint32
	rd, wr deadline
	hook   atomic.Pointer[func()] // whoever must hear of Abort and Close: a Poller

	mu sync.Mutex // serialises timer operations, see arm
}

// New wraps a connection: *net.TCPConn, *net.UnixConn, a *tls.Conn whose
// handshake is over, or any net.Conn. A *tls.Conn that Server or Client made
// yields its own Conn; any other one works, with write deadlines armed exactly.
func New(nc net.Conn) *Conn {
	if t, ok := nc.(*tls.Conn); ok {
		if u, ok := t.NetConn().(*under); ok {
			return (*Conn)(u)
		}
		return &Conn{nc: nc, foreign: true}
	}
	c := &Conn{nc: nc}
	if s, ok := nc.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	return c
}

// Server wraps a socket in the serving half of TLS. The caller runs Handshake.
func Server(nc net.Conn, cfg *tls.Config) *Conn {
	c := New(nc)
	c.tls = tls.Server((*under)(c), cfg)
	return c
}

// Client wraps a socket in the calling half of TLS. The caller runs Handshake.
func Client(nc net.Conn, cfg *tls.Config) *Conn {
	c := New(nc)
	c.tls = tls.Client((*under)(c), cfg)
	return c
}

// Handshake runs the TLS handshake, bounded by the deadline (0: none). It does
// nothing on a plain connection. Both deadlines are none afterwards.
func (c *Conn) Handshake(deadline balance.Instant) error {
	if c.tls == nil {
		return nil
	}
	c.SetReadDeadline(deadline)
	c.SetWriteDeadline(deadline)
	err := c.tls.Handshake()
	c.SetReadDeadline(0)
	c.SetWriteDeadline(0)
	return err
}

// TLS returns the TLS layer, or nil for a plain connection.
func (c *Conn) TLS() *tls.Conn {
	if c.tls != nil {
		return c.tls
	}
	t, _ := c.nc.(*tls.Conn)
	return t
}

// Raw returns the outermost net.Conn: the *tls.Conn of a TLS connection, the
// socket of a plain one. Deadlines must not be set on it directly.
func (c *Conn) Raw() net.Conn {
	if c.tls != nil {
		return c.tls
	}
	return c.nc
}

// TCP returns the socket of a plain TCP connection, else nil.
func (c *Conn) TCP() *net.TCPConn {
	if c.tls != nil {
		return nil
	}
	t, _ := c.nc.(*net.TCPConn)
	return t
}

// SetOnClose sets what Close or Reset calls once, when the socket is closed. Set
// it before the connection is shared.
func (c *Conn) SetOnClose(fn func()) { c.onClose = fn }

// LocalAddr returns the socket's own address.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Read reads up to len(p) bytes. A timeout (os.ErrDeadlineExceeded) leaves the
// connection usable; reading may go on after a later deadline is set.
func (c *Conn) Read(p []byte) (int, error) {
	if c.tls == nil {
		return c.read(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.hasSpare {
		p[0], c.hasSpare = c.spare[0], false
		if len(p) == 1 {
			return 1, nil
		}
		n, _ := c.readTLSNow(p[1:]) // an error comes again at the next read
		return 1 + n, nil
	}
	n, err := c.tls.Read(p)
	if err != nil && n == 0 {
		err = c.cause(err)
	}
	return n, err
}

// read reads from the socket and absorbs timers that fired early.
func (c *Conn) read(p []byte) (int, error) {
	if c.raw != nil {
		return c.readSocket(p)
	}
	for {
		n, err := c.nc.Read(p)
		if err == nil || n > 0 {
			return n, err
		}
		if err = c.absorb(&c.rd, err); err != nil {
			return 0, err
		}
	}
}

// Write writes all of p or returns an error and how much was written. After a
// timeout a plain connection may go on writing the rest; a TLS one is broken.
func (c *Conn) Write(p []byte) (int, error) {
	if c.tls != nil {
		n, err := c.tls.Write(p)
		if err != nil {
			err = c.cause(err)
		}
		return n, err
	}
	return c.write(p)
}

// write writes to the socket and absorbs timers that fired early.
func (c *Conn) write(p []byte) (int, error) {
	if c.raw != nil {
		return c.send(p, nil)
	}
	var total int
	for {
		n, err := c.nc.Write(p[total:])
		total += n
		if err == nil {
			return total, nil
		}
		if err = c.absorb(&c.wr, err); err != nil {
			return total, err
		}
	}
}

// cause says the two errors that callers compare for what they are.
func (c *Conn) cause(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case c.flags.Load()&flagAborted != 0:
		return ErrAborted
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	}
	return err
}

// Abort ends every read and write that is waiting and every later one with
// ErrAborted, for good. The socket stays open until Close. It may be called
// from any goroutine, more than once.
func (c *Conn) Abort() {
	c.mu.Lock()
	first := c.flags.Or(flagAborted)&(flagAborted|flagClosed) == 0
	if first {
		// An error here means that the socket is closed: nothing waits on it.
		_ = c.nc.SetDeadline(past)
	}
	c.mu.Unlock()
	c.wake()
}

// Aborted reports whether Abort was called.
func (c *Conn) Aborted() bool { return c.flags.Load()&flagAborted != 0 }

// Close closes the connection. Under TLS the closing alert is sent if it can
// be without waiting. Later calls do nothing.
func (c *Conn) Close() error {
	if c.flags.Or(flagClosed|flagWriteOnce)&flagClosed != 0 {
		return nil
	}
	var err error
	if c.tls != nil {
		err = c.tls.Close()
		var would *waitError
		if errors.As(err, &would) {
			err = nil // the alert did not fit: the peer sees the end without it
		}
	} else {
		err = c.nc.Close()
	}
	c.closed()
	return err
}

// Reset closes the connection so that the peer sees a reset (RST) and cannot
// take what it got for whole. Unsent bytes are dropped. Sockets other than TCP
// are just closed.
func (c *Conn) Reset() error {
	if c.flags.Or(flagClosed)&flagClosed != 0 {
		return nil
	}
	socket := c.nc
	if t, ok := socket.(*tls.Conn); ok {
		socket = t.NetConn()
	}
	if t, ok := socket.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only on a dead socket, which Close reports
	}
	err := socket.Close() // below TLS: no closing alert
	c.closed()
	return err
}

// CloseWrite ends the sending half: FIN, or the closing alert under TLS.
// Connections that cannot do so are closed.
func (c *Conn) CloseWrite() error {
	if w, ok := c.Raw().(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// Truncated reports, once reading has ended, that the end came without TLS's
// closing alert: anybody on the way may have made it, so content that is
// delimited by it is not complete. crypto/tls calls both io.EOF. It is the
// reader's to ask, and false on a plain connection.
func (c *Conn) Truncated() bool { return c.cutOff }

// wake tells whoever waits for this connection that it is over.
func (c *Conn) wake() {
	if h := c.hook.Swap(nil); h != nil {
		(*h)()
	}
}

// closed tells everybody that the connection is closed.
func (c *Conn) closed() {
	if c.onClose != nil {
		c.onClose()
	}
	c.wake()
}

// gone reports whether the connection was aborted or closed from this side.
func (c *Conn) gone() bool { return c.flags.Load()&(flagAborted|flagClosed) != 0 }

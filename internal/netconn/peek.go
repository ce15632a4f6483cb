// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeekState is what a connection that should be quiet looks like.
type PeekState uint8

// What Peek finds.
const (
	Quiet    PeekState = iota // open, nothing to read
	HasBytes                  // bytes to read
	EOF                       // the peer has ended its half
	Error                     // reset, broken, aborted or closed
)

// String returns the state's name.
func (s PeekState) String() string {
	switch s {
	case Quiet:
		return "quiet"
	case HasBytes:
		return "has bytes"
	case EOF:
		return "eof"
	default:
		return "error"
	}
}

// Peek looks at the connection without waiting and without losing a byte. Under
// TLS the records that carry no content (session tickets arrive unasked after
// the handshake, key updates any time) are taken in on the way, so that Quiet
// means what it says; a closing alert is EOF. Only the reader may call it. A
// connection without a descriptor is Quiet until closed.
func (c *Conn) Peek() PeekState {
	switch {
	case c.gone():
		return Error
	case c.tls != nil:
		return c.peekTLS()
	case c.raw == nil:
		return Quiet
	}
	return peekState(c.now(nil, unix.MSG_PEEK, false))
}

// Pending reports whether bytes have arrived on the socket that nobody has read
// yet; under TLS they may be of any record. Unlike Peek it may be called by any
// goroutine. It is false without a descriptor.
func (c *Conn) Pending() bool {
	if c.raw == nil || c.gone() {
		return false
	}
	n, _ := c.now(nil, unix.MSG_PEEK, false) // an error is no bytes
	return n > 0
}

func (c *Conn) peekTLS() PeekState {
	if c.hasSpare {
		return HasBytes
	}
	n, err := c.readTLSNow(c.spare[:])
	if n > 0 {
		c.hasSpare = true
		return HasBytes
	}
	return peekState(n, err)
}

func peekState(n int, err error) PeekState {
	switch {
	case n > 0:
		return HasBytes
	case errors.Is(err, errWouldWait):
		return Quiet
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return EOF
	default:
		return Error
	}
}

func (c *Conn) recvNow(p []byte) (int, error) { return c.now(p, 0, false) }
func (c *Conn) sendNow(p []byte) (int, error) { return c.now(p, 0, true) }

// now runs one recv or send that does not wait, past Go's deadlines and locks.
// Without p it receives one byte to nowhere, which only a peek may do.
func (c *Conn) now(p []byte, flags int, send bool) (int, error) {
	o := nowOps.Get().(*nowOp)
	o.p, o.flags, o.send = p, flags, send
	if p == nil {
		o.p = o.one[:]
	}
	err := c.raw.Control(o.fn)
	n, errno := o.n, o.errno
	o.p = nil
	nowOps.Put(o)
	switch {
	case err != nil:
		return 0, err
	case errno == syscall.EAGAIN:
		return 0, errWouldWait
	case errno != 0:
		return 0, os.NewSyscallError("recv", errno)
	case n == 0 && !send:
		return 0, io.EOF
	}
	return n, nil
}

// nowOp carries the arguments of one system call into RawConn.Control.
type nowOp struct {
	fn    func(uintptr) // run, bound once
	p     []byte
	one   [1]byte
	flags int
	send  bool
	n     int
	errno syscall.Errno
}

var nowOps = sync.Pool{New: func() any {
	o := &nowOp{}
	o.fn = o.run
	return o
}}

func (o *nowOp) run(fd uintptr) {
	if o.send {
		o.n, o.errno = sysSend(fd, o.p, o.flags|unix.MSG_DONTWAIT)
	} else {
		o.n, o.errno = sysRecv(fd, o.p, o.flags|unix.MSG_DONTWAIT)
	}
}

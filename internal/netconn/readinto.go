// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// scratch is what ReadInto reads into while it does not know whether there is
// anything. It lives on the stack of the callback, so waiting holds none of it;
// most request heads fit. After a wake-up there almost always is something, and
// it is read into the caller's buffer at once.
const scratch = 1024

var errSmallBuffer = errors.New("the buffer given to ReadInto is smaller than 1024 bytes")

// ReadInto waits until there are bytes, holding no buffer, then calls get once
// and reads into what it returns. It returns that buffer and the number of
// bytes. With an error buf is nil, or, when the end was found after a wait, a
// buffer without bytes, which is the caller's again like any other. get must
// return at least 1024 bytes of room. Over TLS and on connections without a
// descriptor a single byte may come first.
func (c *Conn) ReadInto(get func() []byte) (buf []byte, n int, err error) {
	switch {
	case c.tls != nil:
		return c.readIntoTLS(get)
	case c.raw == nil:
		return c.readIntoPlain(get)
	}
	o := c.reader()
	o.get = get
	for {
		o.woken = false
		err = c.raw.Read(o.fn)
		if err == nil {
			buf, n, err = o.buf, o.n, o.err
			o.get, o.buf, o.err = nil, nil, nil
			return buf, n, err
		}
		if err = c.absorb(&c.rd, err); err != nil {
			o.get = nil
			return nil, 0, err
		}
	}
}

// ReadHolding reads into what get returns, as Read would, but holds that only
// while there are bytes: before it waits it gives the buffer to put, and asks for
// another one when bytes have come. It tries at once, so content that keeps coming
// costs no more system calls than with Read. It returns the buffer and the number
// of bytes; with an error buf may be nil. get must return room for a byte. Over
// TLS a single byte may come first; a connection without a descriptor waits with
// the buffer.
func (c *Conn) ReadHolding(get func() []byte, put func([]byte)) (buf []byte, n int, err error) {
	switch {
	case c.tls != nil:
		return c.readIntoTLS(get)
	case c.raw == nil:
		buf = get()
		n, err = c.read(buf)
		return buf, n, err
	}
	o := c.reader()
	kept := o.buf
	o.buf, o.get, o.put, o.woken = nil, get, put, true
	for {
		err = c.raw.Read(o.fn)
		if err == nil {
			buf, n, err = o.buf, o.n, o.err
			break
		}
		if err = c.absorb(&c.rd, err); err != nil {
			break
		}
	}
	o.buf, o.get, o.put, o.err = kept, nil, nil, nil
	return buf, n, err
}

// SendInto sends what is at the front of buf and waits for the first bytes of
// the peer's answer, which it reads into buf: a write and a read in one, without
// the read in between that would find nothing. Only for connections that are
// Spliceable. sent is how much left; the answer is only waited for when all of
// it did, n is how much of that came. With sent < size and no error the rest is
// to be written in the ordinary way. An error with all sent is the read's; a
// timeout (os.ErrDeadlineExceeded, of the read deadline) leaves the answer to be
// read by ReadInto. after, if not nil, is called once all has been sent; when it
// returns false nothing is waited for (n 0, no error). It must not use the
// connection.
//
// The order is what makes it safe to wait without having looked first: the
// runtime forgets earlier readiness when a read begins, and here it begins
// before the request is sent, so the answer always finds somebody waiting. Bytes
// that came earlier may stay unnoticed until the deadline.
func (c *Conn) SendInto(buf []byte, size int, after func() bool) (sent, n int, err error) {
	c.renew(&c.rd)
	o := c.reader()
	kept := o.buf
	o.buf, o.out, o.sent, o.after = buf, buf[:size], 0, after
	for {
		err = c.raw.Read(o.fn)
		if err == nil {
			n, err = o.n, o.err
			break
		}
		if err = c.absorb(&c.rd, err); err != nil {
			n = 0
			break
		}
	}
	sent = o.sent
	o.buf, o.out, o.err, o.after = kept, nil, nil, nil
	return sent, n, err
}

// trySend is try for a read that begins by sending. It waits for an answer if
// all was sent.
func (o *readOp) trySend(fd uintptr) bool {
	size := len(o.out)
	n, errno := sysSend(fd, o.out, 0)
	o.out, o.n, o.err = nil, 0, nil
	switch {
	case errno == 0:
		o.sent = n
		return n < size || o.after != nil && !o.after()
	case errno != syscall.EAGAIN:
		o.err = os.NewSyscallError("send", errno)
	}
	return true
}

// readSocket reads from a descriptor into p.
func (c *Conn) readSocket(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	o := c.reader()
	kept := o.buf
	o.buf = p
	for {
		err := c.raw.Read(o.fn)
		if err == nil {
			n, err := o.n, o.err
			o.buf, o.err = kept, nil
			return n, err
		}
		if err = c.absorb(&c.rd, err); err != nil {
			o.buf = kept
			return 0, err
		}
	}
}

// reader returns the connection's readOp.
func (c *Conn) reader() *readOp {
	if c.rop == nil {
		c.rop = &readOp{}
		c.rop.fn = c.rop.try
	}
	return c.rop
}

// readOp is what a read through RawConn needs, allocated with the first one.
type readOp struct {
	fn    func(uintptr) bool // try, bound once
	get   func() []byte
	put   func([]byte) // nil, or takes the buffer before each wait, see ReadHolding
	woken bool
	out   []byte // to be sent before the first wait, see SendInto
	sent  int
	after func() bool
	buf   []byte // kept after a wake-up for nothing, which is rare
	n     int
	err   error
}

// try reads if there is anything to read; false means wait.
func (o *readOp) try(fd uintptr) bool {
	if o.out != nil {
		return o.trySend(fd)
	}
	if o.buf == nil && !o.woken {
		o.woken = true
		return o.tryScratch(fd)
	}
	if o.buf == nil {
		o.buf = o.get()
	}
	n, errno := sysRecv(fd, o.buf, 0)
	if o.judge(n, errno, len(o.buf)) {
		return true
	}
	if o.put != nil {
		o.put(o.buf)
		o.buf = nil
	}
	return false
}

// tryScratch reads without having asked for a buffer.
func (o *readOp) tryScratch(fd uintptr) bool {
	var tmp [scratch]byte
	n, errno := sysRecv(fd, tmp[:], 0)
	if !o.judge(n, errno, len(tmp)) {
		return false
	}
	if o.n == 0 {
		return true
	}
	o.buf = o.get()
	if copy(o.buf, tmp[:o.n]) < o.n {
		o.n, o.err = 0, errSmallBuffer
	} else if o.n == scratch && len(o.buf) > scratch {
		// Errors and the end are seen by the next read: they stay.
		if m, errno := sysRecv(fd, o.buf[scratch:], 0); errno == 0 {
			o.n += m
		}
	}
	return true
}

// judge stores the outcome of a read; false means that there was nothing.
func (o *readOp) judge(n int, errno syscall.Errno, size int) bool {
	o.n, o.err = 0, nil
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno != 0:
		o.err = os.NewSyscallError("recvfrom", errno)
	case n == 0 && size > 0:
		o.err = io.EOF
	default:
		o.n = n
	}
	return true
}

func (c *Conn) readIntoPlain(get func() []byte) ([]byte, int, error) {
	n, err := c.read(c.spare[:])
	if n == 0 {
		return nil, 0, err
	}
	buf := get()
	buf[0] = c.spare[0]
	return buf, 1, nil
}

func (c *Conn) readIntoTLS(get func() []byte) ([]byte, int, error) {
	if !c.hasSpare {
		n, err := c.tls.Read(c.spare[:])
		if n == 0 {
			return nil, 0, c.cause(err)
		}
	}
	c.hasSpare = false
	buf := get()
	buf[0] = c.spare[0]
	n, _ := c.readTLSNow(buf[1:]) // an error comes again at the next read
	return buf, 1 + n, nil
}

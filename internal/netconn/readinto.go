// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// scratch is what ReadInto reads into before it asks for a buffer. It lives on
// the stack of the callback, so waiting holds none of it; most request heads fit.
const scratch = 1024

var errSmallBuffer = errors.New("the buffer given to ReadInto is smaller than 1024 bytes")

// ReadInto waits until there are bytes, holding no buffer, then calls get once
// and reads into what it returns. It returns that buffer and the number of
// bytes. On an error get was not called and buf is nil, unless n > 0. get must
// return at least 1024 bytes of room. Over TLS and on connections without a
// descriptor a single byte may come first.
func (c *Conn) ReadInto(get func() []byte) (buf []byte, n int, err error) {
	switch {
	case c.tls != nil:
		return c.readIntoTLS(get)
	case c.raw == nil:
		return c.readIntoPlain(get)
	}
	o := c.rop
	if o == nil {
		o = &readOp{}
		o.fn = o.try
		c.rop = o
	}
	o.get = get
	for {
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

// readOp is what a read through RawConn needs, allocated with the first one.
type readOp struct {
	fn  func(uintptr) bool // try, bound once
	get func() []byte
	buf []byte
	n   int
	err error
}

// try reads if there is anything to read; false means wait.
func (o *readOp) try(fd uintptr) bool {
	var tmp [scratch]byte
	n, errno := sysRead(fd, tmp[:])
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno != 0:
		o.n, o.err = 0, os.NewSyscallError("read", errno)
		return true
	case n == 0:
		o.n, o.err = 0, io.EOF
		return true
	}
	o.fill(fd, tmp[:n])
	return true
}

// fill moves what was read into the caller's buffer, and more when there may be
// more.
func (o *readOp) fill(fd uintptr, got []byte) {
	o.buf, o.err = o.get(), nil
	o.n = copy(o.buf, got)
	if o.n < len(got) {
		o.err = errSmallBuffer
		return
	}
	if o.n == scratch && len(o.buf) > scratch {
		// Errors and the end are seen by the next read: they stay.
		if m, errno := sysRead(fd, o.buf[scratch:]); errno == 0 {
			o.n += m
		}
	}
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

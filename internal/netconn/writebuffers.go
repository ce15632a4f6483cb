// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
)

// tlsJoin is the most that WriteBuffers copies to make one TLS record of two
// buffers; it is the size of the largest record.
const tlsJoin = 16 << 10

// WriteBuffers writes a and then b: one system call on a socket, one record under
// TLS when both are small. It returns how many bytes of the two were written.
func (c *Conn) WriteBuffers(a, b []byte) (int, error) {
	switch {
	case len(a) == 0:
		return c.Write(b)
	case len(b) == 0:
		return c.Write(a)
	case c.tls == nil && c.raw != nil:
		return c.send(a, b)
	case len(a)+len(b) <= tlsJoin:
		j := joins.Get().(*[tlsJoin]byte)
		n := copy(j[:], a)
		n += copy(j[n:], b)
		n, err := c.Write(j[:n])
		joins.Put(j)
		return n, err
	}
	n, err := c.Write(a)
	if err != nil {
		return n, err
	}
	m, err := c.Write(b)
	return n + m, err
}

var joins = sync.Pool{New: func() any { return new([tlsJoin]byte) }}

// send writes a and b to a descriptor.
func (c *Conn) send(a, b []byte) (int, error) {
	o := writeOps.Get().(*writeOp)
	o.a, o.b, o.n, o.err = a, b, 0, nil
	for {
		err := c.raw.Write(o.fn)
		if err == nil {
			err = o.err
		} else if err = c.absorb(&c.wr, err); err == nil {
			continue
		} else if o.n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.lastTry(o, err)
		}
		n := o.n
		o.a, o.b, o.err, o.iov = nil, nil, nil, [2]syscall.Iovec{}
		writeOps.Put(o)
		return n, err
	}
}

// lastTry looks for room once more when the time is over, see splicer.lastTry.
func (c *Conn) lastTry(o *writeOp, late error) error {
	done := false
	_ = c.raw.Control(func(fd uintptr) { done = o.try(fd) }) // closed: there is no room
	if done {
		return o.err
	}
	return late
}

// writeOp is one write in progress; pooled, because nobody writes for long.
type writeOp struct {
	fn   func(uintptr) bool // try, bound once
	a, b []byte             // what is left
	n    int
	err  error
	iov  [2]syscall.Iovec
	msg  syscall.Msghdr // of iov
}

var writeOps = sync.Pool{New: func() any {
	o := &writeOp{}
	o.fn = o.try
	o.msg.Iov, o.msg.Iovlen = &o.iov[0], 2
	return o
}}

// try writes until all is written; false means wait for room.
func (o *writeOp) try(fd uintptr) bool {
	for len(o.a)+len(o.b) > 0 {
		n, errno := o.once(fd)
		switch {
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			o.err = os.NewSyscallError("send", errno)
			return true
		case n == 0:
			o.err = io.ErrUnexpectedEOF
			return true
		}
		o.n += n
		m := min(n, len(o.a))
		o.a, o.b = o.a[m:], o.b[n-m:]
	}
	return true
}

// mostAtOnce is the most that one system call is asked to write of a buffer.
const mostAtOnce = 1 << 30

// once makes one system call.
func (o *writeOp) once(fd uintptr) (int, syscall.Errno) {
	switch {
	case len(o.b) == 0:
		return sysSend(fd, o.a[:min(len(o.a), mostAtOnce)], 0)
	case len(o.a) == 0:
		return sysSend(fd, o.b[:min(len(o.b), mostAtOnce)], 0)
	}
	o.iov[0].Base, o.iov[1].Base = &o.a[0], &o.b[0]
	o.iov[0].SetLen(len(o.a))
	o.iov[1].SetLen(min(len(o.b), mostAtOnce))
	return sysSendmsg(fd, &o.msg)
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import "net"

// Bare is a plain TCP connection that has been accepted and that Go's poller does
// not know: whoever gives its descriptor to a loop of its own is spared the half of
// what accepting costs. It belongs to one goroutine at a time and must not be used
// any more once Take, Reset or Conn was called on a copy. The zero value is nobody's.
type Bare struct {
	FD     int                         // non-blocking, and closed on exec; TCP_NODELAY is set
	Closed func()                      // to be called by whoever has closed the descriptor
	Adopt  func(int) (net.Conn, error) // makes a connection of the descriptor, which it takes in any case
	Loop   any                         // that accepted it, and where it had best stay; nil: none
}

// Take returns the descriptor, which is the caller's from now on, and what is to be
// called once it is closed.
func (b *Bare) Take() (fd int, closed func()) {
	fd, closed = b.FD, b.Closed
	*b = Bare{FD: -1}
	return fd, closed
}

// Reset closes it as Conn.Reset does. It does nothing where it was taken.
func (b *Bare) Reset() {
	if b.Closed == nil {
		return
	}
	fd, closed := b.Take()
	RawReset(fd)
	closed()
}

// Conn makes a connection like any other of it. After an error it is closed.
func (b *Bare) Conn() (*Conn, error) {
	adopt := b.Adopt
	fd, closed := b.Take()
	nc, err := adopt(fd)
	if err != nil {
		closed()
		return nil, err
	}
	c := New(nc)
	c.SetOnClose(closed)
	return c, nil
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// splice fills a pipe once and passes on what the other side takes.
func (l *loop) splice(p *pair, from side) int {
	h := &p.half[from]
	if !h.writable {
		// A pipe that waits with bytes in it is one less for the others.
		h.bulk = bulkAt - 1
		return 0
	}
	pipe := l.pipe()
	if pipe == nil {
		h.bulk = 0 // copied meanwhile
		return 0
	}
	n, errno := pipe.Fill(int(p.fd[from]), pipe.Size())
	if errno != 0 || n == 0 {
		pipe.Give()
	}
	switch {
	case errno == unix.EAGAIN:
		h.readable = false
		return 0
	case errno == unix.EINVAL:
		h.bulk = bulkNever
		return 0
	case errno != 0:
		p.fail(from, errno)
		return 0
	case n == 0:
		p.ended(from)
		return 0
	case n < spliceLeast:
		h.bulk -= 2 // below bulkAt: a few full reads are wanted again
	}
	p.last = l.now
	h.pipe, h.piped = pipe, int32(n)
	l.flush(p, from)
	return n
}

// scarce is how long no pipe is asked for after there was none.
const scarce = time.Second

func (l *loop) pipe() *netconn.Pipe {
	if l.now < l.noPipes {
		return nil
	}
	p := netconn.TakePipe()
	if p == nil {
		l.noPipes = l.now.Add(scarce)
	}
	return p
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// expire ends those whose time is over.
func (l *loop) expire() {
	for {
		at, p, ok := l.heap.First()
		if !ok || at > l.now {
			return
		}
		l.heap.Remove(p.pos)
		l.expired(p)
	}
}

func (l *loop) expired(p *pair) {
	defer l.caught(p)
	switch t := p.bound(); {
	case t > l.now:
		l.push(p) // it has moved since it was put there
	case p.connecting:
		l.overdue(p)
	case p.lasts != 0 && l.now >= p.lasts:
		p.lasts = 0
		p.owner.lasting()
		l.push(p)
	case p.ends != 0 && l.now >= p.ends:
		l.finish(p, end{how: endTotal})
	case l.alive(p):
		p.last = l.now
		l.push(p)
	case !p.over:
		l.finish(p, end{how: endIdle})
	}
}

// overdue gives up a connection that there was no answer for. One whose outcome
// the kernel knows is not late: this process has not got round to it.
func (l *loop) overdue(p *pair) {
	look := [1]unix.PollFd{{Fd: p.fd[backend], Events: unix.POLLOUT}}
	if n, err := unix.Poll(look[:], 0); err == nil && n > 0 {
		l.connected(p, uint32(look[0].Revents)) // the bits are those of epoll
		return
	}
	l.abandon(p, 0, true)
}

// alive looks again at a pair on which nothing moved for the idle time. The
// kernel says that there is room only when a third of a socket's buffer is free,
// which may take a slow reader longer than that; and bytes that have left here
// may still be on their way.
func (l *loop) alive(p *pair) bool {
	before := p.half[client].total + p.half[backend].total
	p.half[client].writable, p.half[backend].writable = true, true
	if l.stir(p); p.over {
		return false
	}
	moved := p.half[client].total+p.half[backend].total != before
	for s, fd := range p.fd {
		n := int32(netconn.RawUnsent(int(fd)))
		if n > 0 && n != p.unsent[s] {
			moved = true
		}
		p.unsent[s] = n
	}
	return moved
}

// push puts a pair into the heap, by when its time is over; one that has none stays out.
func (l *loop) push(p *pair) {
	if p.over || p.pos >= 0 {
		return
	}
	if t := p.bound(); t != 0 {
		l.heap.Push(t, p)
	}
}

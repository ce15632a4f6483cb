// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/proxyproto"
)

// side is one of the two connections of a session.
type side uint8

const (
	client side = iota
	backend
)

// ending is how a pair ended.
type ending uint8

const (
	endDone   ending = iota // both peers ended their half in order
	endReset                // one of them is gone, see end.side
	endIdle                 // no byte moved for too long
	endTotal                // it reached its greatest age
	endTold                 // loop.end
	endForged               // the client began with a PROXY header
)

// end says how and by whom a pair ended.
type end struct {
	how   ending
	side  side          // of endReset: who is gone; of endDone: who ended first
	errno syscall.Errno // of endReset
}

// pair is an established session as its loop sees it: two descriptors and what
// moves between them. It belongs to the goroutine of the loop once it is added.
type pair struct {
	// Constant once it is added.
	fd    [2]int32 // by side
	idle  time.Duration
	owner owner

	slot int32 // guarded by loop.mu; -1: the loop does not have it
	pos  int32 // in loop.heap, -1 none

	half   [2]half         // by the side that it reads
	unsent [2]int32        // by side: what was unacknowledged when the idle time was over last
	last   balance.Instant // of the last byte either way
	lasts  balance.Instant // when the owner is to hear that it lasts; 0: it has, or need not
	ends   balance.Instant // its greatest age; 0: none
	guard  proxyproto.Guard
	// guarded says that a PROXY header is none of the client's to send: whoever is
	// behind might believe it.
	guarded bool
	again   bool // on loop.again
	// connecting: the backend is not connected to yet, and has to be until by (0:
	// whenever); the client is not here yet.
	connecting bool
	by         balance.Instant
	over       bool // finish has begun
	first      side // who ended its half first
	failed     end  // how is not endDone once it is over for another reason
}

// owner is who a pair is reported to. Its methods are called by the loop's
// goroutine and must not wait.
type owner interface {
	moved(from side, n int) // n bytes of what the side sent have reached the other
	ended(e end)            // the descriptors are closed
	told() bool             // the pair is to end, if it was asked to
	lasting()               // pair.lasts has come

	// reached hears that the backend is connected to; it puts the client's descriptor
	// into the pair. False: there is none, and unreached is called.
	reached(now balance.Instant) bool
	// unreached hears that the backend is not connected to, or that its descriptor
	// is not wanted: it is closed. errno is why, late that there was no answer in
	// time.
	unreached(now balance.Instant, errno syscall.Errno, late bool)
}

// half is one direction.
type half struct {
	total    int64        // bytes that have reached the other side
	ahead    []byte       // read and not yet taken by the other side
	buf      *[chunk]byte // whose memory ahead is; nil: it is nobody's
	pipe     *netconn.Pipe
	piped    int32 // bytes in the pipe
	bulk     int8  // how often in a row a read was full; bulkAt: spliced, bulkNever: cannot be
	readable bool
	writable bool // of the other side
	unsure   bool // a short read does not say that there is no more: the end or urgent data may follow
	eof      bool // the side has ended its half
	fin      bool // and that was passed on
}

const (
	// chunk is how much one read takes at most; 32 KiB are moved without telling
	// the scheduler.
	chunk = 32 << 10
	// roundMost is how much one direction moves before it is another's turn.
	roundMost = 256 << 10
	// bulkAt is after how many full reads in a row a direction is spliced, and
	// spliceLeast what a splice has to move for it to stay so.
	bulkAt      = 4
	bulkNever   = -1
	spliceLeast = 8 << 10
)

// chunks are the buffers that hold what a slow reader has not taken.
var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// bound is when the pair's time is over at the earliest; 0: never.
func (p *pair) bound() balance.Instant {
	if p.connecting {
		return p.by
	}
	t := p.ends
	if p.idle > 0 {
		t = sooner(t, p.last.Add(p.idle))
	}
	return sooner(t, p.lasts)
}

// sooner returns the earlier of two times, of which 0 is none.
func sooner(a, b balance.Instant) balance.Instant {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// blocked reports that bytes wait for the other side.
func (h *half) blocked() bool { return len(h.ahead) > 0 || h.piped > 0 }

// take notes what an event of a side says.
func (p *pair) take(s side, events uint32) {
	in, out := &p.half[s], &p.half[1-s]
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLPRI) != 0 {
		in.readable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLPRI) != 0 {
		in.unsure = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		out.writable = true
	}
}

// move moves what can be moved from a side without waiting. It reports whether
// there may be more, which is left for another turn.
func (l *loop) move(p *pair, from side) (more bool) {
	h := &p.half[from]
	left := roundMost
	for {
		if h.blocked() && !l.flush(p, from) {
			return false
		}
		switch {
		case h.eof:
			l.passEnd(p, from)
			return false
		case !h.readable:
			return false
		case left <= 0:
			return true
		}
		var n int
		if h.bulk >= bulkAt {
			n = l.splice(p, from)
		} else {
			n = l.copy(p, from)
		}
		if p.failed.how != endDone {
			return false
		}
		left -= n
	}
}

// copy reads once and passes on what the other side takes.
func (l *loop) copy(p *pair, from side) int {
	h := &p.half[from]
	n, errno := netconn.RawRecv(int(p.fd[from]), l.buf[:])
	switch {
	case errno == unix.EAGAIN:
		h.readable = false
		return 0
	case errno != 0:
		p.fail(from, errno)
		return 0
	case n == 0:
		p.ended(from)
		return 0
	}
	p.last = l.now
	var broken syscall.Errno
	if h.unsure && n < chunk {
		n, broken = l.lookOn(p, from, n)
	}
	if p.guarded && from == client && !p.guard.Over() && p.guard.Forged(l.buf[:n]) {
		p.failed = end{how: endForged, side: client}
		return 0
	}
	if n == chunk {
		if h.bulk >= 0 {
			h.bulk++
		}
	} else {
		h.bulk = min(h.bulk, 0)
		if !h.unsure {
			h.readable = false // the next byte makes an event
		}
	}
	h.ahead = l.buf[:n]
	l.flush(p, from)
	if broken != 0 {
		p.fail(from, broken)
	}
	if len(h.ahead) > 0 {
		if p.failed.how != endDone {
			h.ahead = nil // it is the loop's memory
			return n
		}
		h.buf = chunks.Get().(*[chunk]byte)
		h.ahead = h.buf[:copy(h.buf[:], h.ahead)]
	}
	return n
}

// lookOn reads on behind n bytes that a side may have ended its half with: where it
// has, they are passed on in one packet with that. It returns how many bytes there are
// now, and what broke behind them.
func (l *loop) lookOn(p *pair, from side, n int) (int, syscall.Errno) {
	more, errno := netconn.RawRecv(int(p.fd[from]), l.buf[n:])
	switch {
	case errno == unix.EAGAIN:
		p.half[from].readable = false
	case errno != 0:
		return n, errno
	case more == 0:
		p.ended(from)
	}
	return n + max(more, 0), 0
}

// flush passes on what was read before, and reports whether all of it is gone.
func (l *loop) flush(p *pair, from side) bool {
	h, to := &p.half[from], 1-from
	for len(h.ahead) > 0 {
		if !h.writable {
			return false
		}
		send := netconn.RawSend
		if h.eof {
			send = netconn.RawSendLast
		}
		n, errno := send(int(p.fd[to]), h.ahead)
		if !l.sent(p, from, n, errno) {
			return false
		}
		h.ahead = h.ahead[n:]
	}
	h.ahead = nil
	if h.buf != nil {
		chunks.Put(h.buf)
		h.buf = nil
	}
	for h.piped > 0 {
		if !h.writable {
			return false
		}
		n, errno := h.pipe.Drain(int(p.fd[to]), int(h.piped))
		if !l.sent(p, from, n, errno) {
			return false
		}
		h.piped -= int32(n)
	}
	if h.pipe != nil {
		h.pipe.Give()
		h.pipe = nil
	}
	return true
}

// sent judges a call that gave bytes to the other side.
func (l *loop) sent(p *pair, from side, n int, errno syscall.Errno) bool {
	h := &p.half[from]
	switch {
	case errno == unix.EAGAIN:
		h.writable = false
		return false
	case errno != 0:
		p.fail(1-from, errno)
		return false
	}
	h.total += int64(n)
	p.last = l.now
	p.owner.moved(from, n)
	return true
}

// ended notes that a side has ended its half.
func (p *pair) ended(s side) {
	p.half[s].eof = true
	if !p.half[1-s].eof {
		p.first = s
	}
}

// passEnd ends the half of the other side that is now complete, and has what
// RawSendLast holds back leave.
func (l *loop) passEnd(p *pair, from side) {
	h, back := &p.half[from], &p.half[1-from]
	if h.fin {
		return
	}
	if h.fin = true; back.fin || back.eof && !back.blocked() {
		return // the close that follows says so
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(p.fd[1-from]), unix.SHUT_WR, 0); errno != 0 {
		p.fail(1-from, errno)
	}
}

// fail notes that a side is gone. The first one counts.
func (p *pair) fail(s side, errno syscall.Errno) {
	if p.failed.how == endDone {
		p.failed = end{endReset, s, errno}
	}
}

// drop gives up what a direction holds.
func (h *half) drop() {
	h.ahead = nil
	if h.buf != nil {
		chunks.Put(h.buf)
		h.buf = nil
	}
	if h.pipe != nil {
		if h.piped > 0 {
			h.pipe.Close()
		} else {
			h.pipe.Give()
		}
		h.pipe, h.piped = nil, 0
	}
}

// close closes both descriptors in the way that tells the peers the truth: who
// cannot know whether it got everything sees a reset.
func (p *pair) close(e end) {
	torn := p.half[client].blocked() || p.half[backend].blocked()
	p.half[client].drop()
	p.half[backend].drop()
	c, b := int(p.fd[client]), int(p.fd[backend])
	switch {
	case p.connecting:
		netconn.RawClose(b)
	case e.how == endDone, e.how == endIdle && !torn:
		netconn.RawClose(c)
		netconn.RawClose(b)
	default:
		netconn.RawReset(c)
		netconn.RawReset(b)
	}
}

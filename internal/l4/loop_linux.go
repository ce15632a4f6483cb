// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// loop moves the bytes of many pairs on one goroutine. Descriptors are
// registered once, edge-triggered: an event says that there is something new,
// and what it says is remembered until a call finds nothing more.
type loop struct {
	// Constant.
	ep, bell int // epoll instance, eventfd
	bug      func(v any)
	done     chan struct{} // closed when the goroutine has ended

	// Owned by the goroutine.
	buf     [chunk]byte
	events  [256]unix.EpollEvent
	due     []due
	again   []*pair // have more to move
	heap    []timed // those with a time, the earliest first
	now     balance.Instant
	noPipes balance.Instant // until when no pipe is asked for

	mu     sync.Mutex // guards the rest, and pair.slot
	slots  []slot
	free   int32 // head of the list of free slots, -1 none
	live   int
	fresh  []*pair // added, and not yet in the heap
	told   []*pair // to be ended
	asleep bool    // in epoll_wait, or about to be
	until  balance.Instant
	closed bool
}

// slot is the place of one pair. A slot is reused; gen tells the uses apart.
type slot struct {
	p    *pair
	gen  uint32
	next int32 // free slot
}

// due is an event of a pair.
type due struct {
	p      *pair
	side   side
	events uint32
}

// newLoop opens a loop and starts it. Close it.
func newLoop(bug func(v any)) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open an epoll instance: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("open an eventfd: %w", err)
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: -1}); err != nil {
		_ = unix.Close(bell)
		_ = unix.Close(ep)
		return nil, fmt.Errorf("wait for an eventfd: %w", err)
	}
	l := &loop{ep: ep, bell: bell, bug: bug, done: make(chan struct{}), free: -1}
	go l.run()
	return l, nil
}

// add takes a pair over; on an error it is the caller's still. Everything that
// is to be read by the loop must have been written before.
func (l *loop) add(p *pair) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	i := l.free
	if i < 0 {
		i = int32(len(l.slots))
		l.slots = append(l.slots, slot{gen: 1})
	} else {
		l.free = l.slots[i].next
	}
	s := &l.slots[i]
	s.p = p
	p.slot = i
	for side, fd := range p.fd {
		ev := unix.EpollEvent{
			Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET,
			Fd:     i, Pad: int32(s.gen<<1 | uint32(side)),
		}
		if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, int(fd), &ev); err != nil {
			if side == 1 {
				_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, int(p.fd[0]), nil)
			}
			l.leave(p)
			return fmt.Errorf("wait for a session: %w", err)
		}
	}
	l.live++
	if t := p.bound(); t != 0 {
		l.fresh = append(l.fresh, p)
		if l.asleep && (l.until == 0 || t < l.until) {
			l.ring()
		}
	}
	return nil
}

// leave frees the slot of a pair. Called under mu.
func (l *loop) leave(p *pair) {
	s := &l.slots[p.slot]
	s.p = nil
	if s.gen++; s.gen >= 1<<31 {
		s.gen = 1
	}
	s.next, l.free = l.free, p.slot
	p.slot = -1
}

// end ends a pair from any goroutine, if it has not ended.
func (l *loop) end(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.slot < 0 {
		return
	}
	l.told = append(l.told, p)
	if l.asleep {
		l.ring()
	}
}

// ring wakes the loop. Called under mu.
func (l *loop) ring() {
	l.asleep = false
	one := [8]byte{1}
	_, _ = unix.Write(l.bell, one[:]) // full only when it rings already
}

// close ends every pair and waits for the goroutine.
func (l *loop) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.ring()
	}
	l.mu.Unlock()
	<-l.done
}

// run is the goroutine.
func (l *loop) run() {
	defer close(l.done)
	for l.turn() {
	}
	l.now = clock.Now()
	for i := range l.slots { // nothing is added any more
		if p := l.slots[i].p; p != nil {
			l.finish(p, end{how: endTold})
		}
	}
	_ = unix.Close(l.bell)
	_ = unix.Close(l.ep)
}

// turn waits for events and handles them. It reports false when the loop is
// closed.
func (l *loop) turn() bool {
	defer l.caught(nil)
	n := l.poll()
	if n == 0 && len(l.again) == 0 {
		if wait, ok := l.mayWait(); ok {
			n = l.wait(wait)
		}
	}
	l.now = clock.Now()
	told, closed := l.collect(n)
	if closed {
		return false
	}
	for _, p := range told {
		if !p.over {
			l.finish(p, end{how: endTold})
		}
	}
	for i := range l.due {
		l.handle(&l.due[i])
	}
	clear(l.due)
	l.due = l.due[:0]
	l.resume()
	l.expire()
	return true
}

// caught, deferred, turns a panic into the loss of one session.
func (l *loop) caught(p *pair) {
	v := recover()
	if v == nil {
		return
	}
	l.bug(v)
	if p != nil && !p.over {
		l.finish(p, end{how: endTold})
	}
}

// mayWait says for how long nothing is to be done; ok is false when there is.
func (l *loop) mayWait() (ms int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.told) > 0 {
		return 0, false
	}
	for _, p := range l.fresh {
		l.push(p)
	}
	clear(l.fresh)
	l.fresh = l.fresh[:0]
	l.asleep, l.until = true, 0
	if len(l.heap) == 0 {
		return -1, true
	}
	l.until = l.heap[0].at
	left := l.until.Sub(clock.Now())
	if left <= 0 {
		l.asleep = false
		return 0, false
	}
	return int(min((left+time.Millisecond-1)/time.Millisecond, 1<<30)), true
}

// poll asks for events without waiting.
func (l *loop) poll() int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.ep), uintptr(unsafe.Pointer(&l.events)), uintptr(len(l.events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// wait waits for events, at most so many milliseconds (-1: for ever). The
// runtime may take the processor back meanwhile.
func (l *loop) wait(ms int) int {
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.ep), uintptr(unsafe.Pointer(&l.events)), uintptr(len(l.events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0 // EINTR
	}
	return int(n)
}

// collect finds the pairs that events belong to.
func (l *loop) collect(n int) (told []*pair, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asleep = false
	for i := range l.events[:n] {
		e := &l.events[i]
		if e.Fd < 0 {
			var b [8]byte
			_, _ = unix.Read(l.bell, b[:])
			continue
		}
		s := &l.slots[e.Fd]
		if s.p == nil || s.gen != uint32(e.Pad)>>1 {
			continue // it has ended since
		}
		l.due = append(l.due, due{s.p, side(e.Pad & 1), e.Events})
	}
	for _, p := range l.fresh {
		l.push(p)
	}
	clear(l.fresh)
	l.fresh = l.fresh[:0]
	told, l.told = l.told, nil
	return told, l.closed
}

// handle does what an event asks for.
func (l *loop) handle(d *due) {
	p := d.p
	if p.over {
		return
	}
	defer l.caught(p)
	p.take(d.side, d.events)
	l.stir(p)
	if !p.over && d.events&unix.EPOLLERR != 0 && p.half[d.side].eof {
		// Reading says nothing more of a side that has ended its half.
		if v, err := unix.GetsockoptInt(int(p.fd[d.side]), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && v != 0 {
			l.finish(p, end{endReset, d.side, syscall.Errno(v)})
		}
	}
}

// stir moves a pair in both directions and ends it when it is over.
func (l *loop) stir(p *pair) {
	more := l.move(p, client)
	if p.failed.how == endDone {
		more = l.move(p, backend) || more
	}
	switch {
	case p.failed.how != endDone:
		l.finish(p, p.failed)
	case p.half[client].fin && p.half[backend].fin:
		l.finish(p, end{how: endDone, side: p.first})
	case more && !p.again:
		p.again = true
		l.again = append(l.again, p)
	}
}

// resume goes on with those that had more to move than one turn allows.
func (l *loop) resume() {
	n := len(l.again)
	for i := range n {
		p := l.again[i]
		l.again[i] = nil
		p.again = false
		if !p.over {
			l.resumed(p)
		}
	}
	l.again = append(l.again[:0], l.again[n:]...)
}

func (l *loop) resumed(p *pair) {
	defer l.caught(p)
	l.stir(p)
}

// expire ends those whose time is over.
func (l *loop) expire() {
	for len(l.heap) > 0 && l.heap[0].at <= l.now {
		p := l.heap[0].p
		l.remove(p)
		l.expired(p)
	}
}

func (l *loop) expired(p *pair) {
	defer l.caught(p)
	switch t := p.bound(); {
	case t > l.now:
		l.push(p) // it has moved since it was put there
	case p.ends != 0 && l.now >= p.ends:
		l.finish(p, end{how: endTotal})
	case l.alive(p):
		p.last = l.now
		l.push(p)
	case !p.over:
		l.finish(p, end{how: endIdle})
	}
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

// finish ends a pair and tells its owner.
func (l *loop) finish(p *pair, e end) {
	p.over = true
	if p.pos >= 0 {
		l.remove(p)
	}
	l.mu.Lock()
	l.leave(p)
	l.live--
	l.mu.Unlock()
	p.close(e)
	p.owner.ended(e)
}

// timed is a pair and when it is to be looked at.
type timed struct {
	at balance.Instant
	p  *pair
}

// push puts a pair into the heap, by when its time is over.
func (l *loop) push(p *pair) {
	if p.over || p.pos >= 0 {
		return
	}
	l.heap = append(l.heap, timed{p.bound(), p})
	l.up(len(l.heap) - 1)
}

// remove takes a pair out of the heap.
func (l *loop) remove(p *pair) {
	i, last := int(p.pos), len(l.heap)-1
	p.pos = -1
	moved := l.heap[last]
	l.heap[last] = timed{}
	l.heap = l.heap[:last]
	if i == last {
		return
	}
	l.place(i, moved)
	l.up(i)
	l.down(int(moved.p.pos))
}

func (l *loop) up(i int) {
	t := l.heap[i]
	for i > 0 && l.heap[(i-1)/2].at > t.at {
		l.place(i, l.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	l.place(i, t)
}

func (l *loop) down(i int) {
	t := l.heap[i]
	for {
		child := 2*i + 1
		if child >= len(l.heap) {
			break
		}
		if r := child + 1; r < len(l.heap) && l.heap[r].at < l.heap[child].at {
			child = r
		}
		if t.at <= l.heap[child].at {
			break
		}
		l.place(i, l.heap[child])
		i = child
	}
	l.place(i, t)
}

func (l *loop) place(i int, t timed) {
	l.heap[i] = t
	t.p.pos = int32(i)
}

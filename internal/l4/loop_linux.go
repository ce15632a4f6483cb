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
	poller

	// Constant.
	bug  func(v any)
	done chan struct{} // closed when the goroutine has ended

	// Owned by the goroutine.
	buf     [chunk]byte
	due     []due
	clients []*watch                 // those whose sockets clients wait at
	again   []*pair                  // have more to move
	heap    netconn.Deadlines[*pair] // of those with a time
	now     balance.Instant
	noPipes balance.Instant // until when no pipe is asked for

	mu      sync.Mutex // guards the rest, and pair.slot
	slots   []slot
	free    int32 // head of the list of free slots, -1 none
	live    int
	fresh   []*pair // added, and not yet in the heap
	told    []*pair // to be ended
	ask     bool    // those that connect are to be asked whether they are wanted
	asleep  bool    // in epoll_wait, or about to be
	until   balance.Instant
	dialed  balance.Instant // when a pair that connects was added last
	watches []*watch        // nil: free
	closed  bool
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
	l := &loop{bug: bug, done: make(chan struct{}), free: -1}
	if err := l.open("sessions"); err != nil {
		return nil, err
	}
	l.heap = netconn.NewDeadlines(func(p *pair, place int32) { p.pos = place })
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
	l.slots[i].p = p
	p.slot = i
	if err := l.register(p, backend); err != nil {
		l.leave(p)
		return err
	}
	if !p.connecting {
		if err := l.register(p, client); err != nil {
			_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, int(p.fd[backend]), nil)
			l.leave(p)
			return err
		}
	} else {
		l.dialed = p.last
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

// register has a side of a pair waited for. Called under mu.
func (l *loop) register(p *pair, s side) error {
	ev := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET,
		Fd:     p.slot, Pad: int32(l.slots[p.slot].gen<<1 | uint32(s)),
	}
	// None of it waits, and the scheduler need not be told.
	if _, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(l.ep), unix.EPOLL_CTL_ADD, uintptr(p.fd[s]), uintptr(unsafe.Pointer(&ev)), 0, 0); errno != 0 {
		return fmt.Errorf("wait for a session: %w", errno)
	}
	return nil
}

// prepare makes a pair that no loop has what it is to be. Whoever was told of it
// before may still ask to end it.
func (l *loop) prepare(p *pair, as pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*p = as
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

// review has the loop dismiss soon who connects and is not wanted any more.
func (l *loop) review() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.ask = true; l.asleep {
		l.ring()
	}
}

// ring wakes the loop. Called under mu.
func (l *loop) ring() {
	l.asleep = false
	l.strike()
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
	l.release()
}

// turn waits for events and handles them. It reports false when the loop is
// closed, and only then: a panic costs the rest of the turn.
func (l *loop) turn() (more bool) {
	more = true
	defer l.caught(nil)
	n := 0
	if len(l.again) == 0 && l.mayWait() {
		n = l.wait(l.until)
	} else {
		n = l.poll()
	}
	l.now = clock.Now()
	told, ask, closed := l.collect(n)
	if closed {
		return false
	}
	if ask {
		l.dismiss()
	}
	for _, p := range told {
		if !p.over && p.owner.told() {
			l.finish(p, end{how: endTold})
		}
	}
	before := len(l.again)
	for i := range l.due {
		l.handle(&l.due[i])
	}
	clear(l.due)
	l.due = l.due[:0]
	l.accept()
	l.resume(before)
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
	switch {
	case p == nil:
		time.Sleep(panicPause)
	case !p.over:
		l.finish(p, end{how: endTold})
	}
}

// panicPause keeps a panic that comes again with each turn from filling the log.
const panicPause = 10 * time.Millisecond

// mayWait reports that nothing is to be done until l.until, and that the loop is rung
// for what comes before.
func (l *loop) mayWait() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.ask || len(l.told) > 0 {
		return false
	}
	for _, p := range l.fresh {
		l.push(p)
	}
	clear(l.fresh)
	l.fresh = l.fresh[:0]
	now := clock.Now()
	until, _, _ := l.heap.First()
	// Those that connect have a time that is short and nearly never needed. While
	// there are new ones the loop wakes before the next one's, and need not be rung.
	if l.dialed != 0 && now.Sub(l.dialed) < time.Second {
		if soon := now.Add(connectLook); until == 0 || soon < until {
			until = soon
		}
	}
	if until != 0 && until <= now {
		return false
	}
	l.asleep, l.until = true, until
	return true
}

// connectLook is how long a loop sleeps at most while there are new connections.
const connectLook = 250 * time.Millisecond

// collect finds the pairs that events belong to.
func (l *loop) collect(n int) (told []*pair, ask, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asleep = false
	for i := range l.events[:n] {
		e := &l.events[i]
		if e.Fd <= firstWatch {
			if w := l.watches[firstWatch-e.Fd]; w != nil {
				l.clients = append(l.clients, w)
			}
			continue
		}
		if e.Fd < 0 {
			l.struck()
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
	ask, l.ask = l.ask, false
	return told, ask, l.closed
}

// handle does what an event asks for.
func (l *loop) handle(d *due) {
	p := d.p
	if p == nil || p.over {
		return
	}
	defer l.caught(p)
	if p.connecting {
		l.connected(p, d.events)
		return
	}
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

// resume goes on with the n pairs that had more to move than one turn allows.
func (l *loop) resume(n int) {
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

// finish ends a pair and tells its owner.
func (l *loop) finish(p *pair, e end) {
	p.over = true
	if p.pos >= 0 {
		l.heap.Remove(p.pos)
	}
	l.mu.Lock()
	l.forget(p)
	l.mu.Unlock()
	p.close(e)
	p.owner.ended(e)
}

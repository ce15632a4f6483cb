// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// flowLoop moves the datagrams of many flows on one goroutine. Clients' datagrams
// come from sockets that the kernel spreads clients over, one of each address for
// each loop, so that a flow is one loop's alone and nothing of it is locked.
type flowLoop struct {
	poller

	// Constant.
	plain  bool          // without what the kernel offers to put datagrams together and to cut them apart
	settle time.Duration // see Flow.settles
	bug    func(v any)
	done   chan struct{} // closed when the goroutine has ended

	// Owned by the goroutine.
	up, down   *inbox // from clients, from backends
	used       int    // messages of down that out refers to
	out        outbox
	outPort    *port // what out is to be sent from
	fwd        forward
	pieces     [batch]unix.Iovec
	parts      [batch]unix.Iovec
	slots      []flowSlot
	free       int32 // head of the list of free slots, -1 none
	ports      []*port
	shelves    []*shelf
	shelfOf    map[*Route]*shelf
	againPorts []*port
	again      []*Flow // have more to read
	ending     []*Flow // told to end
	closing    []*Flow // of them, those that wait for an answer, the first to give up first
	now        balance.Instant
	paused     bool // nothing is read
	waitedOut  bool // for room to send, in this turn
	req        balance.Request
	others     []*flowLoop     // of the relay, those after this one first
	unresolved <-chan struct{} // a name that the flow which is opened waits for; nil: none
	held       held

	loose atomic.Int64 // flows that may be ended for others
	wake               // shared with other goroutines
}

// flowSlot is the place of one flow or port, found by what epoll says. A slot is
// reused; gen tells the uses apart.
type flowSlot struct {
	f    *Flow
	p    *port
	gen  uint32
	next int32 // free slot
}

// newFlowLoop opens a loop and starts it. Close it.
func newFlowLoop(bug func(v any), plain bool, settle time.Duration) (*flowLoop, error) {
	l := &flowLoop{
		plain: plain, settle: settle, bug: bug, done: make(chan struct{}), free: -1,
		up: newInbox(), down: newInbox(), shelfOf: make(map[*Route]*shelf),
	}
	if err := l.poller.open("flows"); err != nil {
		return nil, err
	}
	l.strikes = &l.poller
	go l.run()
	return l, nil
}

// close ends every flow and waits for the goroutine.
func (l *flowLoop) close() {
	l.shut()
	<-l.done
}

// run is the goroutine.
func (l *flowLoop) run() {
	defer close(l.done)
	for l.turn() {
	}
	l.now = clock.Now()
	l.loseAll()
	for i := range l.slots {
		if f := l.slots[i].f; f != nil {
			f.tell(causeShutdown)
			if f.given {
				l.abandon(f)
			} else {
				l.finish(f, over{})
			}
		}
	}
	for len(l.ports) > 0 {
		l.removePort(l.ports[0])
	}
	l.release()
}

// turn waits for events and handles them. It reports false when the loop is
// closed, and only then: a panic costs the rest of the turn.
func (l *flowLoop) turn() (more bool) {
	more = true
	defer l.caught()
	n := 0
	if (l.paused || len(l.again)+len(l.againPorts) == 0) && l.sleep() {
		n = l.wait(l.soonest())
	} else {
		n = l.poll()
	}
	l.now = clock.Now()
	l.waitedOut = false
	todo, ends, closed := l.awake()
	l.ending = append(l.ending, ends...)
	for _, f := range todo {
		l.do(f)
	}
	if closed {
		return false
	}
	for i := range l.events[:n] {
		l.event(&l.events[i])
	}
	if l.paused {
		return true
	}
	for _, f := range l.ending {
		l.told(f)
	}
	clear(l.ending)
	l.ending = l.ending[:0]
	l.resume()
	l.flush()
	l.closeAnswered()
	l.expire()
	return true
}

// do does what another goroutine has asked for. A panic is that wish's alone: somebody
// may wait for each of the others.
func (l *flowLoop) do(f func()) {
	defer func() {
		if v := recover(); v != nil {
			l.bug(v)
		}
	}()
	f()
}

// caught, deferred, turns a panic into the loss of what the turn was about.
func (l *flowLoop) caught() {
	if v := recover(); v != nil {
		l.bug(v)
		l.out.reset()
		l.used, l.ending = 0, nil
		time.Sleep(panicPause)
	}
}

// soonest is when something is to be done next; 0: never.
func (l *flowLoop) soonest() (at balance.Instant) {
	if l.paused {
		return 0
	}
	if len(l.closing) > 0 {
		at = l.closing[0].until
	}
	for _, s := range l.shelves {
		if t := s.next(); t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// event handles what epoll says.
func (l *flowLoop) event(e *unix.EpollEvent) {
	if e.Fd < 0 {
		l.struck()
		return
	}
	s := &l.slots[e.Fd]
	switch {
	case l.paused: // what there is to read is read when it is over
	case s.gen != uint32(e.Pad): // it has ended since
	case s.p != nil:
		l.readPort(s.p)
	case s.f != nil:
		s.f.unsure = s.f.unsure || e.Events&unix.EPOLLERR != 0
		l.readFlow(s.f)
	}
}

// resume goes on with those that had more to read than one turn allows, unless another
// process reads them by now.
func (l *flowLoop) resume() {
	n := len(l.againPorts)
	for i := range n {
		p := l.againPorts[i]
		if p.again = false; p.slot >= 0 && !p.given {
			l.readPort(p)
		}
	}
	l.againPorts = append(l.againPorts[:0], l.againPorts[n:]...)
	n = len(l.again)
	for i := range n {
		f := l.again[i]
		l.again[i] = nil
		if f == nil {
			continue // a turn ended here, by a panic
		}
		if f.again = false; f.slot >= 0 && !f.given {
			l.readFlow(f)
		}
	}
	l.again = append(l.again[:0], l.again[n:]...)
}

// enter gives a descriptor a slot and waits for it.
func (l *flowLoop) enter(fd int, f *Flow, p *port) (int32, error) {
	i := l.free
	if i < 0 {
		i = int32(len(l.slots))
		l.slots = append(l.slots, flowSlot{gen: 1, next: -1})
	} else {
		l.free = l.slots[i].next
	}
	s := &l.slots[i]
	s.f, s.p = f, p
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: i, Pad: int32(s.gen)}
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.leave(i)
		return -1, fmt.Errorf("wait for a socket: %w", err)
	}
	return i, nil
}

// leave frees a slot.
func (l *flowLoop) leave(i int32) {
	s := &l.slots[i]
	s.f, s.p = nil, nil
	if s.gen++; s.gen >= 1<<31 {
		s.gen = 1
	}
	s.next, l.free = l.free, i
}

// shelfFor returns where the flows of a route are kept.
func (l *flowLoop) shelfFor(own *Flows, rt *Route) *shelf {
	s := l.shelfOf[rt]
	if s == nil {
		s = &shelf{rt: rt, own: own}
		l.shelfOf[rt] = s
		l.shelves = append(l.shelves, s)
	}
	return s
}

// expire ends those whose time is over.
func (l *flowLoop) expire() {
	for i := 0; i < len(l.shelves); {
		s := l.shelves[i]
		for _, q := range [...]*queue{&s.fresh, &s.answered} {
			for f := q.first; f != nil && f.last.Add(s.own.freshFor(s.rt)) <= l.now; f = q.first {
				l.finish(f, over{idle: true})
			}
		}
		for f := s.settled.first; f != nil && s.rt.Idle > 0 && f.last.Add(s.rt.Idle) <= l.now; f = s.settled.first {
			l.finish(f, over{idle: true})
		}
		for f := s.born.first; f != nil && f.began.Add(s.rt.Total) <= l.now; f = s.born.first {
			l.finish(f, over{aged: true})
		}
		if s.n == 0 {
			last := len(l.shelves) - 1
			l.shelves[i], l.shelves[last] = l.shelves[last], nil
			l.shelves = l.shelves[:last]
			delete(l.shelfOf, s.rt)
			continue
		}
		i++
	}
}

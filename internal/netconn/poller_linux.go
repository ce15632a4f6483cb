// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// PollEvent says why a Poller called back.
type PollEvent uint8

// What a Poller reports.
const (
	PollReady   PollEvent = iota // the awaited condition holds (an error counts)
	PollExpired                  // the deadline passed
	PollGone                     // Abort or Close was called on the connection, or the Poller is closed
)

// PollWant says what a Poller waits for.
type PollWant uint32

// What a Poller can wait for. Errors and hang-ups end either.
const (
	WantBytes  PollWant = unix.EPOLLIN | unix.EPOLLRDHUP
	WantHangup PollWant = 0 // reset or hang-up only: not bytes, not a half-close
)

// linger is how long the goroutine of a Poller with nothing to wait for stays.
const linger = 100 * time.Millisecond

// Poller waits for many connections with one epoll instance and one goroutine,
// which exists only while something is waited for (and 100 ms longer). The
// instance is itself waited for through Go's poller, so no thread is held. Each
// wait costs about 60 bytes of Go memory beside its callback. All methods may
// be called from anywhere.
type Poller struct {
	// Constant after construction.
	file  *os.File
	raw   syscall.RawConn
	spawn bool // callbacks run on goroutines of their own

	// Owned by the goroutine.
	events [128]unix.EpollEvent
	n      int
	fired  []fired

	mu      sync.Mutex // guards the rest; taken before no other lock
	closed  bool
	running bool
	done    chan struct{} // closed when the running goroutine has ended
	armed   balance.Instant
	slots   []pollSlot
	free    int32 // head of the list of free slots, -1 none
	live    int
	heap    Deadlines[int32] // of slots with a deadline
}

// pollSlot is one wait. A slot is reused; gen tells the uses apart.
type pollSlot struct {
	conn *Conn
	fn   func(PollEvent)
	hook *func()
	gen  uint32
	pos  int32 // place in the heap, -1 none; next free slot when free
}

// fired is a callback that is due.
type fired struct {
	fn func(PollEvent)
	ev PollEvent
}

// Ticket names one wait of a Poller. The zero value names none.
type Ticket struct {
	slot int32
	gen  uint32
}

// NewPoller opens the epoll instance. With spawn each callback runs on a new
// goroutine; without, on the Poller's own, and must not block. Close it.
func NewPoller(spawn bool) (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open an epoll instance: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make the epoll instance non-blocking: %w", err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll"), spawn: spawn, free: -1}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("reach the epoll instance: %w", err)
	}
	p.heap = NewDeadlines(func(slot, place int32) { p.slots[slot].pos = place })
	return p, nil
}

// Wait calls fn exactly once: when want holds, the deadline (0: none) has
// passed, or the connection or the Poller is over; unless Cancel comes first.
// A condition that holds already is reported at once. One wait per connection
// at a time. On an error fn is not called.
func (p *Poller) Wait(c *Conn, want PollWant, deadline balance.Instant, fn func(PollEvent)) (Ticket, error) {
	if c.raw == nil {
		return Ticket{}, errNoDescriptor
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return Ticket{}, os.ErrClosed
	}
	t := p.take(c, fn, deadline)
	hook := func() { p.end(t, PollGone) }
	p.slots[t.slot].hook = &hook
	c.hook.Store(&hook)
	// Registered under the lock, so that a wait that ends at once and is
	// followed by another cannot have its registration overtake the other's.
	err := p.add(c, want, t)
	if err != nil {
		p.releaseLocked(t)
	}
	p.mu.Unlock()
	if err != nil {
		return Ticket{}, err
	}
	// The hook was visible before the flags are looked at; Abort and Close set
	// their flag before they look for a hook: one of the two sees the other.
	if c.gone() {
		c.wake()
	}
	return t, nil
}

// take fills a slot and makes sure the goroutine runs and wakes in time.
func (p *Poller) take(c *Conn, fn func(PollEvent), deadline balance.Instant) Ticket {
	i := p.free
	if i < 0 {
		i = int32(len(p.slots))
		p.slots = append(p.slots, pollSlot{gen: 1})
	} else {
		p.free = p.slots[i].pos
	}
	s := &p.slots[i]
	s.conn, s.fn, s.pos = c, fn, -1
	p.live++
	if deadline != 0 {
		p.heap.Push(deadline, i)
	}
	switch {
	case !p.running:
		p.running, p.done = true, make(chan struct{})
		go p.run(p.done)
	case deadline != 0 && (p.armed == 0 || deadline < p.armed):
		p.armLocked(deadline)
	}
	return Ticket{slot: i, gen: s.gen}
}

// add registers the descriptor, or re-arms it: a descriptor stays registered
// (disarmed by EPOLLONESHOT) until it is closed.
func (p *Poller) add(c *Conn, want PollWant, t Ticket) error {
	ev := unix.EpollEvent{Events: uint32(want) | unix.EPOLLONESHOT, Fd: t.slot, Pad: int32(t.gen)}
	var ctl error
	err := c.raw.Control(func(fd uintptr) {
		_ = p.raw.Control(func(ep uintptr) {
			first, second := unix.EPOLL_CTL_ADD, unix.EPOLL_CTL_MOD
			if c.flags.Load()&flagPolled != 0 {
				first, second = second, first
			}
			if ctl = unix.EpollCtl(int(ep), first, int(fd), &ev); ctl == unix.EEXIST || ctl == unix.ENOENT {
				ctl = unix.EpollCtl(int(ep), second, int(fd), &ev)
			}
		})
	})
	if err == nil {
		err = ctl
	}
	if err != nil {
		return fmt.Errorf("wait for a connection: %w", err)
	}
	c.flags.Or(flagPolled)
	return nil
}

// Cancel ends a wait and reports whether it did: then fn is not called. A
// descriptor that was waited for by want stays registered, disarmed at the
// first event.
func (p *Poller) Cancel(t Ticket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.releaseLocked(t)
	return ok
}

// end finishes a wait from outside the goroutine.
func (p *Poller) end(t Ticket, ev PollEvent) {
	p.mu.Lock()
	fn, ok := p.releaseLocked(t)
	p.mu.Unlock()
	if ok {
		p.call(fired{fn, ev})
	}
}

func (p *Poller) call(f fired) {
	if p.spawn {
		go f.fn(f.ev)
	} else {
		f.fn(f.ev)
	}
}

// releaseLocked frees the slot of a wait that is still on.
func (p *Poller) releaseLocked(t Ticket) (func(PollEvent), bool) {
	if t.gen == 0 || int(t.slot) >= len(p.slots) || p.slots[t.slot].gen != t.gen || p.slots[t.slot].conn == nil {
		return nil, false
	}
	s := &p.slots[t.slot]
	fn := s.fn
	s.conn.hook.CompareAndSwap(s.hook, nil)
	if s.pos >= 0 {
		p.heap.Remove(s.pos)
	}
	gen := s.gen + 1
	if gen == 0 {
		gen = 1
	}
	*s = pollSlot{gen: gen, pos: p.free}
	p.free = t.slot
	p.live--
	if p.live == 0 && p.running && !p.closed {
		// The goroutine may sleep until a deadline that nobody waits for any more.
		if end := clock.Now().Add(linger); p.armed == 0 || p.armed > end {
			p.armLocked(end)
		}
	}
	return fn, true
}

// Waiting returns the number of waits.
func (p *Poller) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

// Close ends every wait with PollGone and waits for the goroutine.
func (p *Poller) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	var due []fired
	for i := range p.slots {
		if p.slots[i].conn != nil {
			fn, _ := p.releaseLocked(Ticket{int32(i), p.slots[i].gen})
			due = append(due, fired{fn, PollGone})
		}
	}
	running, done := p.running, p.done
	if running {
		_ = p.file.SetReadDeadline(past)
	}
	p.mu.Unlock()
	for _, f := range due {
		p.call(f)
	}
	if running {
		<-done
	}
	return p.file.Close()
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// run is the Poller's goroutine.
func (p *Poller) run(done chan struct{}) {
	defer close(done)
	poll := p.poll
	for {
		if !p.rearm() {
			return
		}
		// An error is the deadline that rearm set, or Close.
		if err := p.raw.Read(poll); err != nil {
			p.n = 0
		}
		p.collect(clock.Now())
		for i, f := range p.fired {
			p.call(f)
			p.fired[i] = fired{}
		}
		p.fired = p.fired[:0]
	}
}

// poll asks the epoll instance without waiting; false means wait.
func (p *Poller) poll(ep uintptr) bool {
	n, err := unix.EpollWait(int(ep), p.events[:], 0)
	for err == unix.EINTR {
		n, err = unix.EpollWait(int(ep), p.events[:], 0)
	}
	p.n = max(n, 0)
	return n != 0
}

// rearm sets when to wake at the latest. It reports false when the goroutine
// must end: the Poller is closed, or has lingered long enough with nothing to do.
func (p *Poller) rearm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.running = false
		return false
	}
	now := clock.Now()
	switch {
	case p.live > 0 && p.armed != 0 && p.armed > now && (p.heap.Len() == 0 || p.armed <= p.first()):
		// Armed early enough already: an early wake is absorbed here.
	case p.live > 0 && p.heap.Len() > 0:
		p.armLocked(p.first())
	case p.live > 0:
		if p.armed != 0 {
			p.armLocked(0)
		}
	case p.armed == 0 || p.armed > now.Add(linger):
		p.armLocked(now.Add(linger))
	case p.armed <= now:
		p.running = false // armed stays: the next goroutine must set it anew
		return false
	}
	return true
}

func (p *Poller) armLocked(at balance.Instant) {
	p.armed = at
	var t time.Time
	if at != 0 {
		t = clock.Time(at)
	}
	_ = p.file.SetReadDeadline(t) // fails only when closed, and then run ends
}

// collect moves the callbacks that are due into p.fired.
func (p *Poller) collect(now balance.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events[:p.n] {
		if fn, ok := p.releaseLocked(Ticket{e.Fd, uint32(e.Pad)}); ok {
			p.fired = append(p.fired, fired{fn, PollReady})
		}
	}
	for {
		at, i, ok := p.heap.First()
		if !ok || at > now {
			return
		}
		fn, _ := p.releaseLocked(Ticket{i, p.slots[i].gen})
		p.fired = append(p.fired, fired{fn, PollExpired})
	}
}

// first is the earliest deadline, where there is one.
func (p *Poller) first() balance.Instant {
	at, _, _ := p.heap.First()
	return at
}

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
	case p.live > 0 && p.armed != 0 && p.armed > now && (len(p.heap) == 0 || p.armed <= p.heap[0].at):
		// Armed early enough already: an early wake is absorbed here.
	case p.live > 0 && len(p.heap) > 0:
		p.armLocked(p.heap[0].at)
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
	for len(p.heap) > 0 && p.heap[0].at <= now {
		i := p.heap[0].slot
		fn, _ := p.releaseLocked(Ticket{i, p.slots[i].gen})
		p.fired = append(p.fired, fired{fn, PollExpired})
	}
}

// heapItem is a wait with a deadline. The heap is written out, because
// container/heap would box every item.
type heapItem struct {
	at   balance.Instant
	slot int32
}

func (p *Poller) push(it heapItem) {
	p.heap = append(p.heap, it)
	p.up(len(p.heap) - 1)
}

func (p *Poller) remove(i int) {
	last := len(p.heap) - 1
	p.slots[p.heap[i].slot].pos = -1
	if i != last {
		p.heap[i] = p.heap[last]
	}
	p.heap = p.heap[:last]
	if i != last {
		p.slots[p.heap[i].slot].pos = int32(i)
		p.up(i)
		p.down(i)
	}
}

func (p *Poller) up(i int) {
	it := p.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if p.heap[parent].at <= it.at {
			break
		}
		p.place(i, p.heap[parent])
		i = parent
	}
	p.place(i, it)
}

func (p *Poller) down(i int) {
	it := p.heap[i]
	for {
		child := 2*i + 1
		if child >= len(p.heap) {
			break
		}
		if r := child + 1; r < len(p.heap) && p.heap[r].at < p.heap[child].at {
			child = r
		}
		if it.at <= p.heap[child].at {
			break
		}
		p.place(i, p.heap[child])
		i = child
	}
	p.place(i, it)
}

func (p *Poller) place(i int, it heapItem) {
	p.heap[i] = it
	p.slots[it.slot].pos = int32(i)
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/balance"
)

// queue holds the requests that wait for a slot, oldest first.
//
// No waiter is lost: a waiter raises length and then tries to pick; whoever
// frees a slot does so and then reads length. One of the two sees the other.
type queue struct {
	length atomic.Int32

	mu         sync.Mutex // guards the rest and the waiters' fields
	head, tail *waiter
}

// waiter is one waiting request. ready receives exactly one value, from
// whoever takes the waiter off the queue.
type waiter struct {
	l          *Lease
	r          *balance.Request
	ready      chan Refusal // capacity 1
	prev, next *waiter
	queued     bool
}

// Ticket is one request's place in the queue, for callers that cannot block.
// Its methods are not safe for concurrent use.
type Ticket struct {
	w    waiter
	got  Refusal
	done bool
}

// Enqueue is Wait for callers that cannot block: a request that Pick answered
// with Full is queued, and the ticket is asked for the answer (Poll) or given up
// (Abandon). Full comes with the ticket; any other answer is final, comes without
// one, and Granted among them has filled l. Neither l nor r may be touched while
// the request waits. Limits.QueueTimeout is the caller's to keep.
func (p *Pool) Enqueue(l *Lease, r *balance.Request) (*Ticket, Refusal) {
	t := &Ticket{w: waiter{l: l, r: r, ready: make(chan Refusal, 1)}}
	if got := p.enqueue(&t.w); got != Full {
		return nil, got
	}
	return t, Full
}

// Poll returns the answer, or false while the request waits.
func (t *Ticket) Poll() (Refusal, bool) {
	if !t.done {
		select {
		case t.got = <-t.w.ready:
			t.done = true
		default:
			return Full, false
		}
	}
	return t.got, true
}

// Abandon takes a request off the queue. It returns false when the request has
// been answered meanwhile: then Poll has the answer, and a granted slot is held.
func (p *Pool) Abandon(t *Ticket) bool { return p.abandon(&t.w) }

func (q *queue) push(w *waiter) {
	w.queued = true
	if w.prev = q.tail; w.prev != nil {
		w.prev.next = w
	} else {
		q.head = w
	}
	q.tail = w
	q.length.Add(1)
}

func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.length.Add(-1)
}

// enqueue puts a waiter at the end, or answers at once.
func (p *Pool) enqueue(w *waiter) Refusal {
	q := &p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if limits := &p.set.Load().Limits; int(q.length.Load()) >= limits.Queue {
		got := QueueFull
		if limits.PoolRequests == 0 && limits.BackendRequests == 0 {
			got = p.try(w, w.r.Now) // it met limits that have been lifted since
		}
		if got == Full || got == QueueFull {
			p.refusedFull()
			got = QueueFull
		}
		return got
	}
	q.push(w)
	for old, i := q.head, 1; old != w; old = old.next {
		if old.r.Tried.Len() == 0 || i == handOnLook {
			return Full // older ones wait; they are served first
		}
		i++ // what this one waits for may be elsewhere than what is free
	}
	got := p.try(w, w.r.Now)
	if got != Full {
		q.remove(w)
	}
	return got
}

// abandon takes a waiter off the queue because its time is over. It returns
// false when it had been served already: then ready holds the answer.
func (p *Pool) abandon(w *waiter) bool {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	if !w.queued {
		return false
	}
	p.queue.remove(w)
	return true
}

// try picks for a waiter. The queue's lock is held: slots that others give
// back meanwhile come up when they get the lock in turn.
func (p *Pool) try(w *waiter, now balance.Instant) Refusal {
	r := *w.r
	r.Now = max(now, r.Now)
	got, _ := p.admit(w.l, &r)
	return got
}

// giveBack ends a lease in a pool with limits: the slot goes to the oldest
// waiter as it is, without a moment in which someone else could take it.
func (p *Pool) giveBack(m *member, now balance.Instant, counted bool, a *adaptive) {
	if p.queue.length.Load() != 0 && p.handOn(m, now, counted, a) {
		return
	}
	m.b.Release()
	if counted {
		p.inFlight.Add(-1)
	}
	if a != nil {
		a.leave()
	}
	if p.queue.length.Load() != 0 {
		p.kick(now)
	}
}

// handOnLook bounds how many waiters are looked at for one that has not tried
// the backend which is free: a request on its second attempt waits for another
// one, and must not keep those behind it from what it does not want.
const handOnLook = 8

func (p *Pool) handOn(m *member, now balance.Instant, counted bool, a *adaptive) bool {
	if !m.takesWork() {
		return false
	}
	if n := m.b.Limit(); n > 0 && m.b.InFlight() > n {
		return false
	}
	q := &p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.head
	for i := 0; w != nil && w.r.Tried.Has(m.b.Hash()); i++ {
		if w = w.next; i == handOnLook {
			w = nil
		}
	}
	if w == nil {
		return false
	}
	q.remove(w)
	w.l.take(p, m, m.b, max(now, w.r.Now))
	w.l.counted, w.l.adaptive = counted, a
	w.ready <- Granted
	return true
}

// kick serves waiters, oldest first, as long as there is something for them.
func (p *Pool) kick(now balance.Instant) {
	q := &p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	passed := 0
	for w := q.head; w != nil; {
		next := w.next
		got := p.try(w, now)
		if got == Full {
			if passed++; w.r.Tried.Len() == 0 || passed == handOnLook {
				return
			}
		} else {
			q.remove(w)
			w.ready <- got
		}
		w = next
	}
}

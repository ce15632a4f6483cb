// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/weirlb/weir/balance"

// actor is whoever has planned an event. code tells its events apart.
type actor interface{ fire(code uint8) }

// timer is one planned event, embedded in its actor so that planning allocates
// nothing. The zero value is not planned.
type timer struct {
	who  actor
	pos  int32 // in the heap, counted from 1; 0: not planned
	code uint8
}

// entry holds what the order depends on, so that comparing touches the heap only.
type entry struct {
	at  balance.Instant
	seq uint64
	t   *timer
}

func (e *entry) before(o *entry) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// agenda is a binary heap of planned events: by time, and those of one instant in
// the order of planning.
type agenda struct {
	heap []entry
	seq  uint64
}

// plan plans t, or plans it anew, as the last one of its instant.
func (a *agenda) plan(t *timer, at balance.Instant) {
	a.seq++
	e := entry{at, a.seq, t}
	if t.pos == 0 {
		a.heap = append(a.heap, e)
		a.up(len(a.heap)-1, e)
		return
	}
	a.settle(int(t.pos)-1, e)
}

// cancel takes t off the agenda, if it is on it.
func (a *agenda) cancel(t *timer) {
	if t.pos == 0 {
		return
	}
	i, last := int(t.pos)-1, len(a.heap)-1
	e := a.heap[last]
	a.heap[last].t = nil
	a.heap = a.heap[:last]
	t.pos = 0
	if i < last {
		a.settle(i, e)
	}
}

// take takes the first event, if it is due by then; nil otherwise.
func (a *agenda) take(by balance.Instant) (*timer, balance.Instant) {
	if len(a.heap) == 0 || a.heap[0].at > by {
		return nil, 0
	}
	e := a.heap[0]
	a.cancel(e.t)
	return e.t, e.at
}

// settle puts e into the hole at i.
func (a *agenda) settle(i int, e entry) {
	if i > 0 && e.before(&a.heap[(i-1)/2]) {
		a.up(i, e)
		return
	}
	a.down(i, e)
}

func (a *agenda) put(i int, e entry) {
	a.heap[i] = e
	e.t.pos = int32(i + 1)
}

func (a *agenda) up(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&a.heap[parent]) {
			break
		}
		a.put(i, a.heap[parent])
		i = parent
	}
	a.put(i, e)
}

func (a *agenda) down(i int, e entry) {
	for {
		child := 2*i + 1
		if child >= len(a.heap) {
			break
		}
		if child+1 < len(a.heap) && a.heap[child+1].before(&a.heap[child]) {
			child++
		}
		if !a.heap[child].before(&e) {
			break
		}
		a.put(i, a.heap[child])
		i = child
	}
	a.put(i, e)
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import "github.com/weirlb/weir/balance"

// Deadlines is a heap of what is to be looked at when its time has come, the
// earliest first. It is written out, because container/heap would box every item.
// Make it with NewDeadlines; it belongs to one goroutine at a time.
type Deadlines[T any] struct {
	heap  []timed[T]
	moved func(what T, place int32)
}

type timed[T any] struct {
	at   balance.Instant
	what T
}

// NewDeadlines returns an empty heap. moved hears of every place that something
// comes to, by which it is removed; -1: it is no longer in the heap.
func NewDeadlines[T any](moved func(what T, place int32)) Deadlines[T] {
	return Deadlines[T]{moved: moved}
}

// Len returns how many wait.
func (d *Deadlines[T]) Len() int { return len(d.heap) }

// First returns the earliest; ok is false when there is none.
func (d *Deadlines[T]) First() (at balance.Instant, what T, ok bool) {
	if len(d.heap) == 0 {
		return 0, what, false
	}
	return d.heap[0].at, d.heap[0].what, true
}

// Push adds one.
func (d *Deadlines[T]) Push(at balance.Instant, what T) {
	d.heap = append(d.heap, timed[T]{at, what})
	d.up(len(d.heap) - 1)
}

// Remove takes out what is at a place.
func (d *Deadlines[T]) Remove(place int32) {
	i, last := int(place), len(d.heap)-1
	d.moved(d.heap[i].what, -1)
	t := d.heap[last]
	d.heap[last] = timed[T]{}
	d.heap = d.heap[:last]
	if i < last {
		d.place(i, t)
		d.down(d.up(i))
	}
}

// up moves what is at a place towards the earliest, and returns where it is then.
func (d *Deadlines[T]) up(i int) int {
	t := d.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if d.heap[parent].at <= t.at {
			break
		}
		d.place(i, d.heap[parent])
		i = parent
	}
	d.place(i, t)
	return i
}

func (d *Deadlines[T]) down(i int) {
	t := d.heap[i]
	for {
		child := 2*i + 1
		if child >= len(d.heap) {
			break
		}
		if r := child + 1; r < len(d.heap) && d.heap[r].at < d.heap[child].at {
			child = r
		}
		if t.at <= d.heap[child].at {
			break
		}
		d.place(i, d.heap[child])
		i = child
	}
	d.place(i, t)
}

func (d *Deadlines[T]) place(i int, t timed[T]) {
	d.heap[i] = t
	d.moved(t.what, int32(i))
}

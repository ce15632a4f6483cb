// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/weirlb/weir/balance"

// What a member can wait for.
const (
	timerProbe = iota // the next probe
	timerEject        // the end of an ejection
	timerFact         // the end of a fact or a suspicion
	timerDrain        // the deadline of a drain
	timerRamp         // the end of a slow start
	timerLast         // Config.DrainSpread before the deadline of a drain
	timerKinds
)

// timer is an entry of the heap, embedded in its member so that setting one
// allocates nothing.
type timer struct {
	at   balance.Instant
	m    *member
	pos  int32 // in the heap, counted from 1; 0: not set
	kind uint8
}

// timerHeap is a binary heap by time; equal times by order of appearance and
// kind, so that a run is repeatable.
type timerHeap []*timer

func (h timerHeap) less(i, j int) bool {
	a, b := h[i], h[j]
	if a.at != b.at {
		return a.at < b.at
	}
	if a.m.seq != b.m.seq {
		return a.m.seq < b.m.seq
	}
	return a.kind < b.kind
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = int32(i+1), int32(j+1)
}

func (h timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h timerHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}

// set arms or moves a timer of a member.
func (h *timerHeap) set(m *member, kind int, at balance.Instant) {
	t := &m.core.timers[kind]
	t.at, t.m, t.kind = at, m, uint8(kind)
	if t.pos == 0 {
		*h = append(*h, t)
		t.pos = int32(len(*h))
	}
	h.up(int(t.pos) - 1)
	h.down(int(t.pos) - 1)
}

// stop disarms a timer.
func (h *timerHeap) stop(m *member, kind int) {
	t := &m.core.timers[kind]
	if t.pos == 0 {
		return
	}
	i, last := int(t.pos)-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// due takes the first timer that is due, nil when there is none.
func (h *timerHeap) due(now balance.Instant) *timer {
	if len(*h) == 0 || now < (*h)[0].at {
		return nil
	}
	t := (*h)[0]
	h.stop(t.m, int(t.kind))
	return t
}

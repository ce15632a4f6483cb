// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net/netip"
	"sync/atomic"
)

// admit takes a place for a flow. Where none is free one makes room that is not
// settled: of the same listener, or, where the process is full, of any. When only
// another loop has such a one, that is asked to end it, and who comes next finds room.
func (l *flowLoop) admit(p *port, own *Flows, client netip.AddrPort) (Place, bool) {
	for {
		place, why := own.opt.Door.Enter(client.Addr())
		switch why {
		case Admitted:
			return place, true
		case FullListener:
			if l.evict(own) {
				continue
			}
			l.evictElsewhere(own, &own.loose)
		case FullProcess:
			if l.evict(nil) {
				continue
			}
			l.evictElsewhere(nil, &own.opt.Relay.loose)
		}
		own.opt.Door.Refuse(client, why)
		return Place{}, false
	}
}

// evict ends the flow that can best be done without, of a listener; nil: of any.
func (l *flowLoop) evict(own *Flows) bool {
	var spare *Flow
	for _, s := range l.shelves {
		if own != nil && s.own != own {
			continue
		}
		if f := s.spare(l.now); f != nil && (spare == nil || f.sparedBefore(spare, l.now)) {
			spare = f
		}
	}
	if spare == nil {
		return false
	}
	spare.own.evicted.Add(1)
	spare.own.opt.Door.Evict(spare.key.from())
	l.finish(spare, over{evicted: true})
	return true
}

// loose counts flows that may be ended for others, on all loops, and says whether one
// is asked for already. The zero value is none.
type loose struct {
	n      atomic.Int64
	sought atomic.Bool
}

// loosen counts a flow, that may be ended for others, where those are looked for; it
// does nothing for the rest.
func (f *Flow) loosen(by int64) {
	if f.shelf.loose(f.in) {
		f.own.loose.n.Add(by)
		f.own.opt.Relay.loose.n.Add(by)
		f.port.loop.loose.Add(by)
	}
}

// evictElsewhere has another loop evict, unless none has what could be, or one is at
// it: a flood of those that are refused asks once in a turn.
func (l *flowLoop) evictElsewhere(own *Flows, among *loose) {
	if among.n.Load() > 0 && among.sought.CompareAndSwap(false, true) {
		seek(l.others, own, among)
	}
}

// seek asks the first loop that may have one, which asks the next if it has not.
func seek(loops []*flowLoop, own *Flows, among *loose) {
	for i, l := range loops {
		if l.loose.Load() > 0 && l.ask(func() {
			if !l.paused && l.evict(own) {
				among.sought.Store(false)
			} else {
				seek(loops[i+1:], own, among)
			}
		}) {
			return
		}
	}
	among.sought.Store(false)
}

// Relieve has flows end that may be ended for others, as the process has no descriptors
// left. It does not wait, may be called from any
// goroutine, and returns how many it has asked for, at most most: there may be fewer.
func (r *FlowRelay) Relieve(most int) (asked int) {
	all := r.ready.Load()
	if all == nil {
		return 0
	}
	for _, l := range *all {
		n := min(most-asked, int(l.loose.Load()))
		if n > 0 && l.ask(func() { l.relieve(n) }) {
			asked += n
		}
	}
	return asked
}

func (l *flowLoop) relieve(n int) {
	if l.paused {
		return
	}
	for range n {
		if !l.evict(nil) {
			return
		}
	}
}

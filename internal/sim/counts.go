// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
)

// counts makes every balancer see, as the load of a server, the requests in flight
// from all balancers as they were some time ago, instead of its own ones now.
//
// A policy reads Backend.InFlight. So an attempt's own reservation is undone at
// once, and delay later a slot is reserved at every balancer; the same with its
// end. Limits on requests in flight would bind late too, and an end that is still to
// come keeps a removed backend from being seen to be idle: neither is for such a
// world.
type counts struct {
	w     *World
	delay time.Duration
	links map[string][]*link // by the backend's id
	seen  map[string]int64   // what they hold now
	late  []lateCount        // in order of time
	head  int
	timer timer
}

type lateCount struct {
	at balance.Instant
	id string
	by int64 // 1 or -1
}

// ShareCounts gives every balancer the counts of all, delay old: what happens when
// load is known from reports. It must be called before balancers are added, and
// is not for pools with limits.
func (w *World) ShareCounts(delay time.Duration) {
	w.counts = &counts{w: w, delay: max(delay, 0), links: map[string][]*link{}, seen: map[string]int64{}}
	w.counts.timer.who = w.counts
}

func (c *counts) join(l *link) {
	id := l.back.ID()
	c.links[id] = append(c.links[id], l)
	for range c.seen[id] {
		l.back.Reserve()
	}
}

func (c *counts) leave(l *link) {
	id := l.back.ID()
	c.links[id] = slices.DeleteFunc(c.links[id], func(o *link) bool { return o == l })
}

// begin takes back the reservation that Pick has made and plans its effect.
func (c *counts) begin(l *link) {
	l.back.Release()
	c.push(lateCount{c.w.now.Add(c.delay), l.back.ID(), 1})
}

// end lets Done release what begin has released already.
func (c *counts) end(l *link) {
	l.back.Reserve()
	c.push(lateCount{c.w.now.Add(c.delay), l.back.ID(), -1})
}

func (c *counts) push(e lateCount) {
	c.late = append(c.late, e)
	if c.timer.pos == 0 {
		c.w.agenda.plan(&c.timer, e.at)
	}
}

func (c *counts) fire(uint8) {
	for c.head < len(c.late) && c.late[c.head].at <= c.w.now {
		e := &c.late[c.head]
		c.head++
		c.seen[e.id] += e.by
		for _, l := range c.links[e.id] {
			if e.by > 0 {
				l.back.Reserve()
			} else {
				l.back.Release()
			}
		}
	}
	if c.head == len(c.late) {
		c.late, c.head = c.late[:0], 0
		return
	}
	if c.head > 1024 && c.head > len(c.late)/2 {
		n := copy(c.late, c.late[c.head:])
		c.late, c.head = c.late[:n], 0
	}
	c.w.agenda.plan(&c.timer, c.late[c.head].at)
}

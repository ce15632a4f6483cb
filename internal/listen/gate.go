// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Gate is the ceiling of client connections that several listeners share. The
// zero value has no limit. It is safe for concurrent use.
type Gate struct {
	most atomic.Int64
	open atomic.Int64
	// flows are flows of datagrams, which are not in open.
	flows     atomic.Int64
	mostFlows atomic.Int64
	room      room
}

// NewGate returns a gate for at most n connections; 0 means no limit.
func NewGate(n int) *Gate {
	g := &Gate{}
	g.SetLimit(n)
	return g
}

// SetLimit changes the ceiling; 0 means none. Connections above a lowered
// ceiling stay.
func (g *Gate) SetLimit(n int) {
	g.most.Store(int64(n))
	g.room.signal()
}

// SetFlows changes the ceiling of the flows of all listeners together, whatever theirs
// are; 0 means none. Those above a lowered one stay.
func (g *Gate) SetFlows(n int) { g.mostFlows.Store(int64(n)) }

// Limit returns the ceiling; 0 means none.
func (g *Gate) Limit() int { return int(g.most.Load()) }

// Open returns the number of connections.
func (g *Gate) Open() int { return int(g.open.Load()) }

func (g *Gate) enter() bool { return reserve(&g.open, g.most.Load()) }

// reserve takes one of so many places; 0 or less: of any number. The count is never
// above them, as whoever reads it would take that for a ceiling that does not hold, and
// nobody is refused for another one who is.
func reserve(n *atomic.Int64, most int64) bool {
	if most <= 0 {
		n.Add(1)
		return true
	}
	for {
		switch open := n.Load(); {
		case open >= most:
			return false
		case n.CompareAndSwap(open, open+1):
			return true
		}
	}
}

func (g *Gate) leave() {
	g.open.Add(-1)
	g.room.signal()
}

// enterFlow counts a flow. It reports false, and counts nothing, where all flows together
// have what they may, or, when halved is set, half of the places.
func (g *Gate) enterFlow(halved bool) bool {
	most := g.mostFlows.Load()
	if half := max(g.most.Load()/2, 1); halved && g.most.Load() > 0 && (most <= 0 || half < most) {
		most = half
	}
	return reserve(&g.flows, most)
}

func (g *Gate) leaveFlow() { g.flows.Add(-1) }

// room wakes accept loops that pause at a ceiling as soon as one connection
// has gone.
type room struct {
	waiting atomic.Int32
	mu      sync.Mutex
	wake    chan struct{} // guarded by mu; nil when nobody waits
}

// wait returns a channel that is closed by the next signal. Call done after.
func (r *room) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake == nil {
		r.wake = make(chan struct{})
	}
	r.waiting.Add(1)
	return r.wake
}

func (r *room) done() { r.waiting.Add(-1) }

func (r *room) signal() {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// clients counts connections per client address.
type clients struct {
	mu sync.Mutex // guards n
	n  map[netip.Addr]int32
}

// clientKey is what counts as one client: an IPv4 address, or an IPv6 /64,
// which is the least that a site is given.
func clientKey(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is4() {
		return a
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr()
}

// enter counts a connection of a client that has fewer than most; 0: it is not
// counted.
func (c *clients) enter(a netip.Addr, most int) (counted, ok bool) {
	if most <= 0 || !a.IsValid() {
		return false, true
	}
	k := clientKey(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[netip.Addr]int32)
	}
	if c.n[k] >= int32(most) {
		return false, false
	}
	c.n[k]++
	return true, true
}

// leave takes a counted one off.
func (c *clients) leave(a netip.Addr) {
	k := clientKey(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[k]--; c.n[k] <= 0 {
		delete(c.n, k)
	}
}

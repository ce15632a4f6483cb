// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// States of a link. A connection is closed by Drain only out of stateIdle or
// stateParked, and becomes active only out of stateIdle: whoever swaps first
// decides.
const (
	stateActive  int32 = iota // a request is being read or served
	stateIdle                 // waiting for one, on a goroutine
	stateParked               // waiting for one, without a goroutine
	stateClosing              // being closed
)

// link is a connection as its server knows it, from Serve to close. It is all
// that a parked connection costs here.
type link struct {
	// Constant.
	srv  *Server
	nc   *netconn.Conn
	info any
	tls  bool

	first atomic.Bool // no request has come yet

	// Owned by the goroutine that serves it, or by the waiter.
	resume func(bool)
	early  bool // the client has sent a request before it had the last answer
	gone   bool // ServerConn.Detach was called

	since balance.Instant // constant: when it came
	quiet atomic.Int64    // an Instant: when it began to wait for a request
	age   age
	state atomic.Int32

	prev, next *link // guarded by registry.mu
}

// registry is the list of a server's connections.
type registry struct {
	mu    sync.Mutex
	head  *link
	count int
	drain chan struct{} // closed to end a running Drain; nil when none runs
	cut   bool          // CloseAll was called
}

func (s *Server) add(l *link) {
	s.mu.Lock()
	l.next = s.head
	if s.head != nil {
		s.head.prev = l
	}
	s.head = l
	s.count++
	s.loops.Add(1)
	cut := s.cut
	s.mu.Unlock()
	if cut {
		l.nc.Abort()
	}
}

func (s *Server) remove(l *link) {
	l.endAge()
	s.mu.Lock()
	switch {
	case l.prev != nil:
		l.prev.next = l.next
	case s.head == l:
		s.head = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
	s.count--
	s.mu.Unlock()
	s.loops.Done()
}

// Counts is how many connections a server has, by what they do.
type Counts struct{ Active, Idle, Parked int }

// Counts walks the connections; it is for gauges, not for the hot path.
func (s *Server) Counts() (n Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := s.head; l != nil; l = l.next {
		switch l.state.Load() {
		case stateIdle:
			n.Idle++
		case stateParked:
			n.Parked++
		default:
			n.Active++
		}
	}
	return n
}

// firstGrace is how long Drain leaves a new connection the time to ask: the
// first request is on its way, and clients do not expect to have to repeat it.
const firstGrace = time.Second

// Drain makes every answer from now on say Connection: close and closes idle
// connections evenly spread over the duration (0: at once); those that become
// idle later are closed then, new ones after a grace of a second. It returns at
// once; CloseAll ends it early.
func (s *Server) Drain(spread time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining.Store(true)
	if s.drain != nil {
		close(s.drain) // a second Drain replaces the first
	}
	s.drain = make(chan struct{})
	s.loops.Add(1)
	go s.runDrain(spread, s.drain)
}

// Undrain takes Drain back: connections that are left go on as before.
func (s *Server) Undrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drain == nil {
		return // none runs, or CloseAll came
	}
	close(s.drain)
	s.drain = nil
	s.drained.Store(false)
	s.draining.Store(false)
}

func (s *Server) runDrain(spread time.Duration, stop chan struct{}) {
	defer s.loops.Done()
	if spread >= netconn.PaceTick {
		t := time.NewTicker(netconn.PaceTick)
		defer t.Stop()
		pace := netconn.NewPace(spread)
		for last := false; !last; {
			select {
			case <-stop:
				return
			case <-t.C:
			}
			last = s.closeIdle(&pace)
		}
	}
	s.mu.Lock()
	if s.drain != stop { // replaced, or taken back
		s.mu.Unlock()
		return
	}
	s.drained.Store(true)
	s.mu.Unlock()
	for pace := netconn.NewPace(0); ; {
		if s.closeIdle(&pace); !s.anyNew() {
			return
		}
		select {
		case <-stop:
			return
		case <-time.After(netconn.PaceTick):
		}
	}
}

// anyNew reports whether a connection is left in its grace.
func (s *Server) anyNew() bool {
	now := clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := s.head; l != nil; l = l.next {
		if l.isNew(now) {
			return true
		}
	}
	return false
}

// isNew reports that the first request may still be on its way.
func (l *link) isNew(now balance.Instant) bool {
	return l.first.Load() && now.Sub(l.since) < firstGrace
}

// closeIdle closes as many of the idle connections as the pace wants, and reports that
// those are all from now on.
func (s *Server) closeIdle(pace *netconn.Pace) (last bool) {
	var idle []*link
	now := clock.Now()
	s.mu.Lock()
	for l := s.head; l != nil; l = l.next {
		if l.isNew(now) {
			continue
		}
		if st := l.state.Load(); st == stateIdle || st == stateParked {
			idle = append(idle, l)
		}
	}
	s.mu.Unlock()
	n, last := pace.Next(len(idle))
	for _, l := range idle[:n] {
		l.closeIfIdle()
	}
	return last
}

// closeIfIdle closes a connection on which nothing is under way, and reports whether
// it did. A request whose bytes have arrived but were not yet seen is let through.
func (l *link) closeIfIdle() bool {
	if l.nc.Pending() {
		return false
	}
	if l.state.CompareAndSwap(stateIdle, stateClosing) || l.state.CompareAndSwap(stateParked, stateClosing) {
		l.nc.Abort()
		return true
	}
	return false
}

// CloseAll ends every connection now, also those that are being served, and
// returns how many of these there were. Wait for their goroutines with Wait.
func (s *Server) CloseAll() (cut int) {
	s.draining.Store(true)
	s.drained.Store(true)
	s.mu.Lock()
	s.cut = true
	if s.drain != nil {
		close(s.drain)
		s.drain = nil
	}
	all := make([]*link, 0, s.count)
	for l := s.head; l != nil; l = l.next {
		if l.state.Load() == stateActive {
			cut++
		}
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.nc.Abort()
	}
	return cut
}

// Wait returns when no connection is left and no goroutine of the server runs.
func (s *Server) Wait() { s.loops.Wait() }

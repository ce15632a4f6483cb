// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weirlb/weir/internal/message"
)

// Series counts the requests of one (listener, route, pool, backend). It is
// resolved once (Metrics.Series or RouteSeries.For) and then used for every
// request; all methods are safe for concurrent use.
type Series struct {
	// Constant.
	route   *RouteSeries
	backend string

	// Atomic.
	stripes []seriesStripe       // one per core: reason ok and a usual code
	rare    atomic.Pointer[cell] // everything else, newest first; cells are never removed
	left    atomic.Int64         // unix nanoseconds since when the backend is gone; 0: it is there

	sessions atomic.Pointer[sessionCounts] // nil: there was none
}

// seriesStripe is one core's share, two cache lines.
type seriesStripe struct{ n [cellsFast]atomic.Uint64 }

// cell counts one rare outcome.
type cell struct {
	outcome
	next    *cell
	stripes []paddedCounter
}

type paddedCounter struct {
	n atomic.Uint64
	_ [7]uint64
}

// Observe counts a finished request. It takes no lock and allocates only the
// first time that this series sees an unusual outcome.
func (s *Series) Observe(r *Record) {
	rt := s.route
	m := rt.metrics
	// Exchanges, and the records in them, are pooled per core: the address of
	// the record spreads cores over stripes without asking which one this is.
	// Its value is never turned back into a pointer.
	stripe := uint64(uintptr(unsafe.Pointer(r))>>6) * 0x9e3779b97f4a7c15 >> m.shift

	status := r.code()
	if uint(status) >= statusEnd {
		status = 0
	}
	cells := &s.stripes[stripe]
	if f := m.codes.fast[status]; r.Reason == message.OK && f != slowCode {
		cells.n[f].Add(1)
	} else {
		s.cellFor(outcome{m.codes.id[status], r.Reason}).stripes[stripe].n.Add(1)
	}
	if r.Linked {
		if r.Reused {
			cells.n[connReused].Add(1)
		} else {
			cells.n[connFresh].Add(1)
		}
	}

	if !r.Tunnel {
		rt.seconds.observe(stripe, r.Total)
	}
	if r.GRPC != 0 {
		rt.calls[min(r.GRPC, CallWithout)].Add(1)
	}
	p := rt.pool
	if r.FirstByte > 0 {
		p.firstByte.observe(stripe, r.FirstByte)
	}
	if r.Connect > 0 {
		p.connect.observe(stripe, r.Connect)
	}
	if r.Queue > 0 {
		p.queue.observe(stripe, r.Queue)
	}
}

// Connection counts an upstream connection that an attempt before the last one
// used. Observe counts the last attempt's.
func (s *Series) Connection(reused bool) {
	i := connFresh
	if reused {
		i = connReused
	}
	s.stripes[0].n[i].Add(1)
}

// cellFor finds the cell of an unusual outcome, adding it when it is new.
func (s *Series) cellFor(o outcome) *cell {
	head := s.rare.Load()
	if c := find(head, nil, o); c != nil {
		return c
	}
	fresh := &cell{outcome: o, stripes: make([]paddedCounter, len(s.stripes))}
	for {
		fresh.next = head
		if s.rare.CompareAndSwap(head, fresh) {
			return fresh
		}
		now := s.rare.Load()
		if c := find(now, head, o); c != nil {
			return c
		}
		head = now
	}
}

func find(c, end *cell, o outcome) *cell {
	for ; c != end; c = c.next {
		if c.outcome == o {
			return c
		}
	}
	return nil
}

// addTo adds the requests counted so far.
func (s *Series) addTo(sum map[outcome]uint64) {
	var fast [fastCodes]uint64
	for i := range s.stripes {
		for c := range fast {
			fast[c] += s.stripes[i].n[c].Load()
		}
	}
	for c, n := range fast {
		if n > 0 {
			sum[outcome{s.route.metrics.codes.ofFast[c], message.OK}] += n
		}
	}
	for c := s.rare.Load(); c != nil; c = c.next {
		for i := range c.stripes {
			sum[c.outcome] += c.stripes[i].n.Load()
		}
	}
}

// connections returns how many upstream connections were opened and reused.
func (s *Series) connections() (fresh, reused uint64) {
	for i := range s.stripes {
		fresh += s.stripes[i].n[connFresh].Load()
		reused += s.stripes[i].n[connReused].Load()
	}
	return fresh, reused
}

// RouteSeries is what the series of one (listener, route, pool) share.
type RouteSeries struct {
	// Constant.
	metrics         *Metrics
	listener, route string
	pool            *PoolSeries
	none            *Series // backend ""

	seconds histogram // atomic
	calls   calls
	left    int64 // unix nanoseconds since when no configuration has it; 0: one has; guarded by Metrics.mu

	backends atomic.Pointer[map[string]*Series] // copied on change under mu

	mu sync.Mutex
	// What backends had counted that were dropped; keeps sums over a large pool
	// from falling. Guarded by mu.
	departed                    map[outcome]uint64
	departedFresh, departedUsed uint64
	departedSessions            sessionSums
}

// For returns the series of one backend of the pool, or for "" the one of
// requests that reached none. For a pool above the limit of per-backend series
// (S18) every backend shares the latter. The lookup takes no lock once the
// backend is known.
func (r *RouteSeries) For(backend string) *Series {
	if backend == "" {
		return r.none
	}
	if s := (*r.backends.Load())[backend]; s != nil {
		if s.left.Load() != 0 {
			s.left.Store(0)
		}
		return s
	}
	if r.metrics.large(r.pool) {
		return r.none
	}
	r.metrics.sweepSometimes()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.backends.Load()
	if s := old[backend]; s != nil {
		return s
	}
	next := make(map[string]*Series, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	s := r.metrics.newSeries(r, backend)
	next[backend] = s
	r.backends.Store(&next)
	return s
}

// drop removes the series of backends that left before the given time and
// remembers what they had counted.
func (r *RouteSeries) drop(before int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.backends.Load()
	next := make(map[string]*Series, len(old))
	for k, s := range old {
		if at := s.left.Load(); at == 0 || at > before {
			next[k] = s
			continue
		}
		if r.departed == nil {
			r.departed = make(map[outcome]uint64)
		}
		s.addTo(r.departed)
		s.addSessions(&r.departedSessions)
		fresh, reused := s.connections()
		r.departedFresh += fresh
		r.departedUsed += reused
	}
	if len(next) < len(old) {
		r.backends.Store(&next)
	}
}

// mark notes which backends are there: present ones are unmarked, absent ones
// have left now unless they had before.
func (r *RouteSeries) mark(present map[string]bool, now time.Time) {
	for id, s := range *r.backends.Load() {
		if present[id] {
			s.left.Store(0)
		} else {
			s.left.CompareAndSwap(0, now.UnixNano())
		}
	}
}

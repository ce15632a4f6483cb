// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/l7"
)

// A pool that left the configuration goes on serving picks until nobody can ask
// it any more (S11): requests hold the route that they came by, through retries
// and for as long as a tunnel lasts. Counting that per request would cost every
// request something for the sake of a reload now and then, so the garbage
// collector says it: when the last route that refers to a pool is collected,
// nobody is left.

// usedBy counts a route that refers to the pool, until it is collected.
func (p *livePool) usedBy(r *l7.Route) { usedBy(p, r) }

func usedBy[R any](p *livePool, r *R) {
	p.uses.Add(1)
	runtime.AddCleanup(r, func(p *livePool) { p.uses.Add(-1) }, p)
}

// leavingPool is a pool that the configuration no longer has.
type leavingPool struct {
	*livePool
	since    time.Time
	busy     time.Time          // when something was in flight last, as far as was seen
	backends []*balance.Backend // that were told to drain; nil: none was yet
}

// known returns a pool that runs, one that is leaving included. Called under mu.
func (e *Engine) known(name string) *livePool {
	if p := e.pools[name]; p != nil {
		return p
	}
	for _, p := range e.leaving {
		if p.name == name {
			return p.livePool
		}
	}
	return nil
}

// retirePools lets those go that a generation no longer has, and keeps those
// that came back. Called under mu.
func (e *Engine) retirePools(g *Generation) {
	e.leaving = slices.DeleteFunc(e.leaving, func(p *leavingPool) bool { return g.pools[p.name] == p.livePool })
	for name, p := range e.pools {
		if g.pools[name] == nil {
			delete(e.pools, name)
			p.stopDiscovery() // it goes on with whom it has
			p.forgetAdded()
			e.leaving = append(e.leaving, &leavingPool{livePool: p, since: time.Now(), busy: time.Now()})
		}
	}
	if (len(e.leaving) > 0 || e.logs.waiting()) && !e.retiring {
		e.retiring = true
		e.retirer.Go(e.retire)
	}
}

const (
	retireEvery = time.Second
	// retireIdle is longer than a request spends between two attempts.
	retireIdle = 10 * time.Second
	// collectMost bounds how rarely the garbage collector is asked while pools
	// leave; it runs every two minutes by itself.
	collectMost = time.Minute
)

// retire closes pools that leave as they become free. It ends with the last.
func (e *Engine) retire() {
	t := time.NewTicker(retireEvery)
	defer t.Stop()
	pause, next := retireEvery, time.Now().Add(retireEvery)
	for {
		select {
		case <-e.quit:
			return
		case now := <-t.C:
			if now.After(next) {
				runtime.GC()
				pause = min(2*pause, collectMost)
				next = now.Add(pause)
			}
			if e.closeLeft(now) {
				return
			}
		}
	}
}

// closeLeft closes what is free, and reports that nothing is left.
func (e *Engine) closeLeft(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return true
	}
	e.leaving = slices.DeleteFunc(e.leaving, func(p *leavingPool) bool {
		if !p.free(now) {
			return false
		}
		p.stopDiscovery()
		p.pool.Close()
		e.log.Info("pool retired", "pool", p.name, "after", now.Sub(p.since).Round(time.Millisecond))
		return true
	})
	free, more := e.logs.left()
	for _, l := range free {
		e.retirer.Go(func() {
			if err := l.log.Close(logFlushTime); err != nil {
				e.log.Error("lines of the access log are lost", "error", err)
			}
		})
	}
	e.retiring = len(e.leaving) > 0 || more
	return !e.retiring
}

// free reports that nobody can ask the pool and nothing is in flight. What is
// still there when the pool's drain deadline has passed is drained as that of a
// backend that was removed: it has the deadline once more, and is cut.
func (p *leavingPool) free(now time.Time) bool {
	if p.backends != nil {
		return !slices.ContainsFunc(p.backends, func(b *balance.Backend) bool { return b.InFlight() > 0 })
	}
	s := p.pool.Snapshot()
	if s.InFlight == 0 {
		// A tunnel by another route of that generation holds this pool, too, and
		// may last for days. Whoever should still come is served: a closed pool
		// answers picks from its last view.
		return p.uses.Load() == 0 || now.Sub(p.busy) > retireIdle
	}
	p.busy = now
	if d := p.cfg.DrainDeadline; d > 0 && now.Sub(p.since) > d {
		for i := range s.Backends {
			p.backends = append(p.backends, s.Backends[i].Backend)
		}
		p.stopDiscovery()
		p.pool.Update(nil)
	}
	return false
}

// forget drops what counts for names that a generation does not have, where
// nothing is in flight: names come and go with reloads. Called under mu.
func (e *Engine) forget(g *Generation) {
	type route struct{ listener, route, pool string }
	limited := make(map[limiterKey]bool)
	routes := make(map[route]bool)
	for i := range g.Plan.Listeners {
		l := &g.Plan.Listeners[i]
		routes[route{l.Name, "", ""}] = true
		for j := range l.Routes {
			r := &l.Routes[j]
			limited[limiterKey{l.Name, r.Name}] = r.MaxRequests > 0
			routes[route{l.Name, r.Name, r.Pool}] = true
		}
	}
	for k, l := range e.limiters {
		if !limited[k] && l.InFlight() == 0 {
			delete(e.limiters, k)
		}
	}
	e.metrics.Retain(
		func(l, r, p string) bool { return routes[route{l, r, p}] },
		func(p string) bool { return g.pools[p] != nil })
}

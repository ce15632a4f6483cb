// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

const (
	reliefEvery   = 100 * time.Millisecond // connections that give way are looked for so often
	reliefTold    = 10 * time.Second       // and it is said so often
	reliefClients = 32                     // of clients are ended at a time
	reliefEnough  = reliefClients / 4      // connections to backends that gave way are room for a while
	// reliefIdle is how long such a client has asked for nothing: the next request of one
	// that asks all the time may be on its way.
	reliefIdle = 5 * time.Second
)

// relief gives descriptors back when none is left but reserved ones: kept
// connections to backends save a handshake each, idle clients can connect again, and
// whoever has no connection cannot be served at all. Its method may be called from
// anywhere.
type relief struct {
	log  *slog.Logger
	thin func() int // closes some kept connections, and returns how many
	// idle ends some clients on whose connections nothing has been under way since
	// before, and returns how many, and of how many of them the descriptor is free in a
	// moment.
	idle func(most int, before balance.Instant) (told, free int)
	// flows has flows of datagrams end of whose clients nothing is known, soon, and returns
	// how many. nil: there are none.
	flows func(most int) int

	upstream, clients atomic.Uint64 // connections that gave way so far

	mu     sync.Mutex // guards what follows
	looked balance.Instant
	told   balance.Instant
	left   int // given back by the last look and not taken yet
}

// one reports that a descriptor was given back for the caller.
func (r *relief) one() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := clock.Now()
	if r.looked == 0 || now.Sub(r.looked) >= reliefEvery {
		r.looked = now
		r.look(now)
	}
	if r.left == 0 {
		return false
	}
	r.left--
	return true
}

// look makes room: by what is kept to backends, by flows that nobody is known to wait
// for, and, where that is not much, by clients that ask for nothing. Each request that gets through keeps a connection
// again: without the second, one would come in with every look and no more. Called
// under mu.
func (r *relief) look(now balance.Instant) {
	kept, clients, flows := r.thin(), 0, 0
	r.left = kept
	if r.flows != nil && kept < reliefClients { // they cost their sender nothing
		flows = r.flows(reliefClients - kept)
	}
	if kept+flows < reliefEnough {
		told, free := r.idle(reliefClients-kept-flows, now.Add(-reliefIdle))
		clients, r.left = told, kept+free
	}
	r.upstream.Add(uint64(kept))
	r.clients.Add(uint64(clients))
	if kept+clients+flows > 0 && (r.told == 0 || now.Sub(r.told) >= reliefTold) {
		r.told = now
		r.log.Warn("descriptors run short: connections on which nothing is under way are closed to make room", "to_backends", kept, "of_clients", clients, "flows", flows)
	}
}

// thinKept closes half of what is kept to each backend.
func (e *Engine) thinKept() (closed int) {
	for _, p := range e.livePools() {
		s := p.pool.Snapshot()
		for i := range s.Backends {
			if t := targetOf(s.Backends[i].Backend); t != nil {
				closed += t.up.Thin()
			}
		}
	}
	return closed
}

// endIdle ends clients that have asked for nothing for longest, of all listeners, and
// since before.
func (e *Engine) endIdle(most int, before balance.Instant) (told, free int) {
	x := netconn.Idlest{Most: most, Before: before}
	for _, l := range e.front.ever() {
		l.srv.h1.Idlest(&x)
		l.srv.h2.Idlest(&x)
	}
	for _, i := range x.List() {
		told++
		if i.End() {
			free++
		}
	}
	return told, free
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// calls are the gRPC calls of an Exchanger that have waited for their backend for
// a while. When weir's drain is over, they end with UNAVAILABLE, where the end of
// the connection would tell the client nothing. Those that wait for nothing see
// over by themselves.
type calls struct {
	over atomic.Bool

	mu   sync.Mutex             // guards the rest
	on   map[*exchange]Upstream // what each waits for
	none chan struct{}          // closed when the last is gone; nil: nobody waits
}

// enlist makes a call that has begun to wait one that can be ended.
func (e *exchange) enlist() {
	if !e.call.on || e.call.listed || e.up == nil {
		return
	}
	e.call.listed = true
	s := &e.x.calls
	s.mu.Lock()
	if s.on == nil {
		s.on = make(map[*exchange]Upstream)
	}
	s.on[e] = e.up
	over := s.over.Load()
	s.mu.Unlock()
	if over {
		e.up.Cut()
	}
}

// unlisted reports that enlist has something to do.
func (e *exchange) unlisted() bool { return e.call.on && !e.call.listed }

// delist is called before the call lets go of what it waits for.
func (e *exchange) delist() {
	e.letStreamGo()
	if !e.call.listed {
		return
	}
	e.call.listed = false
	s := &e.x.calls
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.on, e)
	if len(s.on) == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}

// EndCalls ends the gRPC calls that are under way with UNAVAILABLE, and those that
// come later. It returns how many have to end, and what is closed when the last of
// them is about to tell its client.
func (x *Exchanger) EndCalls() (n int, gone <-chan struct{}) {
	s := &x.calls
	s.over.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	if len(s.on) == 0 {
		close(c)
		return 0, c
	}
	for _, up := range s.on {
		up.Cut()
	}
	s.none = c
	return len(s.on), c
}

// callOver reports that calls are to end.
func (e *exchange) callOver() bool { return e.call.on && e.x.calls.over.Load() }

// callCut is how one ends then.
func callCut(p Phase, err error) Failure {
	return Failure{Fault: FaultWeir, Phase: p, Reason: message.DrainCut, Kind: pool.Canceled, Detail: "end of the drain", Err: err}
}

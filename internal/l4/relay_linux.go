// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

var errClosed = errors.New("the relay is closed")

// Relay moves the bytes of established sessions: a loop per processor, which
// starts with the first session. Listeners share one. Make it with NewRelay; all
// methods are safe for concurrent use.
type Relay struct {
	bug   func(v any)
	turn  atomic.Uint32
	ready atomic.Pointer[[]*loop]

	mu     sync.Mutex // guards the rest
	closed bool
}

// NewRelay returns a relay without loops. bug hears of what was recovered; it
// may be called from any goroutine.
func NewRelay(bug func(v any)) *Relay { return &Relay{bug: bug} }

// loops starts them when they are asked for first.
func (r *Relay) loops() ([]*loop, error) {
	if all := r.ready.Load(); all != nil {
		return *all, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.ready.Load(); all != nil {
		return *all, nil
	}
	if r.closed {
		return nil, errClosed
	}
	var all []*loop
	for range runtime.GOMAXPROCS(0) {
		l, err := newLoop(r.bug)
		if err != nil {
			for _, l := range all {
				l.close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	r.ready.Store(&all)
	return all, nil
}

// next returns the loop whose turn it is.
func (r *Relay) next() (*loop, error) {
	all, err := r.loops()
	if err != nil {
		return nil, err
	}
	return all[int(r.turn.Add(1)%uint32(len(all)))], nil
}

// dismiss has each loop ask those that connect whether they are still wanted.
func (r *Relay) dismiss() {
	if all := r.ready.Load(); all != nil {
		for _, l := range *all {
			l.review()
		}
	}
}

// Close ends every session that is left and waits for the loops.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if all := r.ready.Load(); all != nil {
		for _, l := range *all {
			l.close()
		}
	}
}

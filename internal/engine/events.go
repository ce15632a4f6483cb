// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"sync"
	"time"
)

// eventsKept is how many events are remembered; older ones are overwritten.
const eventsKept = 512

// Event is something that an operator would want to have seen: a backend that
// changed state, a pool in panic, the process draining.
type Event struct {
	Seq     uint64
	At      time.Time
	Kind    string // as in the log: state_changed, ejected, panic_began ..., draining
	Pool    string // empty: the process as a whole
	Backend string // empty: the pool as a whole
	Text    string
}

// events is the memory of the last ones. It is safe for concurrent use.
type events struct {
	mu   sync.Mutex // guards what follows
	ring [eventsKept]Event
	n    uint64        // events so far; the next one's Seq
	more chan struct{} // closed with the next event; nil: nobody waits
}

func (r *events) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Seq = r.n
	r.ring[r.n%eventsKept] = e
	r.n++
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// inherit puts what another process remembers before what is remembered here, in the
// order of time, and numbers all of it anew. It is called before anybody reads.
func (r *events) inherit(before []Event) {
	all := append(slices.Clone(before), r.since(0)...)
	slices.SortStableFunc(all, func(a, b Event) int { return a.At.Compare(b.At) })
	r.mu.Lock()
	r.n = 0
	r.mu.Unlock()
	for _, e := range all[max(len(all)-eventsKept, 0):] {
		r.add(e)
	}
}

// since returns the remembered events with at least that number, oldest first.
func (r *events) since(seq uint64) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := max(seq, r.n-min(r.n, eventsKept))
	var out []Event
	for i := first; i < r.n; i++ {
		out = append(out, r.ring[i%eventsKept])
	}
	return slices.Clip(out)
}

// follow is since, with a channel that is closed when there are newer ones.
func (r *events) follow(seq uint64) ([]Event, <-chan struct{}) {
	r.mu.Lock()
	if r.more == nil {
		r.more = make(chan struct{})
	}
	more := r.more
	r.mu.Unlock()
	return r.since(seq), more // what comes in between is in both
}

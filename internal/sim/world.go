// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// World is one simulated fleet and its time, which begins at 0. Make one with
// NewWorld. Not safe for concurrent use.
type World struct {
	// OnRecord, if set, is told of every request of a client that has ended. The
	// Record is reused: copy what is to be kept.
	OnRecord func(*Record)
	// OnNotice, if set, is told of every notice of a pool.
	OnNotice func(*Balancer, pool.Notice)
	// Trace, if set, is told of every step of every request; for tests.
	Trace func(at time.Duration, who, what string)

	seed   uint64
	now    balance.Instant
	agenda agenda
	events uint64

	servers   []*Server
	balancers []*Balancer
	traffic   []*Source
	targets   map[string]target
	touched   []*Balancer // those that an event may have given work
	counts    *counts     // nil: each balancer knows its own requests only, at once
	stats     Stats
	last      Record
	held      []*Held
	open      int // requests of clients that have not ended

	// Streams of one request, which live here so that drawing allocates nothing.
	arrivalDice, workDice, tripDice Stream

	spareJobs      []*job
	spareExchanges []*exchange
	spareRequests  []*request
}

// target is what a balancer or a client sends a call to.
type target interface {
	// serve takes a call. It answers it once, at once or later, unless the caller
	// cancels it.
	serve(*call)
	// cancel says that the caller waits no longer: nothing may be done with the
	// call from then on.
	cancel(*call)
}

// NewWorld returns an empty world.
func NewWorld(seed uint64) *World {
	return &World{seed: seed, targets: map[string]target{}, stats: newStats()}
}

// Seed returns what NewWorld was given.
func (w *World) Seed() uint64 { return w.seed }

// Now returns the time since the beginning.
func (w *World) Now() time.Duration { return time.Duration(w.now) }

// Instant returns Now as the pools know it.
func (w *World) Instant() balance.Instant { return w.now }

// Events returns how many events have happened.
func (w *World) Events() uint64 { return w.events }

// Stream returns a new stream of random numbers with the name; the same name
// gives the same numbers from the start.
func (w *World) Stream(name string) *Stream { return newStream(w.seed, name) }

// Servers returns all servers in the order of their coming. The slice is the
// world's: it must not be changed.
func (w *World) Servers() []*Server { return w.servers }

// Balancers returns all balancers in the order of their coming. The slice is the
// world's: it must not be changed.
func (w *World) Balancers() []*Balancer { return w.balancers }

// Server returns the server with the id, or nil.
func (w *World) Server(id string) *Server {
	s, _ := w.targets[id].(*Server)
	return s
}

// Open returns how many requests of clients are under way.
func (w *World) Open() int { return w.open }

// Stats returns what has been recorded so far.
func (w *World) Stats() *Stats { return &w.stats }

type deed struct {
	timer
	do    func()
	w     *World
	every time.Duration
}

func (d *deed) fire(uint8) {
	if d.every > 0 {
		d.w.agenda.plan(&d.timer, d.w.now.Add(d.every))
	}
	d.do()
}

// At does something at a time since the beginning; now if that has passed.
func (w *World) At(t time.Duration, do func()) {
	d := &deed{do: do, w: w}
	d.who = d
	w.agenda.plan(&d.timer, max(balance.Instant(t), w.now))
}

// After does something after a time.
func (w *World) After(d time.Duration, do func()) { w.At(w.Now()+max(d, 0), do) }

// Every does something every so often, the first time after that time. The
// function that it returns ends it. d must be above 0.
func (w *World) Every(d time.Duration, do func()) (stop func()) {
	e := &deed{do: do, w: w, every: max(d, 1)}
	e.who = e
	w.agenda.plan(&e.timer, w.now.Add(e.every))
	return func() { e.every = 0; w.agenda.cancel(&e.timer) }
}

// Run lets time pass until then (since the beginning).
func (w *World) Run(until time.Duration) {
	w.flush()
	for w.step(balance.Instant(until)) {
	}
	w.now = max(w.now, balance.Instant(until))
}

// Finish lets time pass until all traffic that has a limit or an end has come to
// it and every request has ended, or until the time is over. It reports whether
// all is over.
func (w *World) Finish(limit time.Duration) bool {
	w.flush()
	for !w.over() {
		if !w.step(balance.Instant(limit)) {
			w.now = max(w.now, balance.Instant(limit))
			return w.over()
		}
	}
	return true
}

func (w *World) over() bool {
	if w.open > 0 {
		return false
	}
	for _, s := range w.traffic {
		if !s.over {
			return false
		}
	}
	return true
}

// step does one event that is due by then, false if there is none.
func (w *World) step(by balance.Instant) bool {
	t, at := w.agenda.take(by)
	if t == nil {
		return false
	}
	w.now = at
	w.events++
	t.who.fire(t.code)
	w.flush()
	return true
}

// flush gives the pools that were touched what an event has given them to do.
func (w *World) flush() {
	for len(w.touched) > 0 {
		b := w.touched[len(w.touched)-1]
		w.touched = w.touched[:len(w.touched)-1]
		b.touched = false
		b.settle()
	}
}

func (w *World) trace(who, what string) {
	if w.Trace != nil {
		w.Trace(w.Now(), who, what)
	}
}

// forever is later than any run.
const forever = time.Duration(math.MaxInt64)

// call is one request from somebody to a target, and its answer. Its owner is
// the caller, who may use it again after the answer or after cancel.
type call struct {
	caller caller
	to     target
	began  balance.Instant
	rnd    uint64 // the request's own number: all its draws come from it
	try    uint32 // which attempt for the same request, so that draws differ
	key    uint64
	hasKey bool
	client uint64
	size   float64       // times the server's service time
	work   time.Duration // instead of that, if above 0
	unsafe bool          // may not be sent twice
	prio   balance.Priority
	weir   bool          // from a balancer that marks its attempts
	hold   bool          // a connection to be held open, not a request
	sent   bool          // a byte has reached the target: it has accepted the connection
	trip   time.Duration // the answer's way back
	server *Server       // of a held connection, once it stands
	job    *job          // the server's side, nil when there is none
	within *exchange     // the balancer's
}

// caller is told how its call ended.
type caller interface {
	answered(*call, reply)
}

// accepter is a caller that wants to know when the connection stands.
type accepter interface{ accepted(*call) }

// reply is how a call ended.
type reply struct {
	kind       pool.OutcomeKind
	status     int
	reason     string // the word of a balancer's own answer; "" for a server's
	retryAfter bool
	retryFor   time.Duration
	load       float64
	hasLoad    bool
	noRetry    bool // X-Weir-Retry: no
	server     *Server
	attempts   int
	queued     time.Duration
}

// failed reports whether a client would call it a failure.
func (r *reply) failed() bool { return r.kind != pool.Success || r.status >= 500 }

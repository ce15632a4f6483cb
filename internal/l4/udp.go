// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Group is the sockets of one address that clients send to: several that the kernel
// spreads clients over, by their addresses and ports, or one. It is comparable; the
// sockets do not block, are not connected, and stay open as Flows.Close says.
type Group interface {
	Descriptors() []int
	// Bound is where they are bound.
	Bound() netip.AddrPort
}

// Place is what a Doorkeeper gave for a flow, and gets back.
type Place struct {
	Of      any
	Counted bool
}

// Admission is whether a flow may begin.
type Admission uint8

// The admissions.
const (
	Admitted     Admission = iota
	FullListener           // as many as the listener may have
	FullProcess            // as many as the process may have
	FullClient             // as many as one client may have
	NoMemory               // no memory for another one
)

// Doorkeeper bounds the flows of a listener. Its methods do not wait.
type Doorkeeper interface {
	// Enter takes a place for a flow of a client.
	Enter(client netip.Addr) (Place, Admission)
	// Leave gives it back.
	Leave(client netip.Addr, p Place)
	// Refuse counts a flow that got none.
	Refuse(client netip.AddrPort, why Admission)
	// Evict says that the flow of a client was ended to make room for another.
	Evict(client netip.AddrPort)
}

// FlowSessions are the open flows of a process, so that they can be counted and
// ended by whoever decides about their backends. A flow may be told to end from
// within Enter.
type FlowSessions interface {
	Enter(f *Flow)
	Leave(f *Flow)
}

// FlowOptions configure Flows. All but Failed and Bug are needed.
type FlowOptions struct {
	Relay    *FlowRelay   // shared by listeners
	Sessions FlowSessions // shared by listeners
	Door     Doorkeeper
	// Route is where new flows go; nil: nowhere.
	Route func() *Route
	// Backend returns the sockets of a backend; nil: it has none.
	Backend func(*balance.Backend) *upstream.Target
	// Reserve takes a slot of a pool on a backend for a flow of another process. nil:
	// none goes on here.
	Reserve func(l *pool.Lease, name, backend, url string) bool
	// Refused hears of a flow that got no backend, of one a second at most. nil:
	// nobody.
	Refused func(client netip.AddrPort, reason message.Reason, detail string)
	// Failed hears of every flow that ended otherwise than ok; it must not keep the
	// record. nil: nobody.
	Failed func(*observe.Record)
	// Bug hears of broken invariants. nil: they are dropped.
	Bug func(where string, v any)
}

// Flows are the flows of one listener. Make it with NewFlows; it is safe for
// concurrent use.
type Flows struct {
	opt     FlowOptions
	open    atomic.Int64
	cuts    atomic.Int64
	evicted atomic.Uint64
	drops   [drops]atomic.Uint64
	said    atomic.Int64 // when a refusal was told last
	stopped atomic.Bool  // takes no new ones
	loose   loose

	tap func(*observe.Record) // of tests; nil: nobody
}

// NewFlows returns Flows without sockets.
func NewFlows(opt FlowOptions) *Flows {
	if opt.Bug == nil {
		opt.Bug = func(string, any) {}
	}
	return &Flows{opt: opt}
}

// Count returns the number of open flows.
func (s *Flows) Count() int64 { return s.open.Load() }

// CutCount returns how many flows were ended by the end of the process.
func (s *Flows) CutCount() int64 { return s.cuts.Load() }

// FlowCounts are figures about the flows of a listener, ever.
type FlowCounts struct {
	Evicted uint64 // ended to make room
	// Datagrams that went nowhere, by why.
	Truncated, TooBig, Full, Unreachable, Refused uint64
}

// Counts returns the figures of this moment.
func (s *Flows) Counts() FlowCounts {
	d := func(w drop) uint64 { return s.drops[w].Load() }
	return FlowCounts{
		Evicted: s.evicted.Load(), Truncated: d(dropTruncated), TooBig: d(dropTooBig), Full: d(dropFull),
		Unreachable: d(dropUnreachable), Refused: d(dropRefused),
	}
}

const (
	// freshMost is how long a flow may be silent that is not settled: as long as Linux
	// keeps one that it has seen nothing more of.
	freshMost = 30 * time.Second
	// leavingMost is the same when no new flows are taken: whoever asked has got its
	// answer by then, or asks again.
	leavingMost = 2 * time.Second
	// sayEvery bounds how often one kind of trouble is told.
	sayEvery = time.Second
)

// freshFor is how long a flow of the route may be silent as long as it is not settled.
func (s *Flows) freshFor(rt *Route) time.Duration {
	most := freshMost
	if s.stopped.Load() {
		most = leavingMost
	}
	if rt.Idle > 0 {
		most = min(most, rt.Idle)
	}
	return most
}

// refuse counts a flow that got no backend, and tells of one in a second.
func (s *Flows) refuse(now balance.Instant, rt *Route, client netip.AddrPort, reason message.Reason, detail string) {
	r := records.Get().(*observe.Record)
	r.ClientIP, r.Start, r.Reason, r.Detail = client.Addr(), now, reason, detail
	last := s.said.Load()
	say := last == 0 || now.Sub(balance.Instant(last)) >= sayEvery
	if rt != nil {
		r.Listener, r.Protocol, r.Route, r.Pool = rt.Listener, rt.Protocol, rt.Name, rt.PoolName
		if rt.Series != nil {
			rt.Series.For("").ObserveSession(r)
		}
	}
	if say && s.said.CompareAndSwap(last, int64(max(now, 1))) {
		if rt != nil && rt.Log != nil {
			rt.Log.Write(r)
		}
		if s.opt.Failed != nil {
			s.opt.Failed(r)
		}
		if s.opt.Refused != nil {
			s.opt.Refused(client, reason, detail)
		}
	}
	if s.tap != nil {
		s.tap(r)
	}
	r.Reset()
	records.Put(r)
}

// record judges and records a flow that has ended.
func (s *Flows) record(now balance.Instant, f *Flow, o over) {
	r := records.Get().(*observe.Record)
	rt := f.rt
	r.ClientIP, r.Start = address(f.key.client), f.began
	r.Listener, r.Protocol, r.Route, r.Pool, r.Backend = rt.Listener, rt.Protocol, rt.Name, rt.PoolName, f.b.ID()
	r.Sent, r.Linked, r.Attempts = f.grams.in > 0, true, f.attempts
	if f.retry != nil {
		r.Redispatches, r.Tried = len(f.retry.log), append(r.Tried, f.retry.log...)
	}
	r.FirstByte = f.answeredAfter
	r.BytesIn, r.BytesOut, r.DatagramsIn, r.DatagramsOut = f.bytes.in, f.bytes.out, f.grams.in, f.grams.out
	r.Reason, r.Detail = f.judge(o)
	r.Total = now.Sub(r.Start)
	if rt.Series != nil {
		rt.Series.For(r.Backend).ObserveSession(r)
	}
	if rt.Log != nil {
		rt.Log.Write(r)
	}
	if r.Reason != message.OK && s.opt.Failed != nil {
		s.opt.Failed(r)
	}
	if s.tap != nil {
		s.tap(r)
	}
	r.Reset()
	records.Put(r)
}

// judge names how a flow ended.
func (f *Flow) judge(o over) (reason message.Reason, detail string) {
	why := observe.TunnelCause(f.why.Load())
	switch {
	case o.failure.reason != message.OK && f.answeredAfter > 0:
		return message.ResetMidResponse, o.failure.detail
	case o.failure.reason != message.OK:
		return o.failure.reason, o.failure.detail
	case o.aged:
		return message.MaxAge, "open for " + f.rt.Total.String()
	case o.evicted && f.answeredAfter == 0:
		return message.ConnLimit, "made room for others before an answer came"
	case o.evicted:
		return message.OK, "made room for others"
	case o.idle && f.answeredAfter == 0:
		return message.ResponseTimeout, "no answer came"
	case o.idle:
		return message.OK, ""
	case why == observe.TunnelByRebalance:
		return message.Rebalanced, ""
	}
	if why == observe.TunnelByShutdown {
		f.own.cuts.Add(1)
	}
	return message.DrainCut, why.String()
}

// FlowRelay moves the datagrams of flows: a loop per processor, which start with the
// first socket. Listeners share one. Make it with NewFlowRelay; all methods are safe
// for concurrent use.
type FlowRelay struct {
	bug   func(v any)
	plain bool // of tests: see flowLoop
	// settle is how old a settled flow is at least.
	settle time.Duration
	loose  loose
	// ready is all, for those who must not wait for mu.
	ready atomic.Pointer[[]*flowLoop]

	mu     sync.Mutex // guards the rest
	all    []*flowLoop
	groups map[Group]*group
	// expected are the flows of another process whose sockets are not open yet.
	expected []FlowState
	turn     int
	closed   bool
}

// NewFlowRelay returns a relay without loops. bug hears of what was recovered; it
// may be called from any goroutine.
func NewFlowRelay(bug func(v any)) *FlowRelay {
	return &FlowRelay{bug: bug, settle: settledAfter, groups: make(map[Group]*group)}
}

// group is the ports of a Group.
type group struct {
	relay *FlowRelay
	of    Group
	ports []*port
	live  atomic.Int32 // ports that are read
}

// loops starts them when they are asked for first. Called under mu.
func (r *FlowRelay) loops() ([]*flowLoop, error) {
	if r.closed {
		return nil, errClosed
	}
	if r.all != nil {
		return r.all, nil
	}
	var all []*flowLoop
	for range runtime.GOMAXPROCS(0) {
		l, err := newFlowLoop(r.bug, r.plain, r.settle)
		if err != nil {
			for _, l := range all {
				l.close()
			}
			return nil, err
		}
		all = append(all, l)
	}
	for i, l := range all {
		others := slices.Concat(all[i+1:], all[:i])
		l.ask(func() { l.others = others })
	}
	r.all = all
	r.ready.Store(&all)
	return all, nil
}

// Close ends every flow that is left and waits for the loops.
func (r *FlowRelay) Close() {
	r.mu.Lock()
	r.closed = true
	all := r.all
	r.mu.Unlock()
	for _, l := range all {
		l.close()
	}
	r.Forget()
}

// left is called when a port is not read any more.
func (g *group) left() {
	if g.live.Add(-1) > 0 {
		return
	}
	r := g.relay
	go func() { // not on a loop: who opens ports waits for them under mu
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.groups[g.of] == g {
			delete(r.groups, g.of)
		}
	}()
}

// Open begins to take flows from sockets, which whoever took them before does no
// longer.
func (s *Flows) Open(of Group) error {
	r := s.opt.Relay
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := r.loops()
	if err != nil {
		return err
	}
	g := r.groups[of]
	if g != nil {
		taken := true
		for _, p := range g.ports {
			p.loop.await(func() {
				if p.slot < 0 {
					taken = false // it was given up a moment ago
				} else {
					p.own = s
				}
			})
		}
		if taken {
			return nil
		}
	}
	g = &group{relay: r, of: of}
	var faults []error
	fds := of.Descriptors()
	for i, fd := range fds {
		from := r.awaited(of.Bound(), i, len(fds))
		l := all[r.turn%len(all)]
		r.turn++
		p := newPort(l, g, fd)
		p.own = s
		l.await(func() {
			for i := range from {
				l.adopt(p, &from[i])
			}
			if err := l.addPort(p); err != nil {
				faults = append(faults, err)
				return
			}
			g.live.Add(1)
		})
		g.ports = append(g.ports, p)
	}
	r.groups[of] = g
	return errors.Join(faults...)
}

// Close ends taking new flows from sockets and returns when none begins any more;
// done is called, from any goroutine, when the last that began there has ended: from
// then on they are not used any more, unless somebody else has opened them.
func (s *Flows) Close(of Group, done func()) {
	r := s.opt.Relay
	r.mu.Lock()
	g := r.groups[of]
	r.mu.Unlock()
	if g == nil {
		done()
		return
	}
	var left atomic.Int32
	left.Store(int32(len(g.ports)))
	one := func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
	for _, p := range g.ports {
		if !p.loop.await(func() { p.loop.leavePort(p, s, one) }) {
			one()
		}
	}
}

// Stop says that no sockets are left to take flows from: those that have answered
// once, and are not heard of again, end soon.
func (s *Flows) Stop() {
	s.stopped.Store(true)
	r := s.opt.Relay
	r.mu.Lock()
	all := r.all
	r.mu.Unlock()
	for _, l := range all {
		l.ask(func() {}) // it looks again how long it may wait
	}
}

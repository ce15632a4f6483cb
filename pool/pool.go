// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Pool is one group of backends. Make one with New; all methods are safe for
// concurrent use. Lock order: mu, then queue.mu; inMu is a leaf.
type Pool struct {
	// Constant after New.
	driver  Driver
	now     func() balance.Instant
	totals  bool // members count in total, too
	wakeup  chan struct{}
	quit    chan struct{}
	stopped chan struct{}

	// Read by every request, written seldom.
	set       atomic.Pointer[settings]
	view      atomic.Pointer[view]
	mean      atomic.Int64  // nanoseconds, by which failed attempts are charged
	meanAsked atomic.Bool   // the core knows that it is wanted
	refused   atomic.Uint64 // requests refused because everyone was full, with Overload.QueueFull
	clients   addresses     // of answers in this window
	ready     atomic.Bool
	marked    atomic.Pointer[member] // members with marks, a stack
	builds    atomic.Uint64

	lately atomic.Pointer[latencies] // how long answers take; read by attempts that failed

	_        [64]byte
	total    balance.Total // only for policies that ask for it
	inFlight atomic.Int64  // only with Limits.PoolRequests
	_        [56]byte
	budget   atomic.Pointer[budget]
	queue    queue

	inMu  sync.Mutex
	inbox []event // results of probes

	mu      sync.Mutex
	cfg     Config // as set holds it, at an address that stays; for the core
	core    core
	last    *publication
	outbox  []effect        // for the driver, executed by whoever runs Advance
	wakeAt  balance.Instant // when time must be looked at again
	hasWake bool
	started bool
	closed  bool
}

// New returns a pool without members. It answers picks with NoBackend until
// the first Update. now is the clock, read by the pool's goroutine and by the
// methods that are not called per request; it must not go back.
func New(cfg Config, d Driver, now func() balance.Instant) *Pool {
	if cfg.Policy == nil {
		cfg.Policy = balance.NewP2C(2)
	}
	p := &Pool{
		cfg: cfg, driver: d, now: now, totals: usesTotal(cfg.Policy),
		wakeup:  make(chan struct{}, 1),
		quit:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	p.set.Store(newSettings(cfg, nil))
	b := &budget{}
	b.init(&p.cfg.Retry)
	p.budget.Store(b)
	p.core = core{
		cfg: &p.cfg, hot: p, attach: p.attach,
		byID: map[string]*member{}, leaving: map[identity]*member{}, overrides: map[string]*override{},
	}
	p.build(p.core.compose())
	return p
}

// Config returns what New or the last Reconfigure was given.
func (p *Pool) Config() Config { return p.set.Load().Config }

// attach makes a member.
func (p *Pool) attach(s Spec) *member {
	m := &member{p: p, b: balance.NewBackend(s.ID, s.URL), core: &coreState{}}
	m.b.SetOwner(m)
	m.lastGood.Store(math.MinInt64)
	m.lastConn.Store(math.MinInt64)
	m.probed.Store(math.MinInt64)
	if p.totals {
		m.b.SetTotal(&p.total)
	}
	m.b.SetAttachment(p.driver.Attach(m.b))
	return m
}

// Update replaces the membership. Backends are identified by id and address:
// known ones keep all that is known of them, those missing finish what is in
// flight, and one that comes back in that time is revived. New backends are
// published before Update returns unless a publication less than 100 ms ago
// puts them off.
func (p *Pool) Update(specs []Spec) {
	p.mu.Lock()
	if !p.closed {
		p.step(event{kind: evUpdate, specs: specs})
	}
	p.mu.Unlock()
	p.poke()
}

// Dismiss is Update for a membership that a backend is no longer part of because
// somebody said so: what the operator said of id is forgotten, and what is in
// flight on it has until deadline (0: the pool's, negative: it is cut now). Said
// again while work is in flight it moves the deadline. A backend that specs name
// stays.
func (p *Pool) Dismiss(id string, specs []Spec, deadline time.Duration) {
	p.mu.Lock()
	if !p.closed {
		p.step(event{kind: evDismiss, id: id, specs: specs, deadline: deadline})
	}
	p.mu.Unlock()
	p.poke()
}

// Override puts the operator's word about a backend into force at once. It
// outlives Update, also while the backend is away or in the subsets of other
// balancers only. An id that the last Update did not name is ErrUnknownBackend.
func (p *Pool) Override(id string, o Override) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core.byID[id] == nil && !p.core.outside[id] {
		return ErrUnknownBackend
	}
	p.step(event{kind: evOverride, id: id, override: o})
	p.poke()
	return nil
}

// Overridden returns the operator's word about an id that the last Update named,
// here or in the subsets of other balancers: Admin is nil where there is none,
// so is Weight. since is when the latest part of it was said.
func (p *Pool) Overridden(id string) (o Override, since balance.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.core.overrides[id]
	if w == nil {
		return Override{}, 0
	}
	if w.hasAdmin {
		word := w.admin
		o.Admin, o.Deadline = &word, w.deadline
	}
	if w.hasWeight {
		n := w.weight
		o.Weight = &n
	}
	return o, latestWord(w.hasAdmin, w.adminSince, w.hasWeight, w.weightSince)
}

// Ready reports that the first round of probes is over or 5 s have passed.
func (p *Pool) Ready() bool { return p.ready.Load() }

// Advance does what is due: results of probes, thresholds that requests
// crossed, timers; then it calls the Driver. It returns when it wants to be
// called again at the latest; false when only an event can give it work. The
// pool's goroutine calls it; a simulation without Start calls it instead. Not
// to be called concurrently.
func (p *Pool) Advance() (next balance.Instant, ok bool) {
	p.inMu.Lock()
	inbox := p.inbox
	p.inbox = nil
	p.inMu.Unlock()

	p.mu.Lock()
	for i := range inbox {
		p.step(inbox[i])
	}
	for m := p.takeMarked(); m != nil; {
		rest := m.next
		m.next = nil // before the marks: from then on it may be put on the list again
		p.step(event{kind: evCrossed, m: m, marks: m.marks.Swap(0)})
		m = rest
	}
	p.step(event{kind: evTick})
	out := p.outbox
	p.outbox = nil
	next, ok = p.wakeAt, p.hasWake
	p.mu.Unlock()

	for i := range out {
		p.execute(&out[i])
	}
	return next, ok
}

// takeMarked takes the list of marked members, in the order of marking.
func (p *Pool) takeMarked() *member {
	var first *member
	for m := p.marked.Swap(nil); m != nil; {
		m, m.next, first = m.next, first, m
	}
	return first
}

// step runs one event through the core; mu is held. What requests must see at
// once happens here, what the driver has to do is left for Advance.
func (p *Pool) step(ev event) {
	now := p.now()
	for _, e := range p.core.step(now, ev) {
		switch e.kind {
		case doPublish:
			p.build(e.publish)
		case doWake:
			p.wakeAt, p.hasWake = e.at, true
		default:
			p.outbox = append(p.outbox, e)
		}
	}
	if p.core.ready && !p.ready.Load() {
		p.ready.Store(true)
	}
	if p.queue.length.Load() != 0 {
		p.kick(now) // whatever has changed may have made room
	}
}

// build makes a publication what requests read. A picker whose members are
// the same as before is kept.
func (p *Pool) build(pub *publication) {
	last := p.last
	for i := range pub.tiers {
		t := &pub.tiers[i]
		for k := range t.groups {
			g := &t.groups[k]
			if g.picker = last.kept(t, g); g.picker == nil && (len(g.takers) > 0 || i == 0) {
				set := balance.NewSet(g.takers, p.cfg.Instance, t.panicked)
				g.picker = p.cfg.Policy.Build(set.Of(t.part(g)))
			}
		}
	}
	if last != nil && last.panicked() || pub.panicked() {
		pub.spread()
	}
	p.view.Store(newView(pub, p.set.Load().keyed))
	p.last = pub
	p.builds.Add(1)
}

// execute carries out one effect that is the driver's.
func (p *Pool) execute(e *effect) {
	switch e.kind {
	case doProbe:
		m := e.m
		p.driver.Probe(m.b, p.set.Load().Active.Timeout, func(r health.ProbeResult) {
			p.inMu.Lock()
			p.inbox = append(p.inbox, event{kind: evProbe, m: m, result: r})
			first := len(p.inbox) == 1
			p.inMu.Unlock()
			if first {
				p.poke()
			}
		})
	case doCloseIdle:
		p.driver.CloseIdle(e.m.b)
	case doGone:
		p.driver.Gone(e.m.b)
	case doNotice:
		p.driver.Notice(e.notice)
	}
}

// poke makes the pool's goroutine look. It never blocks.
func (p *Pool) poke() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

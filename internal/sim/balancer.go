// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

// BalancerConfig is one weir: its pool, and what the data plane around the pool
// is configured with.
type BalancerConfig struct {
	Name string // unique among balancers and servers; "": lb-1, lb-2, ...
	// Pool is what pool.New gets. Nil Policy: p2c. A Policy value may hold a
	// cursor, so that balancers should not share one. Instance 0 is derived from
	// the name.
	Pool pool.Config
	// Specs are its backends: URL names a server or another balancer, "" counts as
	// ID. Nil: all servers that the world has then.
	Specs []pool.Spec

	Retry    pool.RetryRules
	Request  time.Duration // for the whole request; 0: none
	Connect  time.Duration // 0 counts as 2s
	Response time.Duration // from the last byte sent to the answer; 0 counts as 30s

	Network Dist // to a backend and back, without its work; nil: none
	// Probes travel on their own.
	ProbeNetwork Dist    // to a backend and back; nil: as Network
	ProbeLoss    float64 // part of the probes that get no answer

	// Marks makes it take part in the layers' agreement on retries: it marks its
	// attempts toward other balancers, and an answer that it gives after it retried
	// or declined to carries the word not to retry toward a balancer that marked
	// its attempt.
	Marks bool
}

// Balancer is one simulated weir around a real pool.
type Balancer struct {
	w    *World
	cfg  BalancerConfig
	pool *pool.Pool
	salt uint64

	touched  bool
	timer    timer
	waiting  []*exchange // in the pool's queue, oldest first
	links    []*link
	probes   *Stream
	requests uint64
	attempts uint64
	refused  uint64
}

// AddBalancer adds a balancer. Its pool takes its first members at once; they are
// its first configuration only if Pool.First says so.
func (w *World) AddBalancer(c BalancerConfig) *Balancer {
	if c.Name == "" {
		c.Name = "lb-" + strconv.Itoa(len(w.balancers)+1)
	}
	if c.Pool.Name == "" {
		c.Pool.Name = c.Name
	}
	if c.Pool.Instance == 0 {
		c.Pool.Instance = newStream(w.seed, "instance "+c.Name).Uint64()
	}
	if c.Connect <= 0 {
		c.Connect = 2 * time.Second
	}
	if c.Response <= 0 {
		c.Response = 30 * time.Second
	}
	if c.ProbeNetwork == nil {
		c.ProbeNetwork = c.Network
	}
	if c.Specs == nil {
		for _, s := range w.servers {
			c.Specs = append(c.Specs, s.Spec())
		}
	}
	b := &Balancer{w: w, cfg: c, salt: newStream(w.seed, "salt "+c.Name).Uint64(), probes: w.Stream("probes " + c.Name)}
	b.timer.who = b
	w.register(c.Name, b)
	w.balancers = append(w.balancers, b)
	b.pool = pool.New(c.Pool, driver{b}, func() balance.Instant { return w.now })
	b.Update(c.Specs)
	return b
}

// Name returns the balancer's name.
func (b *Balancer) Name() string { return b.cfg.Name }

// Pool returns the real pool. Who changes it calls Touch afterwards.
func (b *Balancer) Pool() *pool.Pool { return b.pool }

// Update replaces the pool's membership, as configuration and discovery do.
func (b *Balancer) Update(specs []pool.Spec) {
	specs = append([]pool.Spec(nil), specs...)
	for i := range specs {
		if specs[i].URL == "" {
			specs[i].URL = specs[i].ID
		}
	}
	b.cfg.Specs = specs
	b.pool.Update(specs)
	b.Touch()
}

// Specs returns the membership in force. It must not be changed.
func (b *Balancer) Specs() []pool.Spec { return b.cfg.Specs }

// Override is the operator's word about a backend.
func (b *Balancer) Override(id string, o pool.Override) error {
	err := b.pool.Override(id, o)
	b.Touch()
	return err
}

// Touch makes the pool look for work when the event at hand is over.
func (b *Balancer) Touch() {
	if !b.touched {
		b.touched = true
		b.w.touched = append(b.w.touched, b)
	}
}

// Requests returns how many requests have come in, how many attempts were made
// for them, and how many were refused without one.
func (b *Balancer) Requests() (requests, attempts, refused uint64) {
	return b.requests, b.attempts, b.refused
}

// shortest is the least time between two looks at the pool's timers, as the pool's
// own goroutine has it.
const shortest = 10 * time.Millisecond

// settle gives the pool its turn, if an event has given it work, and takes the
// answers of those that waited in its queue.
func (b *Balancer) settle() {
	if b.pool.Pending() {
		b.advance()
	}
	b.poll()
}

// fire is the pool's timer.
func (b *Balancer) fire(uint8) {
	b.advance()
	b.Touch()
}

func (b *Balancer) advance() {
	next, ok := b.pool.Advance()
	if !ok {
		b.w.agenda.cancel(&b.timer)
		return
	}
	b.w.agenda.plan(&b.timer, max(next, b.w.now.Add(shortest)))
}

// passedOver is how many waiters a pool may leave unanswered in front of one that
// it answers: those that have tried what is free (pool: handOnLook).
const passedOver = 8

// poll takes the answers of waiting requests.
func (b *Balancer) poll() {
	for passed, i := 0, 0; i < len(b.waiting) && passed <= passedOver; {
		x := b.waiting[i]
		got, ok := x.ticket.Poll()
		if !ok {
			passed++
			i++
			continue
		}
		b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
		x.granted(got)
	}
}

// link is what a balancer knows of its way to one backend.
type link struct {
	b      *Balancer
	to     target
	server *Server // nil when it is a balancer
	back   *balance.Backend
	idle   int    // kept connections
	epoch  uint32 // of the server's process that they lead to
}

// driver carries out what the pool decides, in virtual time.
type driver struct{ b *Balancer }

// Attach finds the backend's server by its address.
func (d driver) Attach(back *balance.Backend) any {
	t := d.b.w.targets[back.Address()]
	if t == nil {
		panic("sim: " + d.b.cfg.Name + " has a backend at " + back.Address() + ", where nobody is")
	}
	l := &link{b: d.b, to: t, back: back}
	l.server, _ = t.(*Server)
	d.b.links = append(d.b.links, l)
	if c := d.b.w.counts; c != nil {
		c.join(l)
	}
	return l
}

// CloseIdle implements pool.Driver.
func (driver) CloseIdle(back *balance.Backend) { back.Attachment().(*link).idle = 0 }

// Gone implements pool.Driver.
func (d driver) Gone(back *balance.Backend) {
	for i, l := range d.b.links {
		if l.back == back {
			d.b.links = append(d.b.links[:i], d.b.links[i+1:]...)
			if c := d.b.w.counts; c != nil {
				c.leave(l)
			}
			return
		}
	}
}

// Notice implements pool.Driver.
func (d driver) Notice(n pool.Notice) {
	if n.Kind == pool.DrainOver {
		d.b.cutDrained(n.Backend)
	}
	if f := d.b.w.OnNotice; f != nil {
		f(d.b, n)
	}
}

// errand is one probe under way.
type errand struct {
	timer
	b       *Balancer
	l       *link
	sent    balance.Instant
	give    balance.Instant // when it times out
	done    func(health.ProbeResult)
	result  health.ProbeResult
	back    time.Duration
	pending bool // the server's word is awaited
}

const (
	errandArrives = iota
	errandReturns
	errandTimesOut
)

// Probe sends a check on its way.
func (d driver) Probe(back *balance.Backend, timeout time.Duration, done func(health.ProbeResult)) {
	b := d.b
	e := &errand{b: b, l: back.Attachment().(*link), sent: b.w.now, done: done}
	e.who = e
	e.give = b.w.now.Add(max(timeout, 1))
	trip := time.Duration(0)
	if b.cfg.ProbeNetwork != nil {
		trip = b.cfg.ProbeNetwork.Sample(b.probes)
	}
	lost := b.cfg.ProbeLoss > 0 && b.probes.Float64() < b.cfg.ProbeLoss
	out := trip / 2
	e.back = trip - out
	if lost || b.w.now.Add(out) >= e.give {
		e.expire()
		return
	}
	e.code = errandArrives
	b.w.agenda.plan(&e.timer, b.w.now.Add(out))
}

func (e *errand) expire() {
	e.code = errandTimesOut
	e.b.w.agenda.plan(&e.timer, e.give)
}

func (e *errand) fire(code uint8) {
	switch code {
	case errandArrives:
		e.pending = true
		e.expire()
		http := e.b.cfg.Pool.Active.HTTP
		if e.l.server == nil {
			e.word(health.Pass, health.CauseNone, 200)
			return
		}
		e.l.server.probe(http, e.word)
	case errandReturns:
		e.finish()
	case errandTimesOut:
		e.pending = false
		e.result = health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseTimeout, Error: "no answer in time"}
		e.finish()
	}
}

// word is what the server says to the probe.
func (e *errand) word(o health.ProbeOutcome, cause health.Cause, status int) {
	if !e.pending {
		return // too late
	}
	e.pending = false
	e.result = health.ProbeResult{Outcome: o, Cause: cause, Status: status}
	if o != health.Pass {
		e.result.Error = cause.String()
		if cause == health.CauseStatus {
			e.result.Error += " " + strconv.Itoa(status) // as a prober says it
		}
	}
	if s := e.l.server; s != nil && s.cfg.Reports && cause != health.CauseRefused && cause != health.CauseNoRoute {
		e.result.Load, e.result.HasLoad = s.Load(), true
	}
	at := e.b.w.now.Add(e.back)
	if at >= e.give {
		return // the timeout is planned already, and is before
	}
	e.code = errandReturns
	e.b.w.agenda.plan(&e.timer, at)
}

func (e *errand) finish() {
	e.result.Sent, e.result.At, e.result.OnTrafficPort = e.sent, e.b.w.now, true
	e.done(e.result)
	e.b.Touch()
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/handover"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/probe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Options is what the engine gets from the command beside the plan.
type Options struct {
	Version string
	Machine Machine      // zero: nothing is known; the instance number is then made up
	Stderr  io.Writer    // where the log goes; nil: nowhere
	Logger  *slog.Logger // replaces the log that the plan asks for; nil: none does
	// Load reads the configuration again, for ReloadFile and SIGHUP; nil: it came
	// from flags.
	Load func() (*config.Plan, error)
	// Sockets has what was inherited, and is asked for every listening socket;
	// nil: an empty set.
	Sockets *listen.Sockets
	// Upgrade says how the process hands over to a successor; nil: it cannot.
	Upgrade *UpgradeOptions
	// Predecessor hands over to this process; nil: it starts afresh. Then TakeOver
	// is called instead of Start.
	Predecessor *handover.Predecessor
	// Notify tells the service manager what the process does, as sd_notify(3)
	// says it: one or more lines of NAME=VALUE. It is called in order, never from
	// two goroutines at a time, and must return soon. nil: nobody listens.
	Notify func(state string)
	// Watchdog is within which time the service manager must hear that the process
	// lives; 0: it does not ask.
	Watchdog time.Duration
}

// Engine is a balancer: built by New, running between Start and the end of
// Run or Shutdown. Its methods are safe for concurrent use.
type Engine struct {
	// Constant after New.
	opt     Options
	log     *slog.Logger
	level   slog.LevelVar // of log, unless Options.Logger took its place
	started time.Time
	metrics *observe.Metrics
	logs    accessLogs
	issued  issued
	prober  *probe.Prober
	names   *upstream.Resolver
	streams *http2.Client // of connections to backends over HTTP/2
	memory  *memory
	relief  relief
	files   netconn.Files
	// fileLimit is RLIMIT_NOFILE as it was seen last; 0: unknown.
	fileLimit atomic.Uint64
	bugs      uint64 // leases finished twice in this process before
	// inherited: another process served here a moment ago.
	inherited bool
	flowsFrom *os.File // whence the predecessor's flows come; nil: nowhere
	front     *front   // sockets toward clients
	ops       *ops     // sockets toward operators
	notify    notifier
	stable    time.Duration // how long files must be, for the watch
	patience  time.Duration // with a disk that does not answer, at the end
	ending    time.Duration // that what was cut may take
	upgrade   upgrade

	states   stateFile
	events   events
	recent   recentLog // lines of the log, for a bundle
	failures observe.Failures
	gen      atomic.Pointer[Generation]
	state    atomic.Int32 // phaseStarting and those after it

	mu       sync.Mutex // guards what follows; held through Apply
	pools    map[string]*livePool
	limiters map[limiterKey]*l7.Limiter
	leaving  []*leavingPool
	retiring bool // somebody waits for them
	restored bool // another process's state was taken in
	closed   bool

	quit      chan struct{}  // closed by Close
	published chan struct{}  // has a value when another plan serves since the watch looked
	retirer   sync.WaitGroup // and whatever else ends with quit
}

// New builds a balancer from a plan: sockets are bound, certificates and
// tokens read, pools made. Nothing is accepted or probed before Start. When it
// fails nothing is left behind.
func New(plan *config.Plan, opt Options) (*Engine, error) {
	if opt.Machine.Instance == 0 {
		opt.Machine.Instance = instanceNumber()
	}
	e := &Engine{
		opt: opt, log: opt.Logger, started: time.Now(), bugs: pool.LeaseBugs(),
		pools: make(map[string]*livePool), limiters: make(map[limiterKey]*l7.Limiter),
		quit: make(chan struct{}), published: make(chan struct{}, 1), stable: watchSettle, patience: logFlushTime, ending: cutPatience,
	}
	e.fileLimit.Store(opt.Machine.Files)
	e.notify.send, e.states.word = opt.Notify, make(chan struct{}, 1)
	if e.opt.Sockets == nil {
		e.opt.Sockets = listen.NewSockets()
	}
	e.upgrade.done = make(chan *handover.Successor, 1)
	if opt.Predecessor != nil {
		if err := e.inherit(opt.Predecessor); err != nil {
			return nil, err
		}
	}
	if e.log == nil {
		e.level.Set(levelOf(&plan.Log))
		e.log = newLogger(e.recent.tee(opt.Stderr), &e.level)
	}
	e.metrics = observe.NewMetrics(observe.MetricsOptions{
		Version: opt.Version, ExactCodes: plan.Metrics.Codes == "exact", BackendSeries: backendSeries(plan),
	})
	e.metrics.RegisterLogDropped(e.logs.dropped)
	e.ops = &ops{}
	e.metrics.RegisterPools(e.poolGauges)
	e.metrics.RegisterListeners(e.listenerGauges)
	e.metrics.RegisterStateFile(func() (uint64, uint64) { return e.states.written.Load(), e.states.failures.Load() })
	e.names = upstream.NewResolver()
	e.prober = probe.New(probe.Options{Version: opt.Version, Observe: e.metrics.Probe, Resolve: e.names.Lookup,
		OnPanic: func(v any, stack []byte) { e.bugAt("probe", v, stack) }})
	e.memory = newMemory(e.log, &e.opt.Machine)
	e.memory.said = e.sayMemory
	e.streams = &http2.Client{Budget: &e.memory.budget, OnPanic: func(v any, stack []byte) { e.bugAt("http2", v, stack) }}
	e.metrics.RegisterMemory(e.memory.gauges)
	e.relief.log, e.relief.thin, e.relief.idle = e.log, e.thinKept, e.endIdle
	e.relief.flows = func(most int) int { return e.front.flows.Relieve(most) }
	e.metrics.RegisterRelieved(func() (uint64, uint64) { return e.relief.clients.Load(), e.relief.upstream.Load() })
	var err error
	if e.front, err = newFront(e, plan); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err = e.Apply(plan); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// backendSeries translates the plan's 0 (none has) into the option's.
func backendSeries(p *config.Plan) int {
	if p.Metrics.BackendSeries == 0 {
		return -1
	}
	return p.Metrics.BackendSeries
}

func levelOf(l *config.Log) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	return level
}

// Apply publishes a plan. It is all or nothing: what can fail comes first, and
// on an error the running configuration is untouched. Pools and listeners that
// stay keep their state, whatever of them is changed; what left the plan goes when
// nobody uses it any more.
func (e *Engine) Apply(plan *config.Plan) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.applyLocked(plan)
}

func (e *Engine) applyLocked(plan *config.Plan) error {
	if e.closed {
		return errors.New("the balancer is stopped")
	}
	old := e.gen.Load()
	g := &Generation{Number: 1, Plan: plan, pools: make(map[string]*livePool, len(plan.Pools)), changes: make(map[string]*poolChange)}
	if old != nil {
		g.Number = old.Number + 1
	}
	check := e.opt.Sockets.Check
	if old == nil && e.inherited {
		check = e.checkedNow(plan)
	}
	err := e.build(g, old == nil)
	if err != nil {
		// Whatever failed first: all that is wrong is said at once, as by a dry run.
		if faults := verify(plan, check); len(faults) > 0 {
			err = errors.Join(faults...)
		}
	}
	e.metrics.Reload(err)
	if err != nil {
		return err
	}
	e.publish(g)
	return nil
}

// build makes everything of a generation that can fail. Called under mu.
func (e *Engine) build(g *Generation, first bool) error {
	var faults []error
	for i := range g.Plan.Pools {
		cfg := &g.Plan.Pools[i]
		p := e.known(cfg.Name)
		var err error
		if p == nil {
			p, err = e.buildPool(cfg, first)
		} else {
			g.changes[cfg.Name], err = p.change(cfg, e.opt.Machine.Instance)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s%w", cfg.Pos, err))
			continue
		}
		g.pools[cfg.Name] = p
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if err := e.issued.stage(e, g.Plan); err != nil {
		return err
	}
	staged, err := e.front.stage(g.Plan)
	if err != nil {
		e.issued.drop()
		return err
	}
	desk, err := e.ops.stage(e, g.Plan)
	if err != nil {
		e.front.drop(staged)
		e.issued.drop()
		return err
	}
	if g.log, err = e.logs.stage(e, g.Plan); err == nil {
		err = e.buildHandlers(g, staged.listeners)
	}
	if err != nil {
		e.logs.drop(g.log)
		e.ops.drop(desk)
		e.front.drop(staged)
		e.issued.drop()
		return err
	}
	g.staged, g.desk = staged, desk
	return nil
}

// publish makes a built generation the one that serves; nothing in it can
// fail. Called under mu.
func (e *Engine) publish(g *Generation) {
	for i := range g.Plan.Pools {
		cfg := &g.Plan.Pools[i]
		p := g.pools[cfg.Name]
		e.metrics.SetPoolSize(cfg.Name, len(cfg.Backends))
		_, running := e.pools[cfg.Name]
		e.pools[cfg.Name] = p
		if c := g.changes[cfg.Name]; c != nil {
			p.apply(c)
		}
		p.populate(cfg)
		if !running && e.state.Load() != phaseStarting {
			p.pool.Start()
			p.startDiscovery()
		}
	}
	for _, set := range g.limits {
		set()
	}
	e.level.Set(levelOf(&g.Plan.Log))
	e.front.gate.SetLimit(maxConnections(g.Plan.Limits.MaxConnections, e.fileLimit.Load()))
	e.boundFlows(g.Plan)
	e.memory.setBuffered(g.Plan.Limits.Buffered)
	e.metrics.Change(g.Plan.Metrics.Codes == "exact", backendSeries(g.Plan))
	e.front.detach(g.staged, e.gen.Load())
	e.gen.Store(g)
	e.front.adopt(g.staged) // accepting begins when there is somebody to serve
	e.issued.adopt(e, g.Plan, e.state.Load() != phaseStarting)
	e.ops.adopt(e, g.desk)
	e.logs.adopt(g.log)
	g.staged, g.desk, g.changes, g.log, g.limits = nil, nil, nil, nil, nil
	e.forget(g)
	e.retirePools(g)
	e.metrics.SetGeneration(g.Number)
	select {
	case e.published <- struct{}{}:
	default:
	}
}

// Start begins to probe and to accept. It is called once.
func (e *Engine) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.state.Load() != phaseStarting {
		return
	}
	e.loadStateLocked()
	for _, p := range e.pools {
		p.pool.Start()
		p.startDiscovery()
	}
	e.memory.start()
	e.front.start()
	e.state.Store(phaseServing)
	e.ops.start() // last: a successor shares the socket that /readyz is asked at, and must not deny there what its predecessor affirms
	e.issued.manage(e.gen.Load().Plan)
	e.retirer.Go(e.keepState)
	e.retirer.Go(e.watchFiles)
	e.retirer.Go(e.rebalance)
	e.log.Info("serving", "version", e.opt.Version, "generation", e.gen.Load().Number)
	if e.opt.Load != nil {
		e.retirer.Go(e.watch)
	}
	if e.opt.Predecessor == nil { // otherwise TakeOver does it
		for _, bind := range e.opt.Sockets.Unclaimed() {
			e.log.Warn("a socket that was handed in is closed, because no listener names it", "bind", bind)
		}
	}
	if e.opt.Notify != nil {
		e.notify.ready(e.statusLocked())
		e.retirer.Go(e.live)
	}
}

// Close ends everything at once and waits for it. It may be called at any time
// and more than once.
func (e *Engine) Close() error {
	defer e.awaitRest() // without the lock, which they take
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	if e.state.Load() != phaseStarting {
		e.lastState()
	}
	e.closed = true
	close(e.quit)
	e.upgrade.unfollow()
	if e.state.Load() != phaseLeaving { // who has handed over stays ready to the end
		e.state.Store(phaseDraining)
	}
	var errs []error
	e.issued.close()
	if e.front != nil {
		errs = append(errs, e.front.close())
	}
	for _, p := range e.pools {
		p.stopDiscovery()
		p.pool.Close()
	}
	for _, p := range e.leaving {
		p.stopDiscovery()
		p.pool.Close()
	}
	e.prober.Close()
	e.streams.Close()
	e.names.Close()
	e.memory.close()
	if e.ops != nil {
		errs = append(errs, e.ops.close())
	}
	if n := pool.LeaseBugs(); n > 0 {
		e.log.Error("a lease was returned twice", "times", n)
	}
	if err := e.logs.close(); err != nil {
		e.log.Error("lines of the access log are lost", "error", err) // whoever does not read it fails, not weir
	}
	return errors.Join(errs...)
}

// logFlushTime bounds the wait for a log that nobody reads, and for a disk that does
// not answer.
const logFlushTime = 2 * time.Second

// cutPatience is how long connections have to end that were cut. They need a moment.
const cutPatience = 10 * time.Second

// awaitRest waits for the goroutines that end with quit. One of them that reads or writes
// a file may not come back, which is no reason for the process to stay.
func (e *Engine) awaitRest() {
	if !within(2*e.patience, e.retirer.Wait) { // what ends a log has its own time
		e.log.Error("something that was under way does not end, perhaps for a disk that does not answer: it is left behind")
	}
}

// within waits for f for so long at most, and reports whether f has returned.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// bug counts and reports a broken invariant.
func (e *Engine) bug(where string, what any) {
	e.metrics.Bug(where)
	e.log.Error("defect of weir", "where", where, "what", fmt.Sprint(what))
}

// bugAt is bug for a panic that was recovered elsewhere.
func (e *Engine) bugAt(where string, v any, stack []byte) {
	e.metrics.Bug(where)
	e.log.Error("defect of weir: panic recovered", "where", where, "panic", fmt.Sprint(v), "stack", string(stack))
}

// Bound is where the balancer can be reached, with real ports.
type Bound struct {
	Listeners []BoundListener // sorted by name
	Admin     string          // host:port or unix:/path; empty: off
	Status    string

	everywhere map[string]bool // those that stand for all addresses of the machine
}

// BoundListener is one listener's addresses.
type BoundListener struct {
	Name     string
	Protocol string // http, tcp or sni
	TLS      bool
	Addrs    []string
}

// String is one line for people.
func (b Bound) String() string {
	var parts []string
	for _, l := range b.Listeners {
		scheme := "http://"
		switch {
		case l.Protocol != "" && l.Protocol != "http":
			scheme = l.Protocol + "://"
		case l.TLS:
			scheme = "https://"
		}
		for _, a := range l.Addrs {
			parts = append(parts, l.Name+" on "+b.said(scheme, a))
		}
	}
	if b.Admin != "" {
		parts = append(parts, "admin on "+b.said("http://", b.Admin))
	}
	if b.Status != "" {
		parts = append(parts, "status on "+b.said("http://", b.Status))
	}
	return strings.Join(parts, ", ")
}

func (b Bound) said(scheme, addr string) string {
	switch {
	case strings.HasPrefix(addr, "unix:"):
		return addr
	case b.everywhere[addr]:
		return scheme + addr + " (all addresses)"
	default:
		return scheme + addr
	}
}

// Bound returns the addresses.
func (e *Engine) Bound() Bound {
	b := Bound{everywhere: map[string]bool{}}
	for _, l := range e.liveListeners() {
		addrs := l.addrs()
		b.Listeners = append(b.Listeners, BoundListener{Name: l.name, Protocol: l.cfg.Protocol, TLS: l.tls, Addrs: addrs})
		for i, a := range l.bound() {
			b.everywhere[addrs[i]] = a != addrs[i]
		}
	}
	if e.ops != nil {
		b.Admin, b.Status = e.ops.addrs()
		plan := e.gen.Load().Plan
		b.everywhere[b.Admin], b.everywhere[b.Status] = unspecified(plan.Admin.Bind), unspecified(plan.Status.Bind)
	}
	return b
}

// unspecified reports whether an address as written takes in all of the machine.
func unspecified(bind string) bool {
	host, _, err := net.SplitHostPort(bind)
	ip, _ := netip.ParseAddr(host)
	return err == nil && (host == "" || ip.IsUnspecified())
}

// Events returns what happened since the given number, oldest first, as far as
// it is remembered.
func (e *Engine) Events(since uint64) []Event { return e.events.since(since) }

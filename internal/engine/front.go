// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
)

// front is everything that faces clients: sockets, codecs and exchanges of all
// listeners, and what they share. It outlives generations.
type front struct {
	// Constant.
	e      *Engine
	gate   *listen.Gate
	parker *listen.Parker
	loops  sync.WaitGroup // accepting listeners

	mu        sync.Mutex // guards what follows
	listeners map[string]*liveListener
	retired   []*liveListener // no longer in the plan; their connections finish
	slots     int             // ever given out
	started   bool
}

// liveListener is one listener that is bound.
type liveListener struct {
	name string
	slot int // index into Generation.handlers, never given out again
	tls  bool
	ln   *listen.Listener
	srv  *http1.Server
	x    *l7.Exchanger
	cfg  config.Listener
}

func newFront(e *Engine, plan *config.Plan) (*front, error) {
	parker, err := listen.NewParker(func(v any, stack []byte) { e.bugAt("resume", v, stack) })
	if err != nil {
		return nil, fmt.Errorf("waiting for idle connections: %w", err)
	}
	return &front{
		e: e, parker: parker, listeners: make(map[string]*liveListener),
		gate: listen.NewGate(maxConnections(plan.Limits.MaxConnections, e.opt.Machine.Files)),
	}, nil
}

// stage returns the listeners of a plan: those that run already, and new ones,
// bound but not accepting. On an error nothing new stays bound.
func (f *front) stage(plan *config.Plan) (map[string]*liveListener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	staged := make(map[string]*liveListener, len(plan.Listeners))
	var faults []error
	for i := range plan.Listeners {
		cfg := &plan.Listeners[i]
		l := f.listeners[cfg.Name]
		switch {
		case l != nil && !l.sameSockets(cfg):
			faults = append(faults, fixedListener(cfg))
		case l != nil: // its files may hold something else now
			faults = append(faults, certificateFaults(cfg)...)
		default:
			var err error
			if l, err = f.bind(cfg); err != nil {
				faults = append(faults, err)
			}
		}
		if l != nil {
			staged[cfg.Name] = l
		}
	}
	if len(faults) > 0 {
		f.dropLocked(staged)
		return nil, errors.Join(faults...)
	}
	return staged, nil
}

// unchangeable returns what a plan would change of listeners that run and cannot
// be changed.
func (f *front) unchangeable(plan *config.Plan) (faults []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range plan.Listeners {
		cfg := &plan.Listeners[i]
		if l := f.listeners[cfg.Name]; l != nil && !l.sameSockets(cfg) {
			faults = append(faults, fixedListener(cfg))
		}
	}
	return faults
}

func fixedListener(cfg *config.Listener) error {
	return fmt.Errorf("%slistener %s: a reload cannot yet change its bind, tls, timeouts or limits (routes and what belongs to them it can): "+
		"restart weir for this, or take the change back", cfg.Pos, cfg.Name)
}

// drop closes what stage bound and nothing adopted.
func (f *front) drop(staged map[string]*liveListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropLocked(staged)
}

func (f *front) dropLocked(staged map[string]*liveListener) {
	for name, l := range staged {
		if f.listeners[name] != l {
			l.ln.Stop()
		}
	}
}

// adopt makes staged listeners the front's own; new ones begin to accept if
// the others already do.
func (f *front) adopt(staged map[string]*liveListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, l := range staged {
		if f.listeners[name] == l {
			continue
		}
		f.listeners[name] = l
		if f.started {
			f.serve(l)
		}
	}
	for _, l := range f.listeners {
		_ = l.ln.Reload() // it loaded a moment ago; what fails now is logged there and keeps the old ones
	}
}

// retire stops the listeners that a plan no longer has. Their connections are
// closed as they become idle, over a few seconds.
func (f *front) retire(plan *config.Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, l := range f.listeners {
		if plan.Listener(name) == nil {
			delete(f.listeners, name)
			f.retired = append(f.retired, l)
			l.ln.Stop()
			l.srv.Drain(retireSpread)
		}
	}
}

// retireSpread is over how long the idle connections of a listener that left
// the plan are closed.
const retireSpread = 10 * time.Second

// sameSockets reports whether a new plan changes nothing that is fixed when a
// listener is bound: routes and what belongs to the handler may differ.
func (l *liveListener) sameSockets(next *config.Listener) bool {
	fixed := func(c config.Listener) config.Listener {
		c.Pos, c.Routes, c.HealthPath, c.TrustedProxies = config.Position{}, nil, "", nil
		c.MaxBody, c.DebugHeaders = 0, false
		return c
	}
	return reflect.DeepEqual(fixed(l.cfg), fixed(*next))
}

// bind makes one listener. Called under mu.
func (f *front) bind(cfg *config.Listener) (*liveListener, error) {
	l := &liveListener{name: cfg.Name, slot: f.slots, tls: cfg.TLS != nil, cfg: *cfg}
	e := f.e
	opt := listen.Options{
		Name: cfg.Name, Bind: cfg.Bind, Sockets: e.opt.Sockets, HandshakeTimeout: orUnbounded(cfg.Timeouts.Header),
		Gate: f.gate, MaxConnections: int(cfg.MaxConnections), MaxPerClient: int(cfg.MaxPerClient),
		Logger:    e.log,
		OnRefused: func(r listen.Refusal) { e.refused(cfg.Name, r) },
		OnPanic:   func(v any, stack []byte) { e.bugAt("connection", v, stack) },
	}
	if t := cfg.TLS; t != nil {
		opt.TLS = &listen.TLSOptions{MinVersion: t.MinVersion}
		for _, c := range t.Certificates {
			opt.TLS.Certificates = append(opt.TLS.Certificates, listen.CertFile{Cert: c.Cert, Key: c.Key})
		}
	}
	ln, err := listen.Listen(opt)
	if err != nil {
		return nil, err
	}
	f.slots++
	l.ln = ln
	l.x = l7.New(l7.Options{
		Handler: func() *l7.Handler { return e.gen.Load().handlers[l.slot] },
		Bug:     e.bug,
		Failed:  e.failures.Note,
	})
	l.srv = &http1.Server{
		Limits: http1.Limits{MaxHeaderBytes: int(cfg.MaxHeaderBytes)},
		Timeouts: http1.Timeouts{
			Header: cfg.Timeouts.Header, Idle: cfg.Timeouts.Idle, Write: cfg.Timeouts.Write,
			BodyMinRate: cfg.Timeouts.BodyMinRate, BodyGrace: cfg.Timeouts.BodyGrace,
		},
		Handler:      func(c *http1.ServerConn) { l.x.Serve(c, c.Info().(*l7.ClientInfo)) },
		Park:         f.parker.Park,
		Closing:      e.memory.pressed.Load,
		OnBadRequest: func(c *http1.ServerConn, err *http1.Error) { l.x.BadRequest(c, c.Info().(*l7.ClientInfo), err) },
		OnPanic:      func(v any, stack []byte) { e.bugAt("http1", v, stack) },
	}
	return l, nil
}

// orUnbounded translates the plan's 0 (none) for options whose 0 is a default.
func orUnbounded(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// start begins to accept on every listener.
func (f *front) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = true
	for _, l := range f.listeners {
		f.serve(l)
	}
}

func (f *front) serve(l *liveListener) {
	f.loops.Go(func() {
		err := l.ln.Serve(func(c *netconn.Conn, info listen.Info) {
			l.srv.Serve(c, &l7.ClientInfo{Peer: info.Remote, Local: info.Local, TLS: info.TLS})
		})
		if err != nil {
			f.e.log.Error("accepting ended", "listener", l.name, "error", err)
		}
	})
}

// all returns the listeners, sorted by name.
func (f *front) all() []*liveListener {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*liveListener, 0, len(f.listeners))
	for _, l := range f.listeners {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *liveListener) int { return cmp.Compare(a.name, b.name) })
	return out
}

// ever returns the listeners that retired, too.
func (f *front) ever() []*liveListener {
	all := f.all()
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(all, f.retired...)
}

// connections counts the open client connections.
func (f *front) connections() int { return f.gate.Open() }

// drain makes answers say Connection: close and closes idle connections spread
// over the duration.
func (f *front) drain(spread time.Duration) {
	for _, l := range f.ever() {
		l.srv.Drain(spread)
	}
}

// undrain takes drain back.
func (f *front) undrain() {
	for _, l := range f.all() {
		l.srv.Undrain()
	}
}

// stop ends accepting.
func (f *front) stop() {
	for _, l := range f.ever() {
		l.ln.Stop()
	}
	f.loops.Wait()
}

// empty returns a channel that is closed when, after stop, the last connection
// has ended.
func (f *front) empty() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, l := range f.ever() {
			l.ln.Wait()
			l.srv.Wait()
		}
	}()
	return done
}

// cutTunnels ends the tunnels of each listener evenly over the duration, or at
// once when hurry is closed.
func (f *front) cutTunnels(spread time.Duration, hurry <-chan struct{}) {
	var all sync.WaitGroup
	for _, l := range f.ever() {
		all.Go(func() { l.x.CutTunnels(spread, hurry) })
	}
	all.Wait()
}

// cutCount returns how many requests and tunnels ended by cut and cutTunnels.
func (f *front) cutCount() (n int64) {
	for _, l := range f.ever() {
		n += l.x.CutCount()
	}
	return n
}

// cut ends every connection and returns how many were in use.
func (f *front) cut() (n int) {
	for _, l := range f.ever() {
		l.x.Cut()
		l.x.CutTunnels(0, nil)
		n += l.srv.CloseAll()
	}
	return n
}

// close stops and cuts whatever is left, and waits for it.
func (f *front) close() error {
	all := f.ever()
	for _, l := range all {
		l.ln.Stop()
	}
	f.cut()
	f.loops.Wait()
	for _, l := range all {
		if f.started {
			l.ln.Wait()
		}
		l.srv.Wait()
	}
	return f.parker.Close()
}

// addrs returns where the listener can be reached from here, in the order of
// the plan.
func (l *liveListener) addrs() []string { return l.each(opsAddr) }

// bound returns where the listener is bound, as the kernel says it.
func (l *liveListener) bound() []string {
	return l.each(func(a net.Addr) string {
		if a.Network() == "unix" {
			return "unix:" + a.String()
		}
		return a.String()
	})
}

func (l *liveListener) each(name func(net.Addr) string) []string {
	var out []string
	for _, a := range l.ln.Addrs() {
		out = append(out, name(a))
	}
	return out
}

// reachable names an address under which it can be called from here: an
// unspecified one is reached over loopback.
func reachable(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return a.String()
	}
	ap := t.AddrPort()
	return loopbackOf(ap).String()
}

func (l *liveListener) gauges() observe.ListenerGauges {
	g := observe.ListenerGauges{Name: l.name, Connections: int64(l.ln.Connections())}
	for _, q := range l.ln.Queues() {
		g.AcceptQueue += int64(q.Length)
		g.AcceptQueueLimit += int64(q.Limit)
	}
	for _, c := range l.ln.Certificates() {
		g.Certificates = append(g.Certificates, observe.CertificateGauge{Name: c.Name, NotAfter: c.NotAfter})
	}
	return g
}

func (e *Engine) liveListeners() []*liveListener { return e.front.all() }

// refused counts a connection that was turned away before it could ask.
func (e *Engine) refused(listener string, r listen.Refusal) {
	rec := observe.Record{Reason: message.ConnLimit, Tunnel: true} // there is no latency to speak of
	switch r {
	case listen.NoFiles:
		rec.Reason = message.LocalFiles
	case listen.HandshakeTimeout: // as for a plain connection on which nothing was sent
		rec.Reason = message.HeaderTimeout
	case listen.AcceptFailed, listen.HandshakeFailed:
		return // no request was turned away
	}
	e.metrics.Series(listener, "", "", "").Observe(&rec)
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/acme"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
)

// liveListener is one listener that is bound, as one plan has it: another plan
// makes another one of the same sockets, codec and exchanges. It is immutable.
type liveListener struct {
	name string
	slot int // index into Generation.handlers
	tls  bool
	ln   *listen.Listener
	srv  *codecs
	x    *l7.Exchanger
	last *atomic.Pointer[l7.Handler] // since it left the plan
	cfg  config.Listener
	// issued has the certificates of tls.acme; nil: there are none.
	issued *acme.Manager
}

// newListener makes one that is not bound yet.
func (f *front) newListener(slot int) *liveListener {
	e, last := f.e, new(atomic.Pointer[l7.Handler])
	x := l7.New(l7.Options{
		Handler: func() *l7.Handler {
			if g := e.gen.Load(); slot < len(g.handlers) {
				if h := g.handlers[slot]; h != nil {
					return h
				}
			}
			return last.Load()
		},
		Bug:     e.bug,
		Short:   e.memory.short.Load,
		Grow:    e.memory.grow,
		Budget:  &e.memory.budget,
		Failed:  e.failures.Note,
		Tunnels: f.tunnels,
	})
	l := &liveListener{slot: slot, x: x, last: last, srv: f.newCodecs(x)}
	l.srv.streams = f.newStreams(slot, l.srv)
	l.srv.flows = f.newFlows(l.srv.streams)
	return l
}

// with is the listener as another plan has it.
func (l *liveListener) with(cfg *config.Listener) *liveListener {
	next := *l
	next.name, next.tls, next.cfg = cfg.Name, cfg.TLS != nil, *cfg
	next.issued = nil
	return &next
}

// options translates a plan's listener for package listen.
func (f *front) options(cfg *config.Listener) listen.Options {
	e, name := f.e, cfg.Name
	opt := listen.Options{
		Name: name, Bind: cfg.Bind, Sockets: e.opt.Sockets, HandshakeTimeout: orUnbounded(cfg.Timeouts.Header),
		Gate: f.gate, MaxConnections: int(cfg.MaxConnections), MaxPerClient: int(cfg.MaxPerClient),
		Logger:    e.log,
		OnRefused: func(r listen.Refusal) { e.refused(cfg, r) },
		Mute:      cfg.Sessions(), Packets: cfg.Datagrams(),
		OnPanic: func(v any, stack []byte) { e.bugAt("connection", v, stack) },
		Relieve: e.relief.one,
		Files:   &e.files,
		Short:   func() bool { return !e.memory.grow(roomConn) },
	}
	if p := &cfg.ProxyProtocol; p.On() {
		opt.Proxy = &listen.ProxyOptions{Required: p.Mode == "required", From: p.From}
	}
	if t := cfg.TLS; t != nil {
		opt.OnShaken = e.metrics.Handshakes(name).Observe
		opt.Short = func() bool { return !e.memory.grow(roomConnTLS) }
		opt.TLS = &listen.TLSOptions{MinVersion: t.MinVersion, ClientAuth: clientAuth(t), TicketKeysFile: t.TicketKeysFile}
		if len(t.ACME) > 0 {
			opt.TLS.Managed, opt.TLS.ManagedNames = e.issued.next, t.ACME
		}
		switch {
		case cfg.Sessions():
			opt.TLS.ALPN = append([]string{}, t.ALPN...) // not nil, which is http/1.1
		case cfg.H2:
			opt.TLS.ALPN = []string{"h2", "http/1.1"}
		}
		for _, c := range t.Certificates {
			opt.TLS.Certificates = append(opt.TLS.Certificates, listen.CertFile{Cert: c.Cert, Key: c.Key})
		}
	}
	return opt
}

// orUnbounded translates the plan's 0 (none) for options whose 0 is a default.
func orUnbounded(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
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
	t, ok := a.(interface{ AddrPort() netip.AddrPort })
	if !ok || !t.AddrPort().Addr().IsUnspecified() {
		return a.String()
	}
	return loopbackOf(t.AddrPort()).String()
}

func (l *liveListener) gauges() observe.ListenerGauges {
	g := observe.ListenerGauges{Name: l.name, Connections: int64(l.ln.Connections())}
	for _, q := range l.ln.Queues() {
		g.AcceptQueue += int64(q.Length)
		g.AcceptQueueLimit += int64(q.Limit)
	}
	if g.HTTP2 = l.cfg.H2 && !l.cfg.Sessions(); g.HTTP2 {
		g.Streams = int64(l.srv.h2.Counts().Streams)
	}
	if l.tls {
		g.Handshakes, g.Handshaking = l.handshakes(), l.ln.Handshaking()
	}
	g.Certificates = l.certificates()
	g.Headers = l.headers()
	g.Datagrams = l.datagrams()
	return g
}

// headers are the listener's counts of PROXY headers by the words of metrics.
func (l *liveListener) headers() (out []observe.HeaderCount) {
	all := l.ln.Headers()
	if !l.ln.ReadsHeaders() && all[listen.HeaderNotAllowed] == 0 {
		return nil
	}
	for i, n := range all {
		out = append(out, observe.HeaderCount{Outcome: listen.HeaderOutcome(i).String(), N: uint64(n)})
	}
	return out
}

func (e *Engine) liveListeners() []*liveListener { return e.front.all() }

// refused counts a connection that was turned away before it could ask.
func (e *Engine) refused(cfg *config.Listener, r listen.Refusal) {
	rec := observe.Record{Reason: message.ConnLimit, Tunnel: true} // there is no latency to speak of
	switch r {
	case listen.NoFiles:
		rec.Reason = message.LocalFiles
	case listen.NoMemory:
		rec.Reason = message.LocalMemory
	case listen.HandshakeTimeout: // as for a plain connection on which nothing was sent
		rec.Reason = message.HeaderTimeout
	case listen.AcceptFailed, listen.HandshakeFailed:
		return // no request was turned away
	}
	if s := e.metrics.Series(cfg.Name, "", "", ""); cfg.Sessions() {
		s.ObserveSession(&rec)
	} else {
		s.Observe(&rec)
	}
}

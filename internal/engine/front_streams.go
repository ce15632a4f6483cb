// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
)

// streams is what a listener does with connections that it passes on whole.
type streams struct {
	// Constant.
	e    *Engine
	slot int // index into Generation.streams
	// codecs has the listener, whose connections these are.
	codecs *codecs
	px     *l4.Proxy

	on   atomic.Bool                  // the plan in force wants it
	last atomic.Pointer[streamRoutes] // since the listener left the plan
}

// streamRoutes are where the sessions of a listener go, as one plan has it. It is
// immutable.
type streamRoutes struct {
	all  []*l4.Route // in the order of the plan
	none *l4.Route   // of those that found none

	names *names // of an sni listener; nil for others
	// to has, beside each of all, the listener that goes on in its place; nil: nobody.
	to []*liveListener
}

func (f *front) newStreams(slot int, c *codecs) *streams {
	e := f.e
	s := &streams{e: e, slot: slot, codecs: c}
	s.px = l4.New(l4.Options{
		Relay: f.relay, Sessions: lasting[*l4.Session]{f.tunnels}, Backend: upstreamOf,
		Short:  e.memory.short.Load,
		Forged: func(client netip.AddrPort) { c.ln.Forged(client) },
		Failed: e.failures.Note,
		Bug:    e.bug,
	})
	return s
}

// lasting keeps sessions, or flows, where tunnels are.
type lasting[T l7.LongLived] struct{ all *l7.Tunnels }

// Enter implements l4.Sessions and l4.FlowSessions.
func (s lasting[T]) Enter(x T) { s.all.Enter(x) }

// Leave implements l4.Sessions and l4.FlowSessions.
func (s lasting[T]) Leave(x T) { s.all.Leave(x) }

// upstreamOf is how a backend is connected to; nil: not at all.
func upstreamOf(b *balance.Backend) *upstream.Target {
	if t := targetOf(b); t != nil {
		return t.up
	}
	return nil
}

// routes are those in force.
func (s *streams) routes() *streamRoutes {
	if g := s.e.gen.Load(); s.slot < len(g.streams) {
		if r := g.streams[s.slot]; r != nil {
			return r
		}
	}
	return s.last.Load()
}

// serve carries a session.
func (s *streams) serve(c *netconn.Conn, info *listen.Info, via *l4.Proxy) {
	ci := l4.Client{Peer: info.Remote, Local: info.Local, Began: clock.Now(), Via: via}
	if p := info.Proxied; p != nil {
		ci.Said, ci.Checksum, ci.ProxiedBy = p.TLVs, p.Checksum, p.Peer.Addr()
	}
	if info.TLS {
		ci.Name = strings.ToLower(strings.TrimSuffix(info.SNI, "."))
		secure := clientInfo(info).Secure
		ci.TLVs, ci.Session = secure.TLVs, &secure.Session
	}
	r := s.routes()
	if r == nil {
		_ = c.Reset() // the listener has just become one for sessions
		return
	}
	if len(r.all) == 0 {
		s.px.Refuse(c, &ci, r.none, message.NoRoute, "")
		return
	}
	if r.names != nil {
		s.serveNamed(c, &ci, info, r)
		return
	}
	s.px.Serve(c, &ci, r.all[0], nil)
}

// wantsBare reports that the listener's sessions go to one pool as they are.
func (s *streams) wantsBare() bool {
	if !s.on.Load() {
		return false
	}
	r := s.routes()
	return r.bare() && s.px.WantsBare()
}

// bare reports that nothing has to be read of a connection to find its route.
func (r *streamRoutes) bare() bool { return r != nil && r.names == nil && len(r.all) > 0 }

// serveBare carries a session whose connection is but a descriptor.
func (s *streams) serveBare(b netconn.Bare, info *listen.Info) bool {
	r := s.routes()
	if !s.on.Load() || !r.bare() {
		return false // a new plan has come since
	}
	ci := l4.Client{Peer: info.Remote, Local: info.Local, Began: clock.Now()}
	s.px.ServeBare(b, &ci, r.all[0])
	return true
}

// buildStreams makes the routes of sessions out of those that were built for
// requests: the same pools, keys, series and limits.
func (e *Engine) buildStreams(g *Generation, l *config.Listener, h *l7.Handler, listeners map[string]*liveListener) *streamRoutes {
	out := &streamRoutes{none: &l4.Route{Listener: l.Name, Protocol: l.Protocol, Series: h.Series, Log: h.Log}}
	out.names, out.to = buildNames(l), passing(l, listeners)
	for i, t := range h.Targets {
		if out.to[i] != nil {
			out.all = append(out.all, nil)
			continue
		}
		out.all = append(out.all, e.buildStream(g, l, &l.Routes[i], t, h.Log))
	}
	return out
}

func (e *Engine) buildStream(g *Generation, l *config.Listener, r *config.Route, t *l7.Route, log *observe.AccessLog) *l4.Route {
	p, cfg := g.pools[r.Pool], g.Plan.Pool(r.Pool)
	out := &l4.Route{
		Listener: l.Name, Protocol: l.Protocol, Name: t.Name, PoolName: t.PoolName, Pool: p.pool,
		Idle: l.Timeouts.Idle, Total: l.Timeouts.Total, Connect: t.Timeouts.Connect, Retry: t.Retry,
		Series: t.Series, PoolSeries: t.PoolSeries, Log: log,
	}
	usedBy(p, out)
	if t.Limit != nil {
		out.Limit = t.Limit
	}
	if key := t.Key; key != nil {
		out.Key = func(client netip.Addr) (uint64, bool) { return key(&message.Request{}, client) }
	}
	if v := proxyVersion(cfg); v != 0 {
		out.ProxyHeader = func(dst []byte, ci *l4.Client) []byte {
			return sessionHeader(dst, v, ci)
		}
	}
	return out
}

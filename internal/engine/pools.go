// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/probe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// livePool is a pool that runs. It outlives generations: health, counters and
// connections are here.
type livePool struct {
	name   string
	pool   *pool.Pool
	series *observe.PoolSeries
	driver *driver
	find   finder          // membership: listed and found, see discover.go
	cfg    config.Pool     // what it was built from, Backends included
	uses   atomic.Int64    // routes that refer to it, those of generations before too
	moves  pool.Rebalancer // owned by Engine.rebalance

	sessions *l7.Sessions
	sticky   stickyKeys // of sessions; guarded by the engine's mu
}

// buildPool makes a pool without starting it: no goroutine, no probe, no
// connection yet.
func (e *Engine) buildPool(cfg *config.Pool, first bool) (*livePool, error) {
	pc, _, err := PoolConfig(cfg, e.opt.Machine.Instance)
	if err != nil {
		return nil, err
	}
	pc.First = first
	log := e.log.With("pool", cfg.Name)
	shared, err := upstreamTLS(cfg, log)
	if err != nil {
		return nil, err
	}
	d := &driver{engine: e, name: cfg.Name, log: log}
	d.set.Store(&driverSettings{cfg: cfg, tls: shared})
	keys, err := loadSticky(cfg)
	if err != nil {
		return nil, err
	}
	p := &livePool{name: cfg.Name, driver: d, cfg: *cfg, series: e.metrics.Pool(cfg.Name), sessions: l7.NewSessions(cfg.Name)}
	p.seat(keys)
	p.pool = pool.New(pc, d, clock.Now)
	d.pool = p
	return p, nil
}

// connections counts the open connections to the pool's backends.
func (p *livePool) connections(s *pool.Snapshot) int64 {
	var n int64
	for i := range s.Backends {
		if t := targetOf(s.Backends[i].Backend); t != nil {
			n += t.connections()
		}
	}
	return n
}

// livePools returns the pools of the published generation, sorted by name.
func (e *Engine) livePools() []*livePool {
	g := e.gen.Load()
	out := make([]*livePool, 0, len(g.pools))
	for _, p := range g.pools {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *livePool) int { return cmp.Compare(a.name, b.name) })
	return out
}

// target is a backend's Attachment: its connections, and what the prober needs.
type target struct {
	l7.Target // over up
	up        *upstream.Target
	address   string // host:port
	https     bool   // or grpcs, or tls
	scheme    string
	learned   func(idle time.Duration) // tells that the backend closes idle connections so early
	probe     atomic.Pointer[probe.Target]
}

// ForUpgrade implements l7.Upgrading.
func (t *target) ForUpgrade() l7.Target {
	if u, ok := t.Target.(l7.Upgrading); ok {
		return u.ForUpgrade()
	}
	return t.Target
}

// For implements l7.Introducing. HTTP/2 would put many clients on one connection:
// backends of HTTP/1.1 are all that a plan lets begin with a header.
func (t *target) For(header []byte) l7.Target { return l7.OverHTTP1(t.up).(l7.Introducing).For(header) }

func (t *target) connections() int64 { return int64(t.up.Stats().Open) }

func targetOf(b *balance.Backend) *target {
	t, _ := b.Attachment().(*target)
	return t
}

func addressOf(b *balance.Backend) string {
	if t := targetOf(b); t != nil {
		return t.address
	}
	return ""
}

// newTarget prepares the connections to one backend. Nothing is dialed.
func (d *driver) newTarget(b *balance.Backend) (*target, error) {
	u, err := url.Parse(b.Address())
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("backend %s: %q is not a URL", b.ID(), b.Address())
	}
	t := &target{address: u.Host, https: config.Secure(u.Scheme), scheme: u.Scheme, learned: func(idle time.Duration) { d.sayLearned(b.ID(), idle) }}
	set := d.set.Load()
	opt := set.upstream(d.engine.names, t)
	opt.Relieve, opt.Files = d.engine.relief.one, &d.engine.files
	opt.HTTP2 = d.engine.streams
	t.up = upstream.NewTarget(opt)
	if speaksHTTP2(u.Scheme) || u.Scheme == "https" {
		t.Target = l7.OverHTTP2(t.up)
	} else {
		t.Target = l7.OverHTTP1(t.up)
	}
	t.setProbe(set)
	return t, nil
}

// upstream says how a backend is connected to.
func (s *driverSettings) upstream(names *upstream.Resolver, t *target) upstream.Options {
	c := s.cfg
	out := upstream.Options{
		Address:        t.address,
		ConnectTimeout: c.Timeouts.Connect, TLSTimeout: c.Timeouts.TLS, KeepAlive: c.Timeouts.KeepAlive,
		MaxIdle: c.Upstream.MaxIdle, MaxConns: int(c.Limits.Connections), MaxRequests: int(c.Upstream.MaxRequests),
		ReuseUnsafeWithin: c.Upstream.ReuseUnsafeWithin, MaxAge: c.Upstream.MaxConnectionAge,
		Resolver: names, Learned: t.learned,
	}
	if t.https {
		out.TLS = backendTLS(s.tls, t.address)
		if ofSessions(t.scheme) {
			out.TLS.NextProtos = nil // l4 knows what its client speaks
		}
	}
	out.MaxStreams, out.Ping = c.Upstream.MaxStreams, c.Upstream.Ping
	switch {
	case speaksHTTP2(t.scheme):
		out.Protocol = upstream.HTTP2
	case t.scheme == "https" && c.Upstream.H2:
		out.Protocol = upstream.HTTP2Offered
	}
	return out
}

// speaksHTTP2 reports that backends of the scheme are spoken to in nothing else.
func speaksHTTP2(scheme string) bool { return scheme == "h2c" || scheme == "grpc" || scheme == "grpcs" }

// ofSessions reports that backends of the scheme are spoken to in what their clients
// speak, and not in HTTP.
func ofSessions(scheme string) bool { return scheme == "tcp" || scheme == "tls" }

// setProbe says how a backend is asked from the next probe on.
func (t *target) setProbe(s *driverSettings) {
	a := &s.cfg.Active
	var secure *tls.Config
	if a.TLS == "on" || a.TLS != "off" && t.https {
		secure = backendTLS(s.tls, t.address)
		if a.Host != "" && s.cfg.TLS.ServerName == "" {
			secure.ServerName = hostOnly(a.Host)
		}
	}
	p := probeTarget(s.cfg, t.address, secure)
	asTraffic(&p, t.scheme, s.cfg.Upstream.H2)
	p.Key, p.Within = sharedKey(s.cfg, &p), a.Interval/2
	t.probe.Store(&p)
}

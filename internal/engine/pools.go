// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/url"
	"reflect"
	"slices"

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
	cfg    config.Pool // what it was built from, Backends included
}

// buildPool makes a pool without starting it: no goroutine, no probe, no
// connection yet.
func (e *Engine) buildPool(cfg *config.Pool, first bool) (*livePool, error) {
	pc, _, err := PoolConfig(cfg, e.opt.Machine.Instance)
	if err != nil {
		return nil, err
	}
	pc.First = first
	shared, err := upstreamTLS(cfg)
	if err != nil {
		return nil, err
	}
	d := &driver{engine: e, cfg: cfg, tls: shared, log: e.log.With("pool", cfg.Name)}
	p := &livePool{name: cfg.Name, driver: d, cfg: *cfg, series: e.metrics.Pool(cfg.Name)}
	p.pool = pool.New(pc, d, clock.Now)
	d.pool = p
	return p, nil
}

// sameSettings reports whether the running pool can serve another plan's pool
// by a mere change of membership.
func (p *livePool) sameSettings(next *config.Pool) bool {
	a, b := p.cfg, *next
	a.Backends, b.Backends = nil, nil
	a.Pos, b.Pos = config.Position{}, config.Position{}
	a.Hash.Key, b.Hash.Key = nil, nil // routes make the keys
	return reflect.DeepEqual(a, b)
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
	address   string      // host:port
	probeTLS  *tls.Config // nil: probes are plain
	probe     probe.Target
}

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
	t := &target{address: u.Host}
	c := d.cfg
	https := u.Scheme == "https"
	var traffic *tls.Config
	if https {
		traffic = backendTLS(d.tls, t.address)
	}
	if c.Active.TLS == "on" || c.Active.TLS != "off" && https {
		t.probeTLS = backendTLS(d.tls, t.address)
		if host := c.Active.Host; host != "" && c.TLS.ServerName == "" {
			t.probeTLS.ServerName = hostOnly(host)
		}
	}
	t.up = upstream.NewTarget(upstream.Options{
		Address: t.address, TLS: traffic,
		ConnectTimeout: c.Timeouts.Connect, TLSTimeout: c.Timeouts.TLS, KeepAlive: c.Timeouts.KeepAlive,
		MaxIdle: c.Upstream.MaxIdle, MaxConns: int(c.Limits.Connections), MaxRequests: int(c.Upstream.MaxRequests),
		ReuseUnsafeWithin: c.Upstream.ReuseUnsafeWithin, MaxAge: c.Upstream.MaxConnectionAge,
		Resolver: d.engine.names,
	})
	t.Target = l7.OverHTTP1(t.up)
	t.probe = d.probeTarget(t)
	return t, nil
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// wave is a wave of tunnels of one backend that are being ended.
type wave struct {
	stop chan struct{}
	why  observe.TunnelCause
}

// tunnels does to a backend's tunnels what a notice is about. It is called by
// the pool's goroutine only, which owns d.waves.
func (d *driver) tunnels(n *pool.Notice) {
	b := n.Backend
	if b == nil {
		return
	}
	switch n.Kind {
	case pool.DrainBegan:
		d.engine.front.tunnels.BeginDrain(b)
	case pool.DrainEnding:
		d.endTunnels(b, observe.TunnelByDrain, n.For-min(n.For/10, drainMargin))
	case pool.Added, pool.DrainEmpty:
		d.calm(b)
	case pool.Overridden:
		if b.Admin() == balance.Enabled {
			d.calm(b)
			d.engine.front.tunnels.EndDrain(b)
		}
	case pool.StateChanged:
		cfg := d.set.Load().cfg
		switch {
		case n.To == health.StateBroken && cfg.OnBroken == "close":
			d.endTunnels(b, observe.TunnelByBroken, cfg.DrainSpread)
		case n.From == health.StateBroken && d.waves[b] != nil && d.waves[b].why == observe.TunnelByBroken:
			d.calm(b)
		}
	}
}

// drainMargin is how long before the deadline of a drain the last tunnel has ended,
// so that the deadline does not find it, and count it once more.
const drainMargin = 100 * time.Millisecond

// endTunnels ends a backend's tunnels, streams and sessions spread over the time. A wave that runs
// already ends.
func (d *driver) endTunnels(b *balance.Backend, why observe.TunnelCause, within time.Duration) {
	d.calm(b)
	all := d.engine.front.tunnels
	open := all.Untold(b)
	if open == 0 {
		return
	}
	w := &wave{stop: make(chan struct{}), why: why}
	if d.waves == nil {
		d.waves = make(map[*balance.Backend]*wave)
	}
	d.waves[b] = w
	d.log.Info("tunnels and streams are ended", "backend", b.ID(), "cause", why.String(), "open", open, "within", within)
	d.engine.events.add(Event{At: time.Now(), Pool: d.name, Backend: b.ID(), Kind: "tunnels_ended", Text: fmt.Sprintf("%d tunnels and streams are ended within %s: %s", open, within, why)})
	d.engine.retirer.Go(func() {
		all.End(&l7.Wave{Backend: b, Cause: why, Within: within, Stop: w.stop, Quit: d.engine.quit})
	})
}

// calm lets the tunnels live that a wave has not reached.
func (d *driver) calm(b *balance.Backend) {
	if w := d.waves[b]; w != nil {
		close(w.stop)
		delete(d.waves, b)
	}
}

// rebalanceEvery is how often it is looked whether tunnels are spread evenly.
const rebalanceEvery = time.Second

// rebalance ends the surplus of tunnels in the pools that ask for that, until
// the engine closes.
func (e *Engine) rebalance() {
	tick := time.NewTicker(rebalanceEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		if e.state.Load() != phaseServing || e.front.tunnels.Open() == 0 {
			continue
		}
		for _, p := range e.livePools() {
			if cfg := p.driver.set.Load().cfg; cfg.Rebalance != nil {
				p.rebalance(clock.Now(), cfg.Rebalance, e.front.tunnels)
			}
		}
	}
}

// rebalance is one look at one pool. It belongs to the goroutine of
// Engine.rebalance.
func (p *livePool) rebalance(now balance.Instant, cfg *config.Rebalance, all *l7.Tunnels) {
	s := p.pool.Snapshot()
	on, tier := make([]pool.Holding, len(s.Backends)), busiestTier(&s)
	for i := range s.Backends {
		b := &s.Backends[i]
		on[i] = pool.Holding{
			Held: all.Untold(b.Backend), Weight: b.Weight, Share: b.Share,
			Out: b.Removed || b.Draining || b.Admin != balance.Enabled || b.Unreachable || b.Tier != tier,
		}
	}
	for i, n := range p.moves.Step(now, &pool.Rebalance{Above: cfg.Above, PerMinute: cfg.PerMinute}, on) {
		if n == 0 {
			continue
		}
		b := s.Backends[i].Backend
		if n = all.EndOldest(b, n, cfg.MinAge, observe.TunnelByRebalance, l7.TunnelWait); n > 0 {
			p.driver.log.Debug("tunnels are ended for balance", "backend", b.ID(), "ended", n, "open", on[i].Held)
		}
	}
}

// busiestTier is the one that most of the requests go to: only its members share
// tunnels with each other.
func busiestTier(s *pool.Snapshot) (tier int) {
	for i := range s.Tiers {
		if s.Tiers[i].Load > s.Tiers[tier].Load {
			tier = i
		}
	}
	return tier
}

// sayTunnels tells at the end of a drain what became of the tunnels and streams.
func (e *Engine) sayTunnels() {
	if n := e.front.tunnels.StreamsEnded(observe.TunnelByShutdown); n > 0 {
		e.log.Info("streams were ended", "streams", n)
	}
	n := e.front.tunnels.Ended(observe.TunnelByShutdown)
	if n == (l7.TunnelsEnded{}) {
		return
	}
	e.log.Info("tunnels were ended", "closed", n[observe.TunnelClosed], "unanswered", n[observe.TunnelUnanswered], "cut", n[observe.TunnelCut])
}

// longLived fills in what a backend has of tunnels and streams, and what its drain
// has ended of them.
func (f *front) longLived(out *admin.Backend, b *balance.Backend) {
	out.Tunnels, out.Streams = int64(f.tunnels.On(b)), int64(f.tunnels.Streams(b))
	if out.Drain == nil {
		return
	}
	n := f.tunnels.Drained(b)
	if n != (l7.Drained{}) {
		out.Drain.Ended = &admin.DrainEnded{
			Closed: n.Tunnels[observe.TunnelClosed], Unanswered: n.Tunnels[observe.TunnelUnanswered], Torn: n.Tunnels[observe.TunnelCut],
			Streams: n.Streams, Sessions: n.Sessions,
		}
	}
}

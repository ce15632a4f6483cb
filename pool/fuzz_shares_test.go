// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// shares draws the settings of slow start, overload and outliers, with windows
// and volumes so small that a play gets to them.
func (g *game) shares(cfg *Config) {
	g.calm = g.next(4) == 0
	if g.next(3) != 0 {
		cfg.SlowStart = SlowStart{Window: time.Duration(1+g.next(8)) * time.Second, From: float64(g.next(6)) / 5}
		cfg.SlowStart.PoolRamp = time.Duration(g.next(3)) * 2 * time.Second
	}
	if g.calm || g.next(3) != 0 {
		cfg.Overload = health.Overload{
			Enabled: true, RetryAfter503: g.next(4) != 0, TooMany429: g.next(2) == 0, ORCA: g.next(2) == 0,
			GRPCExhausted: true, QueueFull: g.next(2) == 0, Floor: float64(g.next(6)) / 5,
		}
	}
	cfg.Passive.SuccessRate = health.SuccessRate{Off: g.next(3) == 0, MinRequests: 5 + g.next(20), MinBackends: 1 + g.next(4)}
	cfg.Passive.Latency = health.Latency{Off: g.calm || g.next(3) == 0, Factor: 2, Above: 10 * time.Millisecond, MinRequests: 5 + g.next(20)}
	if g.calm {
		g.still = true
		cfg.Limits.PoolRequests, cfg.Panic.Then = 0, ThenServe
	}
}

// burst plays many equal answers of one backend.
func (g *game) burst() {
	if g.p.cfg.Limits.PoolRequests > 0 || len(g.p.core.order) == 0 {
		return
	}
	m := g.p.core.order[g.next(len(g.p.core.order))]
	o := g.outcome()
	for i := range 5 + g.next(40) {
		if !m.b.Reserve() {
			return
		}
		l := &Lease{}
		l.take(g.p, m, m.b, g.now)
		o.Client = uint64(1 + i%2)
		l.Done(o)
	}
}

// checkShares is for what grants shares little by little.
func (g *game) checkShares() {
	p, c := g.p, &g.p.core
	if len(c.moved) > 0 {
		g.t.Errorf("%d members moved and nobody looked", len(c.moved))
	}
	least := p.cfg.Overload.LeastShare()
	for _, m := range c.order {
		s, h, id := m.core, &m.core.health, m.b.ID()
		if at := m.b.ShareAt(g.now); !(at >= 0 && at <= 1) || at > m.b.Share() {
			g.t.Errorf("%s has share %v of %v now", id, at, m.b.Share())
		}
		// Overload takes what it may, and nobody out.
		base := h.BaseShare()
		switch {
		case base < h.Share() || base > 0 && h.Share() < min(base, least)-1e-9:
			g.t.Errorf("%s has share %v: %v without overload, floor %v", id, h.Share(), base, least)
		case h.State() == health.StateOverloaded && base <= 0:
			g.t.Errorf("%s is overloaded and gets nothing", id)
		case !p.cfg.Overload.Enabled && h.Share() != base:
			g.t.Errorf("%s has lost share to overload, which is off", id)
		case s.pressure.Share() < 1 && !slices.Contains(c.stats.strained, m):
			g.t.Errorf("%s will never recover from overload", id)
		case s.pressure.listed != slices.Contains(c.stats.strained, m):
			g.t.Errorf("%s is on the list of the overloaded, or is not: %v", id, s.pressure.listed)
		case m.mode.Load()&modeSlowAsk != 0 && !slices.Contains(c.stats.slow, m):
			g.t.Errorf("%s is suspected of being slow for ever", id)
		}
		// A slow start is for those who take work, and ends.
		if s.took != (s.class == serving) || s.moved {
			g.t.Errorf("%s takes work: %v, the core thinks %v", id, s.class == serving, s.took)
		}
		r := m.b.Ramp()
		if (r != nil) != (s.timers[timerRamp].pos != 0) || r != nil && (s.class != serving || g.now >= r.Start.Add(r.Window)) {
			g.t.Errorf("%s ramps %v with timer %v, class %d, at %v", id, r, s.timers[timerRamp].pos, s.class, g.now)
		}
		if g.calm && (h.State() == health.StateBroken || h.State() == health.StateNotReady || h.Probation()) {
			g.t.Errorf("%s is %v, and nothing but overload happened (%s)", id, h.State(), h.Why())
		}
	}
	if g.calm && c.alarm.said && c.serving() > 0 {
		g.t.Errorf("panic, and nothing but overload happened: %s", c.alarm.why)
	}
	g.checkGate()
}

// checkGate is for the ramp of the whole pool.
func (g *game) checkGate() {
	p, c := g.p, &g.p.core
	v := p.view.Load()
	admitted := v.admitted(g.now)
	switch {
	case c.gate != nil && (c.serving() == 0 || g.now >= c.gate.Start.Add(c.gate.Window)):
		g.t.Errorf("the pool ramps up with %d serving, to be over at %v, at %v", c.serving(), c.gate.Start.Add(c.gate.Window), g.now)
	case !(admitted >= 0 && admitted <= 1):
		g.t.Errorf("%v of the requests are admitted", admitted)
	case admitted < 1 && v.admit >= 1:
		g.t.Errorf("requests do not look, and %v are admitted", admitted)
	case c.gate != nil && !c.dirty && v.plan.gate != c.gate:
		g.t.Error("the pool ramps up, and requests do not know")
	case c.dark && c.serving() > 0:
		g.t.Error("the pool serves, and the core thinks it does not")
	}
	if at := balance.Instant(0); c.gate != nil {
		if at = c.gate.Start.Add(c.gate.Window); !p.hasWake || p.wakeAt > at {
			g.t.Errorf("nobody ends the ramp at %v", at)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"github.com/weirlb/weir/balance"
)

// settle steps the pool until it rests, and collects who was served meanwhile.
func (g *game) settle() {
	for i := 0; ; i++ {
		next, ok := g.p.Advance()
		if len(g.p.inbox) == 0 && g.p.marked.Load() == nil && (!ok || next > g.now) {
			break
		}
		if i == 100 {
			g.t.Fatalf("%v: the pool does not come to rest", g.now)
		}
	}
	still := g.waiting[:0]
	for _, w := range g.waiting {
		select {
		case got := <-w.ready:
			if got == Granted {
				g.held = append(g.held, w.l) // some time ago; who may be picked is checked elsewhere
			}
		default:
			if w.queued {
				still = append(still, w)
			}
		}
	}
	g.waiting = still
}

// check recounts everything that is kept by hand, the slow way.
func (g *game) check() {
	p, c := g.p, &g.p.core
	inFlight := map[*balance.Backend]int64{}
	for _, l := range g.held {
		inFlight[l.Backend()]++
	}
	for b := range g.attached {
		if b.InFlight() != inFlight[b] {
			g.t.Errorf("%s has %d in flight, want %d", b.ID(), b.InFlight(), inFlight[b])
		}
	}
	if p.cfg.Limits.PoolRequests > 0 && p.inFlight.Load() != int64(len(g.held)) {
		g.t.Errorf("the pool has %d in flight, want %d", p.inFlight.Load(), len(g.held))
	}
	outByWork, awaited := 0, 0
	for _, m := range c.order {
		s := m.core
		if now := m.classify(); now != s.class {
			g.t.Errorf("%s is filed as %d, is %d", m.b.ID(), s.class, now)
		}
		_, ejected := s.health.Ejected()
		outByWork += btoi(ejected || s.health.BrokenByFact())
		awaited += btoi(s.round)
		want := s.health.Share()
		if s.floored {
			want = 1
		}
		if d := m.b.Share() - want; d > 1e-6 || d < -1e-6 {
			g.t.Errorf("%s has share %v, want %v", m.b.ID(), m.b.Share(), want)
		}
		if m.b.Unreachable() != s.hasFact || m.b.Suspect() != s.health.Suspect() {
			g.t.Errorf("%s flags unreachable %v suspect %v, the core says %v %v", m.b.ID(), m.b.Unreachable(), m.b.Suspect(), s.hasFact, s.health.Suspect())
		}
		if got := m.b.Owner(); got != m {
			g.t.Errorf("%s does not lead back to its member", m.b.ID())
		}
		if p.cfg.Active.Enabled && !s.probing && s.timers[timerProbe].pos == 0 {
			g.t.Errorf("%s will never be probed again", m.b.ID())
		}
	}
	if outByWork != c.outByWork || awaited != c.awaited {
		g.t.Errorf("counted %d %d, kept %d %d", outByWork, awaited, c.outByWork, c.awaited)
	}
	g.checkTiers()
	g.checkShares()
	if g.still && p.cfg.Active.Enabled && outByWork > p.cfg.Passive.MayEject(len(c.order)) {
		g.t.Errorf("%d of %d are ejected, at most %d may", outByWork, len(c.order), p.cfg.Passive.MayEject(len(c.order)))
	}
	g.checkQueue()
}

// checkQueue looks for a waiter that could have been served.
func (g *game) checkQueue() {
	p := g.p
	if int(p.queue.length.Load()) != len(g.waiting) {
		g.t.Errorf("%d wait, the queue says %d", len(g.waiting), p.queue.length.Load())
	}
	if len(g.waiting) == 0 {
		return
	}
	r := *p.queue.head.r
	r.Now = g.now
	l := &Lease{}
	if got, _ := p.admit(l, &r); got == Granted {
		g.t.Errorf("a request waits, though %s has a slot", l.Backend().ID())
		l.Done(Outcome{Now: g.now, Kind: Canceled})
	}
}

// end gives everything back and looks for leaks.
func (g *game) end() {
	for _, w := range g.waiting {
		g.p.abandon(w)
	}
	g.settle()
	for len(g.held) > 0 {
		g.data = nil
		g.finish(0)
	}
	g.p.Update(nil)
	g.settle()
	for b, state := range g.attached {
		if b.InFlight() != 0 || state != 2 {
			g.t.Errorf("%s: in flight %d, state %d at the end", b.ID(), b.InFlight(), state)
		}
	}
	c := &g.p.core
	if len(c.timers) != 0 || len(c.leaving) != 0 || c.outByWork != 0 || len(c.tiers) != 0 {
		g.t.Errorf("left over: %d timers, %d leaving, %d out, %d tiers", len(c.timers), len(c.leaving), c.outByWork, len(c.tiers))
	}
	g.p.Close()
}

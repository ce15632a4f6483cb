// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// settings is a Config as requests read it: immutable, replaced as a whole.
type settings struct {
	Config
	limited  bool            // there are limits, so requests may wait
	keyed    bool            // equal keys go to equal backends
	learner  balance.Learner // the policy, if it learns from outcomes
	adaptive *adaptive       // the limit that finds itself, or nil
}

// newSettings makes them; was are those until now, or nil.
func newSettings(cfg Config, was *settings) *settings {
	l := &cfg.Limits
	s := &settings{Config: cfg, limited: l.BackendRequests > 0 || l.PoolRequests > 0 || l.Adaptive.Enabled}
	if l.Adaptive.Enabled {
		if was != nil {
			s.adaptive = was.adaptive
		}
		if s.adaptive == nil {
			s.adaptive = newAdaptive(&l.Adaptive)
		}
	}
	if k, ok := cfg.Policy.(balance.Keyed); ok {
		s.keyed = k.Keyed()
	}
	s.learner, _ = cfg.Policy.(balance.Learner)
	return s
}

func usesTotal(p balance.Policy) bool {
	u, ok := p.(balance.TotalUser)
	return ok && u.UsesTotal()
}

// Reconfigure changes the settings of a pool that may be running. Backends keep
// their identity and all that is known of them: health, ages, estimates, slow
// starts under way, what is in flight, the operator's word; the retry budget
// keeps its counts unless its window is another one. A Policy of nil leaves the
// one that is in use with its state; another one is in force after at most
// 100 ms. Name, Instance and First stay as they were. Limits hold for requests
// that come later: what is in flight above them finishes. A Subset or Zone that
// changes is in force with the next Update.
//
// Without active checks what probes had said is forgotten; with them, after they
// were off, backends keep their share until their first probe says otherwise.
// Without passive checks ejections end.
func (p *Pool) Reconfigure(cfg Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	old := p.cfg
	cfg.Name, cfg.Instance, cfg.First = old.Name, old.Instance, old.First
	if cfg.Policy == nil {
		cfg.Policy = old.Policy
	} else {
		p.core.rebuild = true
	}
	if b := p.budget.Load(); old.Retry.window() == cfg.Retry.window() {
		b.allow(&cfg.Retry)
	} else {
		next := &budget{}
		next.follow(b, &cfg.Retry)
		p.budget.Store(next)
	}
	p.publishSettings(cfg)
	p.step(event{kind: evReconfigure, was: &old})
	p.poke()
}

// publishSettings makes cfg what requests go by. The lock of the queue makes one
// change of it for those who find everyone full: a request that met the limits
// of before is never measured by a queue that belongs to the ones after.
func (p *Pool) publishSettings(cfg Config) {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.set.Store(newSettings(cfg, p.set.Load()))
	p.cfg = cfg
	for _, m := range p.core.order {
		m.b.SetLimit(cfg.Limits.BackendRequests)
	}
	for _, m := range p.core.leaving {
		m.b.SetLimit(cfg.Limits.BackendRequests)
	}
}

// reconfigure brings what has been decided under other settings in line.
func (c *core) reconfigure(now balance.Instant, was *Config) {
	for _, m := range c.order {
		c.resettle(now, m, was)
		if !c.cfg.KeepSessions {
			c.endSessions(m)
		}
	}
	if a := c.hot.set.Load().adaptive; a != nil {
		a.resettle(&was.Limits.Adaptive, &c.cfg.Limits.Adaptive)
	}
	c.alarm.stale, c.alarm.together, c.dirty = true, true, true
}

func (c *core) resettle(now balance.Instant, m *member, was *Config) {
	s := m.core
	strained := was.Overload != c.cfg.Overload
	switched := was.Active.Enabled != c.cfg.Active.Enabled || was.Passive.Enabled && !c.cfg.Passive.Enabled
	if strained || switched || was.Panic.Then != c.cfg.Panic.Then {
		c.judge(now, m, func(h *health.Machine) {
			if strained {
				c.forgetPressure(now, m)
			}
			if switched {
				h.Reconfigured(now)
			}
		})
	}
	if !c.cfg.Active.Enabled {
		s.failRun, s.passed = 0, false
		c.timers.stop(m, timerProbe)
		if s.round {
			s.round = false
			c.awaited--
		}
		return
	}
	if t := &s.timers[timerProbe]; !was.Active.Enabled && !s.probing {
		c.timers.set(m, timerProbe, now)
	} else if latest := now.Add(c.cfg.Active.Interval); t.pos != 0 && t.at > latest {
		c.timers.set(m, timerProbe, latest)
	}
}

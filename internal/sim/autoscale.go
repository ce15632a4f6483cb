// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/weirlb/weir/pool"
)

// AutoscalerConfig keeps the utilisation of a group of servers near a target by
// adding and removing servers, as a horizontal pod autoscaler does: wanted =
// ceil(now x utilisation / target), not moved while the quotient is within a
// tenth of 1, and down only to the most that was wanted within Settle.
type AutoscalerConfig struct {
	Name      string // begins the ids of its servers: NAME-1, NAME-2, ...
	Server    ServerConfig
	Balancers []*Balancer // are told by Update
	Start     int         // servers at the beginning, warm; 0 counts as Min
	Min, Max  int         // 0 count as 1 and as no bound
	Target    float64     // slots that are worked on over all slots; 0 counts as 0.6
	Period    time.Duration
	Settle    time.Duration // before it goes down; 0 counts as 5m
	// Drain and Grace are how a server is stopped, see Server.Stop.
	Drain, Grace time.Duration
}

// Autoscaler is one at work.
type Autoscaler struct {
	w       *World
	c       AutoscalerConfig
	made    int
	group   []*Server // booting ones too
	wanted  []want
	busy    map[*Server]time.Duration
	changes int
}

type want struct {
	at time.Duration
	n  int
}

// AddAutoscaler adds its servers and lets it begin. Balancers that it tells keep
// the other backends they have.
func (w *World) AddAutoscaler(c AutoscalerConfig) *Autoscaler {
	c.Min = max(c.Min, 1)
	c.Server.Concurrency = max(c.Server.Concurrency, 1)
	if c.Max <= 0 {
		c.Max = math.MaxInt32
	}
	c.Start = min(max(c.Start, c.Min), c.Max)
	if c.Target <= 0 {
		c.Target = 0.6
	}
	if c.Period <= 0 {
		c.Period = 15 * time.Second
	}
	if c.Settle <= 0 {
		c.Settle = 5 * time.Minute
	}
	a := &Autoscaler{w: w, c: c, busy: map[*Server]time.Duration{}}
	for range c.Start {
		a.group = append(a.group, w.AddServer(a.next()))
	}
	a.tell(a.group...)
	w.Every(c.Period, a.look)
	return a
}

func (a *Autoscaler) next() ServerConfig {
	a.made++
	c := a.c.Server
	c.ID = a.c.Name + "-" + strconv.Itoa(a.made)
	return c
}

// Servers returns how many it has, those that boot included.
func (a *Autoscaler) Servers() int { return len(a.group) }

// Changes returns how often it has changed their number.
func (a *Autoscaler) Changes() int { return a.changes }

// tell adds servers to the balancers.
func (a *Autoscaler) tell(added ...*Server) {
	for _, b := range a.c.Balancers {
		specs := slices.Clone(b.Specs())
		for _, s := range added {
			specs = append(specs, s.Spec())
		}
		b.Update(specs)
	}
}

// look measures and decides.
func (a *Autoscaler) look() {
	slots, busy := 0.0, 0.0
	for _, s := range a.group {
		now := s.Figures().Busy
		if s.Up() {
			slots += float64(s.cfg.Concurrency) * a.c.Period.Seconds()
			busy += (now - a.busy[s]).Seconds()
		}
		a.busy[s] = now
	}
	n := len(a.group)
	to := n
	if slots > 0 {
		// Those that boot are counted as idle, lest they be ordered twice.
		up := slots / (float64(a.c.Server.Concurrency) * a.c.Period.Seconds())
		if by := busy / slots / a.c.Target; by > 1.1 || by < 0.9 {
			to = int(math.Ceil(up*by - 1e-9))
			if by > 1 {
				to = max(to, n)
			}
		}
	}
	to = min(max(to, a.c.Min), a.c.Max)
	now := a.w.Now()
	a.wanted = slices.DeleteFunc(append(a.wanted, want{now, to}), func(v want) bool { return v.at < now-a.c.Settle })
	if to < n {
		for _, v := range a.wanted {
			to = max(to, v.n)
		}
		to = min(to, n)
	}
	if to != n {
		a.changes++
	}
	for len(a.group) < to {
		var s *Server
		s = a.w.AddColdServer(a.next(), func() { a.tell(s) })
		a.group = append(a.group, s)
	}
	for len(a.group) > to {
		s := a.group[len(a.group)-1]
		a.group = a.group[:len(a.group)-1]
		a.remove(s)
	}
}

// remove takes the newest server out: the balancers are told, then it ends.
func (a *Autoscaler) remove(s *Server) {
	delete(a.busy, s)
	if !s.Up() {
		s.Kill() // it never took work
		return
	}
	for _, b := range a.c.Balancers {
		b.Update(slices.DeleteFunc(slices.Clone(b.Specs()), func(p pool.Spec) bool { return p.ID == s.ID() }))
	}
	s.Stop(a.c.Drain, a.c.Grace, nil)
}

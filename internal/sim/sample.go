// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/health"
)

// Sampler writes down figures of servers, and of what one balancer thinks of them,
// every so often.
type Sampler struct {
	Step   time.Duration
	Points []Sample // Points[i] was taken at From + (i+1) x Step
	From   time.Duration
	w      *World
	b      *Balancer
	last   map[*Server]ServerFigures
	stop   func()
}

// Sample is the fleet at one time. The slices are by World.Servers, as many as
// there were then.
type Sample struct {
	Inside   []int     // requests inside a server, waiting ones too
	Busy     []float64 // part of the slots that worked, since the sample before
	Answered []float64 // answers per second, since the sample before
	InFlight []int64   // what the balancer counts; 0 for backends that it does not have
	Share    []float64 // what the balancer grants; 0 for backends that it does not have
	State    []health.State
	Panic    bool
	Serving  int
}

// AddSampler begins now. b may be nil: then nobody's view is written down.
func (w *World) AddSampler(step time.Duration, b *Balancer) *Sampler {
	s := &Sampler{Step: step, From: w.Now(), w: w, b: b, last: map[*Server]ServerFigures{}}
	s.stop = w.Every(step, s.take)
	return s
}

// Stop ends it.
func (s *Sampler) Stop() { s.stop() }

func (s *Sampler) take() {
	n := len(s.w.servers)
	p := Sample{
		Inside: make([]int, n), Busy: make([]float64, n), Answered: make([]float64, n),
		InFlight: make([]int64, n), Share: make([]float64, n), State: make([]health.State, n),
	}
	at := make(map[string]int, n)
	for i, server := range s.w.servers {
		at[server.ID()] = i
		f, old := server.Figures(), s.last[server]
		s.last[server] = f
		running, waiting := server.Busy()
		p.Inside[i] = running + waiting
		p.Busy[i] = float64(f.Busy-old.Busy) / float64(s.Step) / float64(server.cfg.Concurrency)
		p.Answered[i] = float64(f.Answered-old.Answered) / s.Step.Seconds()
	}
	if s.b != nil {
		snap := s.b.pool.Snapshot()
		p.Panic, p.Serving = snap.Panic, snap.Serving
		for i := range snap.Backends {
			b := &snap.Backends[i]
			j, ok := at[b.URL]
			if !ok || b.Removed {
				continue
			}
			p.InFlight[j], p.Share[j], p.State[j] = b.InFlight, b.Share, b.Health
		}
	}
	s.Points = append(s.Points, p)
}

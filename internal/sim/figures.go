// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"

	"github.com/weirlb/weir/balance"
)

// figures is what a server counts.
type figures struct {
	arrived, answered, errors, refused, abandoned, wasted uint64

	since  balance.Instant // the integrals are up to then
	busy   float64         // slot-nanoseconds worked on
	inside float64         // request-nanoseconds inside, waiting ones too
	most   int             // requests inside at once
	recent float64         // requests inside by concurrency, with a memory of loadMemory
}

// loadMemory is the time constant of a load report.
const loadMemory = time.Second

// note brings the integrals up to now; it is called before every change.
func (f *figures) note(s *Server) {
	d := float64(s.w.now.Sub(f.since))
	running, inside := len(s.running), len(s.running)+s.waiting
	if d > 0 {
		f.busy += d * float64(running)
		f.inside += d * float64(inside)
		fade := math.Exp(-d / float64(loadMemory))
		f.recent = f.recent*fade + float64(inside)/float64(s.cfg.Concurrency)*(1-fade)
		f.since = s.w.now
	}
	f.most = max(f.most, inside)
}

// load is the server's own report: requests inside over concurrency, smoothed
// over a second. 1 is capacity, more is a queue.
func (f *figures) load(s *Server) float64 {
	f.note(s)
	return f.recent
}

// ServerFigures are a server's counts since its coming.
type ServerFigures struct {
	Arrived   uint64        // requests that reached it or were turned away by it
	Answered  uint64        // with any status, by work or by a fault
	Errors    uint64        // of them 5xx
	Refused   uint64        // 503 because its queue was full
	Abandoned uint64        // whose caller went away
	Wasted    uint64        // of them, worked on to the end for nobody
	Busy      time.Duration // worked, summed over slots
	Inside    time.Duration // spent inside by requests, waiting included
	Most      int           // inside at once
}

// Figures returns the counts up to now.
func (s *Server) Figures() ServerFigures {
	f := &s.figures
	f.note(s)
	f.most = max(f.most, len(s.running)+s.waiting)
	return ServerFigures{
		Arrived: f.arrived, Answered: f.answered, Errors: f.errors, Refused: f.refused, Abandoned: f.abandoned, Wasted: f.wasted,
		Busy: time.Duration(f.busy), Inside: time.Duration(f.inside), Most: f.most,
	}
}

// Load returns the load that the server would report now: requests inside over
// concurrency, smoothed over a second; 1 is capacity.
func (s *Server) Load() float64 { return s.figures.load(s) }

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/pool"
)

// FaultMode is how a server fails.
type FaultMode uint8

// The modes. Up to Drop no byte of a request reaches the server.
const (
	NoFault     FaultMode = iota
	Refuse                // connections are refused
	Unreachable           // no route to it
	Drop                  // connections time out
	Silent                // it accepts and says nothing
	Answer                // it answers Status after After, without doing the work
	Cut                   // it resets the connection after After
	Fail                  // it does the work and answers 500
)

// Fault is how a server fails. The zero value is none.
type Fault struct {
	Mode   FaultMode
	Part   float64       // of the requests that it strikes; 0 and 1: all
	Status int           // of Answer; 0 counts as 500
	After  time.Duration // of Answer and Cut
	// Checks says that an HTTP readiness check meets it too: Silent and Cut get
	// no answer, Answer and Fail say not ready. What concerns connections meets
	// every check unless Part spares some requests.
	Checks bool
}

// SetFault makes the server fail, or ends that; what is under way goes on.
func (s *Server) SetFault(f Fault) {
	if f.Status == 0 {
		f.Status = 500
	}
	s.fault = f
}

// Fault returns the fault in force.
func (s *Server) Fault() Fault { return s.fault }

// SetReady sets what the readiness check says.
func (s *Server) SetReady(ready bool) { s.unready = !ready }

// SetSpeed changes the speed, also of what is under way; 0 stops it.
func (s *Server) SetSpeed(v float64) {
	s.speed = max(v, 0)
	s.respeed()
}

// Speed returns the base speed, without warmth and pauses.
func (s *Server) Speed() float64 { return s.speed }

// SetErrors changes the part of the answers that are 500.
func (s *Server) SetErrors(part float64) { s.cfg.Errors = min(max(part, 0), 1) }

// Pause stops everything for a time, as SIGSTOP does: connections are accepted,
// nothing is answered, HTTP checks neither.
func (s *Server) Pause(d time.Duration) {
	s.pauses++
	s.respeed()
	epoch := s.epoch
	s.w.After(d, func() {
		if s.epoch == epoch && s.pauses > 0 {
			s.pauses--
			s.respeed()
		}
	})
}

// Up reports whether it accepts connections.
func (s *Server) Up() bool { return s.up }

// Down reports that it was stopped or has crashed.
func (s *Server) Down() bool { return s.down }

// Busy returns how many requests it works on, and how many wait inside.
func (s *Server) Busy() (running, waiting int) { return len(s.running), s.waiting }

// Connections returns how many held connections it has.
func (s *Server) Connections() int { return len(s.held) }

// Kill is a crash: what is under way is reset, connections are refused until the
// next Start.
func (s *Server) Kill() {
	if s.down {
		s.w.agenda.cancel(&s.boot)
		return
	}
	s.figures.note(s)
	s.up, s.down, s.leaving, s.whenDown = false, true, false, nil
	s.epoch++
	s.pauses, s.gcOn = 0, false
	s.w.agenda.cancel(&s.gc)
	s.w.agenda.cancel(&s.ramp)
	jobs := s.running
	s.running = nil
	for j := s.queue.pop(); j != nil; j = s.queue.pop() {
		jobs = append(jobs, j)
	}
	s.waiting = 0
	held := s.held
	s.held = nil
	for _, j := range jobs {
		if j.asked {
			s.cfg.Then.cancel(&j.out)
		}
		c := j.call
		s.w.freeJob(j)
		if c != nil {
			c.job = nil
			s.answer(c, reply{kind: pool.Reset})
		}
	}
	for _, c := range held {
		s.answer(c, reply{kind: pool.Reset})
	}
}

// Start starts a server that is down: it accepts after Boot and is cold then.
// ready, if not nil, is called at that time.
func (s *Server) Start(ready func()) {
	if !s.down {
		return
	}
	s.whenUp = ready
	if s.cfg.Boot <= 0 {
		s.accept()
		return
	}
	s.w.agenda.plan(&s.boot, s.w.now.Add(s.cfg.Boot))
}

func (s *Server) accept() {
	s.figures.note(s)
	s.up, s.down, s.unready, s.leaving = true, false, false, false
	s.started, s.served = s.w.now, 0
	s.nextRamp()
	s.nextPause()
	s.respeed()
	if f := s.whenUp; f != nil {
		s.whenUp = nil
		f()
	}
}

// Stop is a termination by the book: the readiness check fails at once; after
// delay no connection is accepted any more; when nothing is under way, or after
// grace (counted from now) with what is left reset, it is down and then is called.
// Without a delay it is a server that does not announce its end.
func (s *Server) Stop(delay, grace time.Duration, then func()) {
	if s.down {
		return
	}
	s.unready = true
	s.whenDown = then
	epoch := s.epoch
	s.w.After(delay, func() {
		if s.epoch == epoch && !s.down {
			s.up, s.leaving = false, true
			s.maybeEmpty()
		}
	})
	if grace > 0 {
		s.w.After(grace, func() {
			if s.epoch == epoch && !s.down {
				f := s.whenDown
				s.Kill()
				if f != nil {
					f()
				}
			}
		})
	}
}

// maybeEmpty ends the process when it has stopped accepting and is idle.
func (s *Server) maybeEmpty() {
	if !s.leaving || len(s.running) > 0 || s.waiting > 0 || len(s.held) > 0 {
		return
	}
	f := s.whenDown
	s.Kill()
	if f != nil {
		f()
	}
}

// coldSteps is in how many steps the speed of a cold server rises.
const coldSteps = 40

// warmth is the factor by which a cold server is slower: in a straight line from
// ColdSpeed to 1, by time or by answers.
func (s *Server) warmth() float64 {
	part := 1.0
	switch {
	case s.cfg.ColdRequests > 0:
		part = float64(s.served) / float64(s.cfg.ColdRequests)
	case s.cfg.Cold > 0:
		part = float64(s.w.now.Sub(s.started)) / float64(s.cfg.Cold)
	}
	return s.cfg.ColdSpeed + (1-s.cfg.ColdSpeed)*min(max(part, 0), 1)
}

func (s *Server) nextRamp() {
	if s.cfg.Cold > 0 && s.cfg.ColdRequests == 0 && s.w.now.Sub(s.started) < s.cfg.Cold {
		s.w.agenda.plan(&s.ramp, s.w.now.Add(max(s.cfg.Cold/coldSteps, 1)))
	}
}

// later answers without work, or cuts, after a time.
func (s *Server) later(c *call, f *Fault) {
	j := s.w.newJob()
	j.s, j.call = s, c
	j.quick = true
	j.kind, j.status = pool.Success, f.Status
	if f.Mode == Cut {
		j.kind = pool.Reset
	}
	c.job = j
	s.w.agenda.plan(&j.timer, s.w.now.Add(f.After))
}

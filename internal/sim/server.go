// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// ServerConfig is how a server behaves. The zero value serves one request at a
// time, in no time.
type ServerConfig struct {
	ID       string // unique among servers and balancers; also its address
	Zone     string
	Weight   uint32 // as configured in the balancers; 0 counts as 1
	Priority uint8
	Backup   bool

	Service     Dist          // work of a request of size 1 at speed 1; nil: none
	Concurrency int           // requests worked on at once; 0 counts as 1
	Queue       int           // requests that wait inside; 0: no bound, below 0: none wait
	Speed       float64       // 0 counts as 1; 0.3 takes 3.3 times as long
	RetryAfter  time.Duration // said in the 503 of a full queue; 0: nothing is said
	Errors      float64       // part of the answers that are 500, after the work

	Cold         time.Duration // how long it warms up after a start; 0: warm at once
	ColdSpeed    float64       // times Speed at the beginning of that; 0 counts as 0.2
	ColdRequests int           // it warms up by so many answers instead of by time
	Boot         time.Duration // from a start until it accepts

	PauseEvery Dist // from one stop of everything to the next (garbage collection); nil: never
	PauseFor   Dist // how long each lasts

	Reports     bool          // answers and probes carry a load report
	ProbeQueues bool          // probes wait and are worked on as requests are, instead of apart
	ProbeTime   time.Duration // work of a probe
	Cancels     bool          // work is given up when the caller is gone, instead of done for nobody

	// Then is asked after the server's own work and before the answer; its answer
	// is the server's. The slot is held meanwhile.
	Then *Balancer
}

// Server is one simulated server.
type Server struct {
	w   *World
	cfg ServerConfig

	up       bool // accepts connections
	leaving  bool // has stopped accepting, finishes
	unready  bool // its readiness check says so
	down     bool // stopped or crashed
	started  balance.Instant
	epoch    uint32 // of its process: kept connections die with it
	fault    Fault
	speed    float64 // base, as configured or set
	inForce  float64 // warmth and pauses included, since the last respeed
	pauses   int
	ramp     timer
	boot     timer
	gc       timer
	gcStream *Stream
	gcOn     bool
	whenUp   func()
	whenDown func()

	running []*job
	queue   fifo
	waiting int // in queue, those given up left out
	held    []*call
	served  int // since the start of the process
	figures figures
}

// AddServer adds a server that is up and warm. It panics when the id is taken:
// that is a mistake in the scenario.
func (w *World) AddServer(c ServerConfig) *Server {
	s := w.newServer(c)
	s.up = true
	s.started = w.now.Add(-max(c.Cold, 0)) // warm
	s.served = c.ColdRequests
	s.inForce = s.pace()
	s.nextPause()
	return s
}

// AddColdServer adds a server that has just been started: it accepts after Boot
// and is cold then. ready, if not nil, is called when it accepts.
func (w *World) AddColdServer(c ServerConfig, ready func()) *Server {
	s := w.newServer(c)
	s.down = true
	s.Start(ready)
	return s
}

func (w *World) newServer(c ServerConfig) *Server {
	if c.Service == nil {
		c.Service = Fixed(0)
	}
	if c.Concurrency <= 0 {
		c.Concurrency = 1
	}
	if c.Weight == 0 {
		c.Weight = 1
	}
	if c.Speed <= 0 {
		c.Speed = 1
	}
	if c.ColdSpeed <= 0 {
		c.ColdSpeed = 0.2
	}
	s := &Server{w: w, cfg: c, speed: c.Speed}
	s.ramp.who, s.boot.who, s.gc.who = s, s, s
	s.ramp.code, s.boot.code, s.gc.code = serverRamp, serverBoot, serverGC
	s.figures.since = w.now
	w.register(c.ID, s)
	w.servers = append(w.servers, s)
	return s
}

func (w *World) register(id string, t target) {
	if w.targets[id] != nil {
		panic("sim: two targets are called " + id)
	}
	w.targets[id] = t
}

// Config returns how it was made, defaults filled in.
func (s *Server) Config() ServerConfig { return s.cfg }

// ID returns the server's name.
func (s *Server) ID() string { return s.cfg.ID }

// Spec returns the server as the balancers' configuration names it.
func (s *Server) Spec() pool.Spec {
	return pool.Spec{ID: s.cfg.ID, URL: s.cfg.ID, Weight: s.cfg.Weight, Zone: s.cfg.Zone, Priority: s.cfg.Priority, Backup: s.cfg.Backup}
}

// What a server's own events are.
const (
	serverRamp = iota
	serverBoot
	serverGC
	serverGCOver
)

func (s *Server) fire(code uint8) {
	switch code {
	case serverRamp:
		s.respeed()
		s.nextRamp()
	case serverBoot:
		s.accept()
	case serverGC:
		s.gcOn = true
		s.gc.code = serverGCOver
		s.pauses++
		s.respeed()
		s.w.agenda.plan(&s.gc, s.w.now.Add(max(s.cfg.PauseFor.Sample(s.gcStream), 1)))
	case serverGCOver:
		s.gcOn = false
		s.pauses--
		s.respeed()
		s.nextPause()
	}
}

func (s *Server) nextPause() {
	if s.cfg.PauseEvery == nil || s.cfg.PauseFor == nil {
		return
	}
	if s.gcStream == nil {
		s.gcStream = s.w.Stream("pauses " + s.cfg.ID)
	}
	s.gc.code = serverGC
	s.w.agenda.plan(&s.gc, s.w.now.Add(max(s.cfg.PauseEvery.Sample(s.gcStream), 1)))
}

// serve takes a call from a balancer or a client.
func (s *Server) serve(c *call) {
	s.figures.arrived++
	f := &s.fault
	hit := f.Mode != NoFault && s.hit(f, c)
	switch {
	case hit && f.Mode == Drop:
		return // the caller's time runs out
	case hit && f.Mode == Unreachable:
		s.answer(c, reply{kind: pool.ConnectUnreachable})
		return
	case !s.up || hit && f.Mode == Refuse:
		s.answer(c, reply{kind: pool.ConnectRefused})
		return
	}
	c.sent = true
	if a, ok := c.caller.(accepter); ok {
		a.accepted(c)
	}
	if hit {
		switch f.Mode {
		case Silent:
			return
		case Answer, Cut:
			s.later(c, f)
			return
		case NoFault, Refuse, Unreachable, Drop, Fail:
		}
	}
	if c.hold {
		s.held = append(s.held, c)
		return
	}
	if len(s.running) >= s.cfg.Concurrency && !s.roomToWait() {
		s.figures.refused++
		s.answer(c, reply{kind: pool.Success, status: 503, retryAfter: s.cfg.RetryAfter > 0, retryFor: s.cfg.RetryAfter})
		return
	}
	j := s.w.newJob()
	r := &s.w.workDice
	r.state = mix(c.rnd ^ 0x5e47 + uint64(c.try)*gamma)
	j.s, j.call = s, c
	work := s.cfg.Service.Sample(r)
	if c.work > 0 {
		work = c.work
	}
	j.left = float64(work) * c.size
	j.fails = hit && f.Mode == Fail || s.cfg.Errors > 0 && r.Float64() < s.cfg.Errors
	c.job = j
	s.admit(j)
}

// serveOpen takes a request on a connection that stands: a server that has
// stopped accepting still answers it.
func (s *Server) serveOpen(c *call) {
	up := s.up
	s.up = !s.down
	s.serve(c)
	s.up = up && !s.down
}

// hit decides by the request's own number whether a fault strikes it.
func (s *Server) hit(f *Fault, c *call) bool {
	if f.Part <= 0 || f.Part >= 1 {
		return true
	}
	r := Stream{mix(c.rnd ^ 0xfa17 + uint64(c.try)*gamma)}
	return r.Float64() < f.Part
}

func (s *Server) roomToWait() bool {
	return s.cfg.Queue == 0 || s.cfg.Queue > 0 && s.waiting < s.cfg.Queue
}

// answer ends a call.
func (s *Server) answer(c *call, r reply) {
	r.server = s
	if s.cfg.Reports && r.kind == pool.Success {
		r.load, r.hasLoad = s.figures.load(s), true
	}
	c.caller.answered(c, r)
}

// cancel is the caller's word that it waits no longer.
func (s *Server) cancel(c *call) {
	if c.hold {
		for i, h := range s.held {
			if h == c {
				s.held = append(s.held[:i], s.held[i+1:]...)
				s.maybeEmpty()
				return
			}
		}
	}
	j := c.job
	if j == nil {
		return
	}
	j.call, c.job = nil, nil
	s.figures.abandoned++
	if !s.cfg.Cancels || j.quick {
		return
	}
	if j.asked {
		s.cfg.Then.cancel(&j.out)
	}
	if j.at < 0 {
		s.waiting-- // it is skipped when its turn comes
		j.dropped = true
		return
	}
	s.figures.note(s)
	s.leave(j)
	s.w.freeJob(j)
	s.next()
}

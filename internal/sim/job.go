// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

// job is one piece of work inside a server.
type job struct {
	timer
	s       *Server
	call    *call           // whose it is; nil: a probe's, or nobody waits for it
	probed  func(r *Server) // a probe's
	asked   bool            // the server's own question to Then is under way
	out     call            // that question
	left    float64         // nanoseconds of work at speed 1
	since   balance.Instant // left is of then
	at      int             // in Server.running; -1: it waits
	fails   bool            // its answer is 500
	dropped bool            // given up while it waited
	quick   bool            // answered without work and without a slot, by:
	kind    pool.OutcomeKind
	status  int
}

func (w *World) newJob() *job {
	if n := len(w.spareJobs); n > 0 {
		j := w.spareJobs[n-1]
		w.spareJobs = w.spareJobs[:n-1]
		return j
	}
	j := &job{}
	j.who = j
	return j
}

func (w *World) freeJob(j *job) {
	w.agenda.cancel(&j.timer)
	*j = job{timer: timer{who: j}}
	w.spareJobs = append(w.spareJobs, j)
}

// fifo is a queue of jobs.
type fifo struct {
	jobs []*job
	head int
}

func (q *fifo) push(j *job) { q.jobs = append(q.jobs, j) }

func (q *fifo) pop() *job {
	if q.head == len(q.jobs) {
		q.jobs, q.head = q.jobs[:0], 0
		return nil
	}
	j := q.jobs[q.head]
	q.jobs[q.head] = nil
	q.head++
	if q.head > 64 && q.head > len(q.jobs)/2 {
		n := copy(q.jobs, q.jobs[q.head:])
		clear(q.jobs[n:])
		q.jobs, q.head = q.jobs[:n], 0
	}
	return j
}

// admit begins a job or lets it wait.
func (s *Server) admit(j *job) {
	s.figures.note(s)
	if len(s.running) < s.cfg.Concurrency {
		s.begin(j)
		return
	}
	j.at = -1
	s.waiting++
	s.queue.push(j)
}

func (s *Server) begin(j *job) {
	j.at = len(s.running)
	s.running = append(s.running, j)
	j.since = s.w.now
	s.time(j, s.inForce)
}

// pace is the speed now; respeed puts it into force.
func (s *Server) pace() float64 {
	if s.pauses > 0 {
		return 0
	}
	return s.speed * s.warmth()
}

// time plans the end of a job's work.
func (s *Server) time(j *job, pace float64) {
	if j.asked {
		return
	}
	if pace <= 0 {
		s.w.agenda.cancel(&j.timer)
		return
	}
	s.w.agenda.plan(&j.timer, s.w.now.Add(scaled(time.Duration(1), j.left/pace)))
	j.since = s.w.now
}

// respeed applies a change of speed to what is under way.
func (s *Server) respeed() {
	s.figures.note(s)
	pace := s.pace()
	if pace == s.inForce {
		return
	}
	for _, j := range s.running {
		if !j.asked {
			j.left = max(j.left-float64(s.w.now.Sub(j.since))*s.inForce, 0)
			j.since = s.w.now
		}
		s.time(j, pace)
	}
	s.inForce = pace
}

// fire is the end of the work.
func (j *job) fire(uint8) {
	s := j.s
	if j.quick {
		c, r := j.call, reply{kind: j.kind, status: j.status}
		s.w.freeJob(j)
		if c != nil {
			s.figures.answered++
			s.figures.errors++
			c.job = nil
			s.answer(c, r)
		}
		return
	}
	if t := s.cfg.Then; t != nil && j.call != nil && !j.fails {
		j.asked = true
		c := j.call
		j.out = call{caller: j, to: t, began: s.w.now, rnd: mix(c.rnd ^ 0x7e4), key: c.key, hasKey: c.hasKey, client: c.client, size: c.size, unsafe: c.unsafe}
		t.serve(&j.out)
		return
	}
	j.end(reply{kind: pool.Success, status: 200})
}

// answered is the answer to the question to Then.
func (j *job) answered(_ *call, r reply) {
	if r.failed() && r.kind != pool.Success {
		r = reply{kind: pool.Success, status: 502}
	}
	j.end(reply{kind: pool.Success, status: r.status, retryAfter: r.retryAfter, retryFor: r.retryFor, noRetry: r.noRetry})
}

// end takes the job off its server and answers.
func (j *job) end(r reply) {
	s, c := j.s, j.call
	if j.fails {
		r.status = 500
	}
	s.figures.note(s)
	s.leave(j)
	s.served++
	if s.cfg.ColdRequests > 0 && s.served <= s.cfg.ColdRequests {
		s.respeed()
	}
	probed := j.probed
	s.w.freeJob(j)
	switch {
	case probed != nil:
		probed(s)
	case c == nil:
		s.figures.wasted++
	default:
		s.figures.answered++
		if r.status >= 500 {
			s.figures.errors++
		}
		c.job = nil
		s.answer(c, r)
	}
	s.next()
}

// leave takes a job out of those under way.
func (s *Server) leave(j *job) {
	last := len(s.running) - 1
	s.running[j.at] = s.running[last]
	s.running[j.at].at = j.at
	s.running[last] = nil
	s.running = s.running[:last]
}

// next begins what waits, or ends a drain.
func (s *Server) next() {
	for len(s.running) < s.cfg.Concurrency {
		j := s.queue.pop()
		if j == nil {
			break
		}
		if j.dropped {
			s.w.freeJob(j)
			continue
		}
		s.figures.note(s)
		s.waiting--
		s.begin(j)
	}
	s.maybeEmpty()
}

// probe is what a balancer's check meets.
func (s *Server) probe(http bool, done func(outcome health.ProbeOutcome, cause health.Cause, status int)) {
	f := &s.fault
	whole := f.Part <= 0 || f.Part >= 1
	switch {
	case f.Mode == Drop && whole:
		return
	case f.Mode == Unreachable && whole:
		done(health.NoAnswer, health.CauseNoRoute, 0)
		return
	case !s.up || f.Mode == Refuse && whole:
		done(health.NoAnswer, health.CauseRefused, 0)
		return
	case !http:
		done(health.Pass, health.CauseNone, 0) // the kernel accepts, whatever the process does
		return
	case f.Checks && f.Mode == Silent:
		return
	case f.Checks && f.Mode == Cut:
		done(health.NoAnswer, health.CauseReset, 0)
		return
	}
	word := func(s *Server) {
		if s.unready || s.fault.Checks && (s.fault.Mode == Answer || s.fault.Mode == Fail) {
			done(health.NotReady, health.CauseStatus, 503)
			return
		}
		done(health.Pass, health.CauseNone, 200)
	}
	if !s.cfg.ProbeQueues {
		if s.pauses == 0 {
			word(s) // a stopped process says nothing
		}
		return
	}
	if len(s.running) >= s.cfg.Concurrency && !s.roomToWait() {
		done(health.NotReady, health.CauseStatus, 503)
		return
	}
	j := s.w.newJob()
	j.s, j.probed, j.left = s, word, float64(s.cfg.ProbeTime)
	s.admit(j)
}

// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// sharing lets pools that ask the same of the same backend do so with one probe.
// An entry is no more than the last answer and who waits for the next one, so
// that pools come, go and change their checks without being told of it here.
type sharing struct {
	// with hands a result to one who waits: one that panics is not to keep the others
	// from hearing. nil: nothing is between.
	with func(done func(health.ProbeResult), r health.ProbeResult)

	mu      sync.Mutex // guards what follows
	entries map[string]*shared
	sweepAt int
}

type shared struct {
	running bool
	waiters []func(health.ProbeResult)
	passed  bool
	last    health.ProbeResult // when passed
}

const (
	sharedKept  = time.Minute // an answer this old is nobody's any more
	sharedSweep = 64          // entries below which nothing is swept
)

// join serves a probe by another one: one that is under way, or one that passed
// and was sent no longer than Target.Within ago. Otherwise it returns the done to
// call instead, which also tells those that join meanwhile.
func (s *sharing) join(t *Target, now balance.Instant, done func(health.ProbeResult)) (instead func(health.ProbeResult)) {
	s.mu.Lock()
	e := s.entries[t.Key]
	if e == nil {
		e = &shared{}
		s.addLocked(now, t.Key, e)
	}
	switch {
	case e.running:
		e.waiters = append(e.waiters, done)
		s.mu.Unlock()
		return nil
	case e.passed && t.Within > 0 && now.Sub(e.last.Sent) <= t.Within:
		r := e.last
		s.mu.Unlock()
		r.At, r.Shared = now, true
		s.hand(done, r)
		return nil
	}
	e.running = true
	s.mu.Unlock()
	return func(r health.ProbeResult) {
		s.mu.Lock()
		waiters := e.waiters
		e.running, e.waiters = false, nil
		if e.passed = r.Outcome == health.Pass && !r.Retry; e.passed {
			e.last = r
		}
		s.mu.Unlock()
		s.hand(done, r)
		r.Shared = true
		for _, w := range waiters {
			s.hand(w, r)
		}
	}
}

func (s *sharing) hand(done func(health.ProbeResult), r health.ProbeResult) {
	if s.with == nil {
		done(r)
		return
	}
	s.with(done, r)
}

// addLocked adds an entry, and drops those that nobody has asked for lately once
// there are twice as many as were left the last time.
func (s *sharing) addLocked(now balance.Instant, key string, e *shared) {
	if s.entries == nil {
		s.entries, s.sweepAt = map[string]*shared{}, sharedSweep
	}
	if len(s.entries) >= s.sweepAt {
		for k, old := range s.entries {
			if !old.running && (!old.passed || now.Sub(old.last.Sent) > sharedKept) {
				delete(s.entries, k)
			}
		}
		s.sweepAt = max(sharedSweep, 2*len(s.entries))
	}
	s.entries[key] = e
}

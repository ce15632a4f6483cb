// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/observe"
)

const (
	// TunnelWait is how long the peers of a tunnel that weir ends have to answer
	// its Close frame, where nothing hurries.
	TunnelWait = 2 * time.Second
	// TunnelHurry is how long they have where something does: enough for a Close
	// frame to leave, and for near peers to answer.
	TunnelHurry = 250 * time.Millisecond
)

// LongLived is what lives as long as its peers want: a tunnel, a stream of events
// or messages, or a session of package l4. It is comparable, and safe for
// concurrent use.
type LongLived interface {
	Backend() *balance.Backend
	Since() balance.Instant
	Facts() observe.LongLived
	// End asks it to end, and allows its peers so long to answer where they are
	// told first. It does not wait.
	End(why observe.TunnelCause, wait time.Duration)
}

// Tunnels are the open tunnels of a process, its streams and its sessions, so that
// they can be counted and ended. Make it with NewTunnels; it is safe for concurrent use.
type Tunnels struct {
	mu   sync.Mutex // guards the rest
	on   map[*balance.Backend]*tunnelsOn
	open int                 // those that were told to end included
	over observe.TunnelCause // every one that opens is ended for this; TunnelByPeer: none is
	wait time.Duration       // and has so long
	cut  bool                // Cut was called
	none chan struct{}       // closed when the last is gone; nil: nobody waits

	ended   [observe.TunnelCauses]TunnelsEnded
	streams [observe.TunnelCauses]int64 // ended
	drains  map[*balance.Backend]*Drained
}

// TunnelsEnded counts tunnels that weir ended, by how.
type TunnelsEnded [observe.TunnelOutcomes]int64

// Drained is what the drain of a backend has ended of what would not have ended by
// itself.
type Drained struct {
	Tunnels  TunnelsEnded
	Streams  int64
	Sessions int64
}

// tunnelsOn are those of one backend.
type tunnelsOn struct {
	all    map[LongLived]struct{}
	flows  int                    // of all, streams
	untold map[LongLived]struct{} // of all, those that were not told to end
}

// NewTunnels returns a registry of none.
func NewTunnels() *Tunnels { return &Tunnels{on: make(map[*balance.Backend]*tunnelsOn)} }

// Open returns how many tunnels there are.
func (s *Tunnels) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// On returns how many tunnels and sessions lead to a backend.
func (s *Tunnels) On(b *balance.Backend) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.on[b]; o != nil {
		return len(o.all) - o.flows
	}
	return 0
}

// Streams returns how many streams lead to a backend.
func (s *Tunnels) Streams(b *balance.Backend) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.on[b]; o != nil {
		return o.flows
	}
	return 0
}

// Untold returns how many of all three lead to a backend that were not told to end.
func (s *Tunnels) Untold(b *balance.Backend) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.on[b]; o != nil {
		return len(o.untold)
	}
	return 0
}

// Enter adds what has opened. Towards the end of the process tunnels and sessions
// are told to end at once; a stream may still come to its own end.
func (s *Tunnels) Enter(t LongLived) {
	s.mu.Lock()
	o := s.on[t.Backend()]
	if o == nil {
		o = &tunnelsOn{all: make(map[LongLived]struct{}), untold: make(map[LongLived]struct{})}
		s.on[t.Backend()] = o
	}
	s.open++
	o.all[t] = struct{}{}
	over, wait := s.over, s.wait
	if isStream(t) {
		o.flows++
		if !s.cut {
			over = observe.TunnelByPeer
		}
	}
	if over == observe.TunnelByPeer {
		o.untold[t] = struct{}{}
	}
	s.mu.Unlock()
	if over != observe.TunnelByPeer {
		t.End(over, wait)
	}
}

// Leave forgets what has ended.
func (s *Tunnels) Leave(t LongLived) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.on[t.Backend()]
	delete(o.untold, t)
	delete(o.all, t)
	if isStream(t) {
		o.flows--
	}
	if len(o.all) == 0 {
		delete(s.on, t.Backend())
	}
	s.open--
	if s.open == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}

// Wave is a number of tunnels that are to end, a few at a time: their clients
// come back at once.
type Wave struct {
	Backend *balance.Backend    // of this one; nil: all there are
	Cause   observe.TunnelCause // not TunnelByPeer
	Within  time.Duration       // until the last has ended, see reserve
	Hurry   <-chan struct{}     // closed: the rest are told at once; nil: never
	Stop    <-chan struct{}     // closed: the rest may stay; nil: never
	Quit    <-chan struct{}     // the same
}

// Close is for the end of the process: what opens from now on ends at once.
func (s *Tunnels) Close(why observe.TunnelCause, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.wait = why, wait
}

// Cut is Close, and tells all that are open at once; those that were told before
// have no longer either.
func (s *Tunnels) Cut(why observe.TunnelCause, wait time.Duration) {
	s.mu.Lock()
	s.over, s.wait, s.cut = why, wait, true
	all := make([]LongLived, 0, s.open)
	for _, o := range s.on {
		clear(o.untold)
		for t := range o.all {
			all = append(all, t)
		}
	}
	s.mu.Unlock()
	for _, t := range all {
		t.End(why, wait)
	}
}

// End runs a wave and returns when the last tunnel has been told, and how many
// were.
func (s *Tunnels) End(w *Wave) (told int) {
	end, hurried := time.Now().Add(w.Within), false
	until := end.Add(-reserve(w.Within))
	for {
		some, left := s.claim(w.Backend, 1)
		if len(some) == 0 {
			return told
		}
		rest, gap := pace(time.Until(until), left, rand.Float64())
		if rest > 0 {
			more, _ := s.claim(w.Backend, rest)
			some = append(some, more...)
		}
		wait := min(TunnelWait, time.Until(end))
		if hurried {
			wait = TunnelHurry
		}
		for _, t := range some {
			t.End(w.Cause, wait)
			s.countSession(t, w.Cause)
		}
		told += len(some)
		if gap <= 0 {
			continue
		}
		turn := time.NewTimer(gap)
		select {
		case <-turn.C:
		case <-w.Hurry:
			w.Hurry, hurried, until = nil, true, time.Time{}
		case <-w.Stop:
			turn.Stop()
			return told
		case <-w.Quit:
			turn.Stop()
			return told
		}
		turn.Stop()
	}
}

// reserve is what of a wave's time is for the last to answer: a fifth, but half a
// second where that is to be had, and TunnelWait at most.
func reserve(within time.Duration) time.Duration {
	return min(TunnelWait, max(within/5, min(500*time.Millisecond, within/2)))
}

// paceLeast is the shortest pause between two tunnels; faster waves tell
// several at a time.
const paceLeast = 2 * time.Millisecond

// pace says how many of the left others are told together with one, and how long
// to pause then, so that they are spread evenly over the time that remains. The
// pause is drawn from between half and one and a half times that, by a number
// in [0, 1): balancers that began together do not stay together.
//
// Worked example: 200 over 10 s. The first is told at once, 199 are left, and
// the pause is 10 s / 200 = 50 ms on average. 20,000 over the same time would be
// 0.5 ms each: four are told at a time, every 2 ms.
func pace(remains time.Duration, left int, draw float64) (more int, pause time.Duration) {
	if remains <= 0 {
		return left, 0
	}
	each := remains / time.Duration(left+1)
	if each < paceLeast {
		more = min(int(paceLeast/max(each, 1))-1, left)
		each = max(each*time.Duration(more+1), 1)
	}
	if left == more {
		return more, 0
	}
	return more, time.Duration(float64(each) * (0.5 + draw))
}

// claim takes up to n tunnels that were not told yet, and returns how many such
// are left.
func (s *Tunnels) claim(b *balance.Backend, n int) (some []LongLived, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	take := func(o *tunnelsOn) {
		for t := range o.untold {
			if len(some) == n {
				break
			}
			delete(o.untold, t)
			some = append(some, t)
		}
		left += len(o.untold)
	}
	if b != nil {
		if o := s.on[b]; o != nil {
			take(o)
		}
		return some, left
	}
	for _, o := range s.on {
		take(o)
	}
	return some, left
}

// EndOldest tells up to n tunnels of a backend to end, the oldest first and none
// that is younger than least, and returns how many.
func (s *Tunnels) EndOldest(b *balance.Backend, n int, least time.Duration, why observe.TunnelCause, wait time.Duration) int {
	now := clock.Now()
	s.mu.Lock()
	var some []LongLived
	if o := s.on[b]; o != nil {
		for t := range o.untold {
			if now.Sub(t.Since()) >= least {
				some = append(some, t)
			}
		}
		slices.SortFunc(some, func(a, b LongLived) int { return int(max(min(a.Since().Sub(b.Since()), 1), -1)) })
		some = some[:min(n, len(some))]
		for _, t := range some {
			delete(o.untold, t)
		}
	}
	s.mu.Unlock()
	for _, t := range some {
		t.End(why, wait)
	}
	return len(some)
}

// Gone returns a channel that is closed when no tunnel is left.
func (s *Tunnels) Gone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if s.none == nil {
		s.none = make(chan struct{})
	}
	return s.none
}

// Ended returns how many tunnels were ended for a cause.
func (s *Tunnels) Ended(why observe.TunnelCause) TunnelsEnded {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[why]
}

func (s *Tunnels) count(b *balance.Backend, why observe.TunnelCause, how observe.TunnelOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[why][how]++
	if d := s.drains[b]; d != nil && why == observe.TunnelByDrain {
		d.Tunnels[how]++
	}
}

func (s *Tunnels) countStream(b *balance.Backend, why observe.TunnelCause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[why]++
	if d := s.drains[b]; d != nil && why == observe.TunnelByDrain {
		d.Streams++
	}
}

// countSession counts a session that a drain was told to end; what becomes of it is
// nothing but that.
func (s *Tunnels) countSession(t LongLived, why observe.TunnelCause) {
	switch t.(type) {
	case *tunnel, *stream:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.drains[t.Backend()]; d != nil && why == observe.TunnelByDrain {
		d.Sessions++
	}
}

// StreamsEnded returns how many streams were ended for a cause.
func (s *Tunnels) StreamsEnded(why observe.TunnelCause) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[why]
}

// BeginDrain counts from now on what the drain of a backend ends, until EndDrain.
func (s *Tunnels) BeginDrain(b *balance.Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drains == nil {
		s.drains = make(map[*balance.Backend]*Drained)
	}
	s.drains[b] = new(Drained)
}

// EndDrain forgets what BeginDrain has counted.
func (s *Tunnels) EndDrain(b *balance.Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.drains, b)
}

// Drained returns what the drain of a backend has ended so far.
func (s *Tunnels) Drained(b *balance.Backend) Drained {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.drains[b]; d != nil {
		return *d
	}
	return Drained{}
}

// forget takes a tunnel that ends by itself out of those that may be told.
func (s *Tunnels) forget(t *tunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.on[t.backend]; o != nil {
		delete(o.untold, t)
	}
}

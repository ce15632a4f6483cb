// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
)

// Parts of the adaptive limit up to which requests are let in by their priority,
// see balance.Priority: the less important ones are refused first, and what
// matters most still finds room.
var adaptiveParts = [balance.Priorities]float64{
	balance.NormalPriority: 0.9,
	balance.LowPriority:    0.75,
	balance.HighPriority:   1,
}

// adaptive is a pool's limit that finds itself: what requests touch, and the core's
// half that decides. There is one as long as Limits.Adaptive is enabled.
type adaptive struct {
	// Read by every request, written by the core.
	limits [balance.Priorities]atomic.Int64
	late   atomic.Int64 // nanoseconds; an attempt given up after so long counts as an answer
	_      [64]byte

	// Written by every request.
	inFlight atomic.Int64
	answers  atomic.Uint64
	latency  atomic.Uint64 // nanoseconds
	total    atomic.Uint64 // nanoseconds
	lates    atomic.Uint64 // of answers, those given up
	_        [64]byte
	shed     [balance.Priorities]atomic.Uint64

	// Guarded by Pool.mu.
	knee knee
	next balance.Instant // when it is stepped
	last struct{ answers, late, latency, total, shed uint64 }
}

func newAdaptive(cfg *Adaptive) *adaptive {
	a := &adaptive{}
	a.knee.limit = cfg.ceiling()
	a.publish(cfg)
	return a
}

// publish makes the limit what requests read.
func (a *adaptive) publish(cfg *Adaptive) {
	for p, part := range adaptiveParts {
		a.limits[p].Store(int64(math.Ceil(part * math.Floor(a.knee.limit))))
	}
	a.late.Store(int64(cfg.tolerance() * a.knee.base))
}

// enter takes a slot, or counts a refusal.
func (a *adaptive) enter(p balance.Priority) bool {
	if p >= balance.Priorities {
		p = balance.NormalPriority
	}
	most := a.limits[p].Load()
	if a.inFlight.Load() < most {
		if a.inFlight.Add(1) <= most {
			return true
		}
		a.inFlight.Add(-1)
	}
	a.shed[p].Add(1)
	return false
}

// would reports what enter answers.
func (a *adaptive) would(p balance.Priority) bool {
	return a.inFlight.Load() < a.limits[min(p, balance.Priorities-1)].Load()
}

// leave gives a slot back.
func (a *adaptive) leave() { a.inFlight.Add(-1) }

// learn takes the outcome of an attempt that began then. Good answers tell how
// long work takes; what failed fast does not. An attempt that was given up after
// a long time would have been a slow answer: without it, a pool whose clients all
// go away before their answers come would seem to have no latency.
func (a *adaptive) learn(began balance.Instant, o *Outcome) {
	total := max(o.Now.Sub(began), 0)
	first := total
	switch o.Kind {
	case Success:
		if o.Tunnel || o.Status >= 500 {
			return
		}
		first = o.firstByte()
	case Canceled, ResponseTimeout:
		if late := a.late.Load(); late == 0 || int64(total) < late {
			return
		}
		a.lates.Add(1)
	default:
		return
	}
	a.answers.Add(1)
	a.latency.Add(uint64(first))
	a.total.Add(uint64(total))
}

// allShed returns all refusals.
func (a *adaptive) allShed() (n uint64) {
	for i := range a.shed {
		n += a.shed[i].Load()
	}
	return n
}

// adapt steps the limit when it is due.
func (c *core) adapt(now balance.Instant) {
	a := c.hot.set.Load().adaptive
	if a == nil || now < a.next {
		return
	}
	l := &a.last
	late := a.lates.Load()
	answers, latency, total, shed := a.answers.Load(), a.latency.Load(), a.total.Load(), a.allShed()
	m := measured{
		answers: answers - l.answers, latency: float64(latency - l.latency), total: float64(total - l.total), shed: shed - l.shed,
		late: late - l.late, inFlight: a.inFlight.Load(),
	}
	l.answers, l.late, l.latency, l.total, l.shed = answers, late, latency, total, shed
	cfg := &c.cfg.Limits.Adaptive
	a.knee.step(cfg, now, m)
	a.publish(cfg)
	a.next = now.Add(kneeEvery)
	if m.answers == 0 && m.inFlight == 0 {
		a.next = now.Add(kneeIdle)
	}
}

// AdaptiveSnapshot is an adaptive limit at one instant; the zero value where there
// is none.
type AdaptiveSnapshot struct {
	Enabled  bool
	Limit    int64 // requests in flight; of those of high priority
	Ceiling  int64 // 0: none
	Limits   [balance.Priorities]int64
	InFlight int64
	Shed     [balance.Priorities]uint64 // refused since it was enabled
	Base     time.Duration              // latency without load; 0: not known
	Latency  time.Duration              // of the last window
}

// Bounds reports that there is a limit that can be reached: it has been lowered
// since the pool was new, or begins at a ceiling.
func (s *AdaptiveSnapshot) Bounds() bool { return s.Enabled && s.Limit < unlimited }

func (a *adaptive) snapshot(cfg *Adaptive) AdaptiveSnapshot {
	if a == nil {
		return AdaptiveSnapshot{}
	}
	s := AdaptiveSnapshot{
		Enabled: true, Limit: int64(a.knee.limit), Ceiling: max(cfg.Ceiling, 0), InFlight: a.inFlight.Load(),
		Base: time.Duration(a.knee.base), Latency: time.Duration(a.knee.mean),
	}
	for p := range s.Shed {
		s.Limits[p], s.Shed[p] = a.limits[p].Load(), a.shed[p].Load()
	}
	return s
}

// export returns what outlasts the process: the limit, whether or not it is being
// judged, and what is known of latency without load. A limit that was too low a
// trial rises by a quarter per window where latency says so.
func (k *knee) export(now balance.Instant) SavedAdaptive {
	if k.limit == 0 || k.base == 0 {
		return SavedAdaptive{} // nothing has been found
	}
	s := SavedAdaptive{Limit: k.limit, Base: k.base, Sure: k.sure, Shed: age(now, k.shed, k.was)}
	s.Next = age(now, k.next, k.next != 0)
	return s
}

// restore goes on from there, under limits of its own.
func (k *knee) restore(a *Adaptive, now, base balance.Instant, s *SavedAdaptive) {
	*k = knee{limit: min(max(s.Limit, a.floor()), a.ceiling()), base: s.Base, sure: s.Sure, began: now}
	if s.Next.Known() {
		k.next = min(s.Next.At(base), now.Add(kneeAgain))
	}
	if k.was = s.Shed.Known(); k.was {
		k.shed = min(s.Shed.At(base), now)
	}
}

// resettle brings the limit in line with other settings. One that has never been
// reached goes on as none.
func (a *adaptive) resettle(was, is *Adaptive) {
	if was.Enabled && a.knee.limit >= was.ceiling() {
		a.knee.limit = is.ceiling()
	}
	a.knee.limit = min(max(a.knee.limit, is.floor()), is.ceiling())
	a.publish(is)
}

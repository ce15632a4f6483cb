// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"
	"time"

	"github.com/weirlb/weir/balance"
)

// Adaptive is a limit of the requests in flight in a pool that finds itself. The
// zero value is off.
type Adaptive struct {
	Enabled bool
	// Floor is the least limit; below 1 counts as 16.
	Floor int64
	// Ceiling is the largest limit and the first one; 0: none.
	Ceiling int64
	// Tolerance is how many times the latency of an unloaded pool is accepted
	// under load; below 1.1 counts as 2.
	Tolerance float64
}

func (a *Adaptive) floor() float64 { return float64(or(max(a.Floor, 0), 16)) }

func (a *Adaptive) ceiling() float64 {
	return max(float64(or(max(a.Ceiling, 0), unlimited)), a.floor())
}

func (a *Adaptive) tolerance() float64 {
	if a.Tolerance < 1.1 {
		return 2
	}
	return a.Tolerance
}

// unlimited is a limit that nothing reaches.
const unlimited = 1 << 30

func or(v, otherwise int64) int64 {
	if v == 0 {
		return otherwise
	}
	return v
}

// knee finds how many requests a pool can have in flight before more of them
// only wait for each other. It is the gradient of Netflix' concurrency-limits
// (limit x tolerance x latency without load / latency now, and the root of the
// limit on top while more is asked for), with two changes that simulation asked
// for:
//
//   - Their latency without load is a long average, which creeps up while an
//     overload lasts, or a minimum, against which a slower kind of requests looks
//     like an overload and the limit collapses. Here a smaller limit is an
//     experiment: from n0 requests in flight at a mean latency r0 to n1 at r1. If
//     requests had waited for each other, latency falls with their number. If it
//     does not, the work itself has become slower: the latency without load is r1
//     from then on, and the limit rises again.
//   - The line between the two is the most power, throughput over latency
//     (Kleinrock, "Power and deterministic rules of thumb for probabilistic
//     problems in computer communications", ICC 1979). By Little's law throughput
//     is n/r and power n/r^2, so it grows with n as long as
//     ln(r0/r1) / ln(n0/n1) < 1/2.
//
// Example: 4 servers with 8 workers and 100 ms each do 320/s, so 32 in flight
// are the knee. Of 90 in flight at 280 ms with tolerance 2, the limit becomes
// 90 x 2 x 100/280 = 64. Then 64 are in flight at 200 ms: ln(280/200) /
// ln(90/64) = 0.99, so they did wait. Had the work become slower, 280 ms would
// have stayed 280 ms: 0.
//
// A cut that goes below the knee lowers the throughput. Then what is answered hardly
// waits, whatever the slope is: its latency is that without load, and by Little's
// law the knee is the throughput before times that latency. Example: of 60 in flight
// 107/s were done; of 22 it is 73/s, at 300 ms each, so the knee is 107 x 0.3 = 32.
//
// While requests are refused, the limit goes down like this every so often until
// latency no longer follows (Heiss and Wagner, "Adaptive load control in
// transaction processing systems", VLDB 1991, climb the same hill by steps), so
// that a wrong idea of the latency without load does not last.
//
// Latency above the tolerance is not yet an overload. A burst drains; so it has to
// last. And work that has become slower lets more requests be in flight until as
// many end as come, while in an overload their number goes on growing: without
// that, and without a refusal, the pool keeps up, nothing is refused, and the
// latency without load is what it is now. What is waited for in no case is the end of
// those that have come already, if at the present pace that takes several times what
// is accepted: each second of ten times the load is nine of work that nobody wants.
//
// It is stepped by time and knows no clock.
type knee struct {
	limit float64
	base  float64 // nanoseconds, the latency without load; 0: not known
	mean  float64 // nanoseconds, of the last window
	began balance.Instant
	acc   measured // since then
	high  high
	tests experiment
	next  balance.Instant // no descent before
	sure  bool            // the base was measured by a descent
	shed  balance.Instant // when something was refused last; meaningful when was
	was   bool
}

// measured is what happened in some time.
type measured struct {
	answers  uint64
	late     uint64  // of them, those that nobody waited for to the end
	latency  float64 // nanoseconds to the first byte, summed over answers
	total    float64 // nanoseconds in flight, the same
	shed     uint64
	inFlight int64 // at the end
}

func (m *measured) add(o *measured) {
	m.answers += o.answers
	m.late += o.late
	m.latency += o.latency
	m.total += o.total
	m.shed += o.shed
	m.inFlight = o.inFlight
}

// load is a pool under way: n requests in flight on average, by Little's law, at
// a mean latency of r nanoseconds.
type load struct{ n, r, rate, late float64 }

func (m *measured) load(took time.Duration) load {
	n := float64(m.answers)
	return load{n: m.total / float64(took), r: m.latency / n, rate: n / took.Seconds(), late: float64(m.late) / n}
}

// high is a time of latency above the tolerance.
type high struct {
	windows int
	rounds  int // in which it did not grow
	since   balance.Instant
	from    float64 // in flight when the round began
	sum     measured
	took    time.Duration
}

// experiment is a smaller limit that is being judged.
type experiment struct {
	on      bool
	descent bool            // goes on until latency no longer follows
	load                    // before
	from    balance.Instant // what ends before was there before
}

const (
	kneeEvery  = 100 * time.Millisecond // between steps
	kneeIdle   = 500 * time.Millisecond // while nobody is there
	kneeSome   = 50                     // answers make a window,
	kneeMany   = 200                    // and so many one that judges
	kneeFew    = 10                     // with fewer nothing is decided
	kneeWindow = time.Second            // but not for longer
	kneeJudge  = 5 * time.Second        // the same for a judgement
	kneeSoon   = 10 * time.Second       // the first descent after requests began to be refused
	kneeAgain  = 2 * time.Minute        // from one descent to the next
	kneeStep   = 0.75                   // of a descent; a cut is at least so deep, or it could not be judged,
	kneeDeep   = 0.3                    // and at most so
	kneeBrake  = 5                      // times the tolerance are not waited for
	kneeLate   = 0.2                    // nor is this part of answers that come too late
	kneeRound  = 3                      // windows, and a second: longer than a burst
	kneeRounds = 5                      // without growth are no overload
	kneeLeap   = 1.75                   // growth in the first round, when slower work comes through as well
	kneeGrowth = 1.15                   // growth in a later one
	kneeCalm   = 1.3                    // times the base, the mean is followed
	kneeForget = 1.02                   // how the limit rises per window when it is not needed
	kneeWider  = 1.25                   // and when it is reached without a sign of load
	kneeBelow  = 0.85                   // of the throughput before: the knee lies between the two
)

// step takes what happened since the last step.
func (k *knee) step(a *Adaptive, now balance.Instant, m measured) {
	if k.limit == 0 {
		k.limit, k.began = a.ceiling(), now.Add(-kneeEvery)
	}
	k.limit = min(max(k.limit, a.floor()), a.ceiling())
	if m.shed > 0 {
		if !k.was {
			k.was = true
			if !k.sure {
				k.next = now.Add(kneeSoon)
			}
		}
		k.shed = now
	} else if k.was && now.Sub(k.shed) > kneeSoon {
		k.was = false
	}
	if k.tests.on && now <= k.tests.from {
		k.acc, k.began = measured{}, now
		return
	}
	k.acc.add(&m)
	took := now.Sub(k.began)
	if !k.full(took) {
		return
	}
	if k.acc.answers < kneeFew {
		k.tests.on, k.high = false, high{}
		k.acc, k.began = measured{}, now
		return
	}
	w := k.acc
	l := w.load(took)
	k.mean = l.r
	if k.tests.on && !k.judge(a, now, l, &w, took) {
		return // more of it is needed
	}
	if !k.tests.on {
		k.decide(a, now, l, &w, took)
	}
	k.acc, k.began = measured{}, now
}

// full reports that the window is long enough to say something: as long as a
// request takes, and long enough for as many answers as chance does not decide.
func (k *knee) full(took time.Duration) bool {
	enough := uint64(kneeSome)
	if k.tests.on {
		enough = kneeMany
	}
	longest := max(kneeWindow, time.Duration(2*k.mean))
	if k.acc.answers < enough {
		return took >= longest && k.acc.answers >= kneeFew || took >= 4*longest
	}
	return took >= kneeEvery && float64(took) >= min(k.acc.latency/float64(k.acc.answers), float64(longest))
}

// decide ends a window.
func (k *knee) decide(a *Adaptive, now balance.Instant, l load, w *measured, took time.Duration) {
	switch {
	case k.base == 0:
		k.base = l.r
	case l.r*kneeCalm < k.base:
		k.base += (l.r - k.base) / 4
	case l.r < kneeCalm*k.base && (!k.was || l.r < k.base):
		k.base += (l.r - k.base) / 20
	}
	most := a.tolerance() * k.base
	// What has come already will wait longer, whatever those tell that have ended.
	if crowd := float64(w.inFlight) / l.rate * float64(time.Second); l.r > most || crowd > kneeBrake*most {
		k.above(a, now, l, w, took, most)
		return
	}
	k.high = high{}
	switch {
	case w.shed > 0 && l.r < kneeCalm*k.base:
		k.limit *= kneeWider
	case w.shed > 0:
		k.limit += math.Sqrt(k.limit)
	case !k.was:
		k.limit *= kneeForget
	}
	k.limit = min(k.limit, a.ceiling())
	if w.shed > 0 && now >= k.next {
		k.next, k.sure = now.Add(kneeAgain), true
		k.try(a, now, l, w, kneeStep*l.n, true)
	}
}

// above takes a window with a latency above most.
func (k *knee) above(a *Adaptive, now balance.Instant, l load, w *measured, took time.Duration, most float64) {
	h := &k.high
	if h.windows == 0 {
		h.since, h.from = now, l.n
	}
	h.windows++
	h.sum.add(w)
	h.took += took
	growing := max(float64(w.inFlight)/max(l.n, 1), 1) // what has come already will wait longer
	urgent := l.r*growing > kneeBrake*most || l.late > 0.5
	lasts := h.windows >= kneeRound && now.Sub(h.since) >= time.Second
	switch {
	case urgent, lasts && (k.was || l.late > kneeLate):
	case !lasts:
		return
	case h.grown(l.n):
	default:
		if h.rounds++; h.rounds >= kneeRounds {
			k.slower(now, l.r)
			*h = high{}
			return
		}
		h.windows, h.since = 1, now
		if h.rounds == 1 {
			h.from = l.n
		}
		return
	}
	// The time as a whole says more than its last window, which was chosen for being high.
	whole := h.sum.load(h.took)
	target := min(max(l.n*most/l.r, kneeDeep*float64(w.inFlight)), kneeStep*l.n, kneeStep*whole.n)
	*h = high{}
	if !k.try(a, now, whole, w, target, false) && l.late <= kneeLate {
		k.slower(now, l.r) // with so few in flight it is not their number
	}
}

// grown reports that more are in flight than at first, by more than chance does:
// numbers of that kind vary by their root.
func (h *high) grown(n float64) bool {
	least := kneeGrowth
	if h.rounds == 0 {
		least = kneeLeap
	}
	return n > least*h.from && n > h.from+4*math.Sqrt(h.from)
}

// slower takes latency for that of an unloaded pool. It may be wrong.
func (k *knee) slower(now balance.Instant, r float64) {
	k.base = r
	if k.sure || now >= k.next {
		k.sure, k.next = false, now.Add(kneeSoon)
	}
}

// try begins an experiment, or reports that the floor is in the way.
func (k *knee) try(a *Adaptive, now balance.Instant, l load, w *measured, limit float64, descent bool) bool {
	if limit = max(limit, a.floor()); limit >= min(k.limit, 0.9*l.n) {
		k.tests.on = false
		return false
	}
	// What is in flight above the limit ends first.
	drains := time.Duration(max(float64(w.inFlight)/l.rate*float64(time.Second), l.r))
	k.tests = experiment{on: true, descent: descent, load: l, from: now.Add(min(drains, kneeJudge))}
	k.limit = limit
	k.began, k.acc = now, measured{}
	return true
}

// judge ends an experiment, or reports that it must go on.
func (k *knee) judge(a *Adaptive, now balance.Instant, l load, w *measured, took time.Duration) bool {
	t := k.tests
	if l.n > 0.9*t.n {
		k.tests.on = false // nothing was tried: they came by another way, or stayed
		return true
	}
	follows := math.Log(t.r/l.r) / math.Log(t.n/l.n) // 1: waits are all there is; 0: there are none
	over := took >= kneeJudge || w.answers >= 5*kneeMany
	if !over && (follows > 0.3 && follows < 0.7 || follows <= 0.3 && w.answers < kneeMany) {
		return false
	}
	k.tests.on = false
	below := w.shed > 0 && l.late <= kneeLate && l.rate < kneeBelow*t.rate
	switch {
	case below && !t.descent:
		k.slower(now, l.r)
		k.next = max(k.next, now.Add(kneeAgain/4))
		k.limit = max(k.limit, min(t.n, t.rate*l.r/float64(time.Second)*kneeCalm))
	case follows >= 0.5 && !t.descent:
		k.base = min(k.base, l.r)
		k.limit = max(k.limit, min(t.n, kneeStep*l.n*a.tolerance()*k.base/l.r))
	case follows >= 0.5 && l.r > k.base && l.r < kneeCalm*k.base:
		// As quick as it was known to be: there is nothing more to learn.
		k.limit = max(k.limit, min(t.n, l.n*a.tolerance()*k.base/l.r))
	case follows >= 0.5:
		k.base = min(k.base, l.r)
		k.tests.on = true
		k.try(a, now, l, w, kneeStep*l.n, true)
	case t.descent:
		k.base = min(k.base, l.r)
		k.limit = max(l.n*a.tolerance(), k.limit)
	case l.late > kneeLate || w.answers < kneeMany:
		// What weir no longer waits for is still being worked on, or it is not known.
	default:
		k.slower(now, l.r) // and the limit rises again as it is asked for
	}
	return true
}

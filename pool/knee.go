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
//     does not, the work itself has become slower, the limit is put back, and the
//     latency without load is r1 from then on.
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
// While requests are refused, the limit goes down like this every so often until
// latency no longer follows (Heiss and Wagner, "Adaptive load control in
// transaction processing systems", VLDB 1991, climb the same hill by steps), so
// that a wrong idea of the latency without load does not last.
//
// It is stepped by time and knows no clock.
type knee struct {
	limit float64
	base  float64 // nanoseconds, the latency without load; 0: not known
	mean  float64 // nanoseconds, of the last window
	began balance.Instant
	acc   measured // since then
	high  int      // windows in a row above the tolerance
	tests experiment
	next  balance.Instant // no descent before
	shed  balance.Instant // when something was refused last; meaningful when was
	was   bool
}

// measured is what happened in some time.
type measured struct {
	answers  uint64
	latency  float64 // nanoseconds to the first byte, summed over answers
	total    float64 // nanoseconds in flight, the same
	shed     uint64
	inFlight int64 // at the end
}

// experiment is a smaller limit that is being judged.
type experiment struct {
	on      bool
	descent bool // goes on until latency no longer follows
	n, r    float64
	before  float64         // the limit
	from    balance.Instant // what ends before was there before
}

const (
	kneeEvery  = 100 * time.Millisecond // between steps
	kneeIdle   = 500 * time.Millisecond // while nobody is there
	kneeLongly = 3                      // windows above the tolerance are no burst
	kneeSome   = 50                     // answers make a window,
	kneeMany   = 200                    // and so many one that judges
	kneeFew    = 10                     // with fewer nothing is decided
	kneeWindow = time.Second            // but not for longer
	kneeSoon   = 10 * time.Second       // the first descent after requests began to be refused
	kneeAgain  = 30 * time.Second       // from one descent to the next
	kneeStep   = 0.75                   // of a descent
	kneeShy    = 0.85                   // a cut is at least so deep, or it could not be judged
	kneeDeep   = 0.3                    // and at most
	kneeBrake  = 4                      // times the tolerance are not waited for
	kneeCalm   = 1.3                    // below so many times the base it follows the mean slowly
)

// step takes what happened since the last step.
func (k *knee) step(a *Adaptive, now balance.Instant, m measured) {
	if k.limit == 0 {
		k.limit, k.began = a.ceiling(), now.Add(-kneeEvery)
	}
	k.limit = min(max(k.limit, a.floor()), a.ceiling())
	if m.shed > 0 {
		if !k.was {
			k.was, k.next = true, now.Add(kneeSoon)
		}
		k.shed = now
	} else if k.was && now.Sub(k.shed) > kneeSoon {
		k.was = false
	}
	if k.tests.on && now <= k.tests.from {
		k.acc, k.began = measured{}, now
		return
	}
	k.acc.answers += m.answers
	k.acc.latency += m.latency
	k.acc.total += m.total
	k.acc.shed += m.shed
	k.acc.inFlight = m.inFlight
	took := now.Sub(k.began)
	if !k.full(took) {
		return
	}
	w := k.acc
	k.acc, k.began = measured{}, now
	if w.answers < kneeFew {
		k.tests.on, k.high = false, 0
		return
	}
	k.decide(a, now, &w, took.Seconds())
}

// full reports that the window is long enough to say something: as long as a
// request takes, so that three of them are longer than a change of kinds needs to
// come through.
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

// decide ends a window of so many seconds.
func (k *knee) decide(a *Adaptive, now balance.Instant, w *measured, seconds float64) {
	r := w.latency / float64(w.answers)
	rate := float64(w.answers) / seconds
	n := w.total / float64(time.Second) / seconds // Little: on average in flight
	k.mean = r
	if k.tests.on {
		k.judge(a, now, n, r, rate, w)
		return
	}
	switch {
	case k.base == 0:
		k.base = r
	case r < k.base:
		k.base += (r - k.base) / 4
	case r < kneeCalm*k.base && !k.was:
		k.base += (r - k.base) / 100
	}
	most := a.tolerance() * k.base
	if r <= most {
		k.high = 0
		if w.shed > 0 {
			k.limit = min(k.limit+math.Sqrt(k.limit), a.ceiling())
		}
		if k.was && w.shed > 0 && now >= k.next {
			k.try(a, now, n, r, rate, w, kneeStep*n, true)
		}
		return
	}
	k.high++
	growing := max(float64(w.inFlight)/max(n, 1), 1) // what has come already will wait longer
	if k.high >= kneeLongly || r*growing > kneeBrake*most {
		k.high = 0
		k.try(a, now, n, r, rate, w, min(max(n*most/r, kneeDeep*n), kneeShy*n), false)
	}
}

// try begins an experiment.
func (k *knee) try(a *Adaptive, now balance.Instant, n, r, rate float64, w *measured, limit float64, descent bool) {
	k.next = now.Add(kneeAgain)
	if limit = max(limit, a.floor()); limit >= min(k.limit, 0.95*n) {
		return // at the floor
	}
	before := k.limit
	if k.tests.on {
		before = k.tests.before
	}
	// What is in flight above the limit ends first.
	drains := time.Duration(max(float64(w.inFlight)/rate*float64(time.Second), r))
	k.tests = experiment{on: true, descent: descent, n: n, r: r, before: before, from: now.Add(min(drains, 5*time.Second))}
	k.limit = limit
}

// judge ends an experiment with n in flight at a mean of r.
func (k *knee) judge(a *Adaptive, now balance.Instant, n, r, rate float64, w *measured) {
	t := k.tests
	if n > 0.93*t.n {
		k.tests.on = false // nothing was tried: they came by another way, or stayed
		return
	}
	if math.Log(t.r/r) >= 0.5*math.Log(t.n/n) {
		// They had waited for each other.
		k.base = min(k.base, r)
		if !t.descent {
			k.tests.on = false
			return
		}
		was := k.limit
		k.try(a, now, n, r, rate, w, kneeStep*n, true)
		k.tests.on = k.limit < was
		return
	}
	k.tests.on, k.base = false, r
	if t.descent {
		k.limit = max(n*a.tolerance(), k.limit)
	} else {
		k.limit = t.before
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"sync/atomic"
	"time"
)

// EWMAConfig are the settings of peak_ewma. The zero value means the defaults.
type EWMAConfig struct {
	// Decay is how long an estimate is remembered; 0 or less means 10 s. After it
	// e^-4 of an estimate is left (2 %): of a hundredfold excess, 9 %.
	Decay time.Duration
	// Penalty is the latency that a failed attempt counts as, however fast it
	// failed; 0 or less means 5 s.
	Penalty time.Duration
}

const (
	defaultDecay   = 10 * time.Second
	defaultPenalty = 5 * time.Second
)

// NewPeakEWMA returns the policy "peak_ewma": the least latency times load. It
// chooses like least_request (the exact minimum of all up to 256 members, above
// the best of 16 draws by weight; newcomers below full share by the same rule),
// but what is compared is
//
//	factor x (in flight / weight + one request)
//
// where factor says how many times as slow as the rest of the set the member has
// been lately. "One request" is what a member of mean weight has with one in
// flight, rounded to a power of two; it makes latency count among idle members.
//
// The idea is Finagle's (peak EWMA, also Linkerd's): an average that leaps up on
// a slow answer and forgets in time, times the requests in flight. Taken as it is
// it starves whoever was slow once and floods whoever was fast once. What is done
// against that, with the defaults of 10 s and 5 s, and a set where answers take
// 50 ms:
//
// One slow answer. It counts as twice the estimate at most, and the less the
// shorter ago the last was. An answer of 60 s makes it 100 ms at most and the
// factor 1.9, for some seconds; Finagle's estimate would be 60 s, and the backend
// without work for more than a minute. One that has become slow goes on being
// slow: ten times as slow is seen within half a second.
//
// Chance. Less than half as much again as the mean, or two thirds of it, counts
// as equal, so equal servers tie, ties fall by weight, and nothing swings after
// noise. From there to 2.25 times the factor rises from 1 to the whole.
//
// A newcomer. Without an estimate its factor is 1: it is as slow as the mean, not
// as fast as nothing at all, and gets what least_request would give it. A first
// answer has a quarter of full evidence, which a fast one must exceed to count at
// all (what answers first is what was short, and an empty server is fast): after
// one answer of 5 ms it is still 1. After one of 5 s it is 100^(1/4) = 3.2.
//
// An idle one. Evidence decays whether there are answers or not, and the mean
// takes its place: 100 times the mean is 100^(e^-1.2) = 4 times 3 s later, within
// the dead band after 6.1 s. Then it is tried; still slow, that one answer
// confirms the old estimate, so it costs a request in some seconds. Even the
// worst estimate (60 s, 1200 times) is in the band after 7.2 s.
//
// Failures. Each counts as an answer after Penalty, so who fails in 1 ms gets
// less than a tenth of its share, and is back 10 s after it has stopped.
//
// The set's mean is that of levels (a geometric one), by evidence, so that one
// black hole or forgotten server does not set the measure.
//
// Latency measured at the balancer contains the queue at the backend, so load
// counts twice; the dead band and the way back keep that from swinging. Like
// least_request it herds when counts are stale: many balancers that do not see
// each other's requests send them to the same member. p2c does so much less. It
// needs about an answer each second from each backend; with fewer it is
// least_request.
func NewPeakEWMA(c EWMAConfig) Policy {
	if c.Decay <= 0 {
		c.Decay = defaultDecay
	}
	if c.Penalty <= 0 {
		c.Penalty = defaultPenalty
	}
	return &peakEWMAPolicy{decay: float64(c.Decay) / (1 << estimateTick), penalty: c.Penalty}
}

type peakEWMAPolicy struct {
	decay   float64 // in ticks of an estimate
	penalty time.Duration
}

func (*peakEWMAPolicy) Name() string { return "peak_ewma" }

// Learn takes in one ended attempt. See Learner.
func (p *peakEWMAPolicy) Learn(b *Backend, o Observation) {
	latency := max(o.FirstByte, 1)
	if o.Failed {
		latency = max(latency, p.penalty)
	}
	level := math.Log2(float64(latency))
	for {
		old := b.estimate.Load()
		next := uint64(estimate(old).learn(level, o.Now, p.decay))
		if next == old || b.estimate.CompareAndSwap(old, next) {
			return
		}
	}
}

func (p *peakEWMAPolicy) Build(s *Set) Picker {
	ro := newRoster(s)
	mean := 1.0
	if len(ro.slots) > 0 {
		mean = float64(ro.sum) / float64(len(ro.slots))
	}
	return newLeast(ro, &rates{
		perTick: 4 * math.Log2E / p.decay,
		unit:    math.Exp2(-math.Round(math.Log2(mean))),
	})
}

// rates is what turns the estimates of a picker's members into factors of their
// load. Constant but for kept.
type rates struct {
	perTick float64 // by how much log2 of the evidence falls in a tick
	unit    float64 // load that a member of weight 1 has while idle, a power of two

	_    [64]byte
	kept atomic.Uint64 // tick << 32 | mean level as float32, see meanLevel
}

// outlook is rates at one instant, for one pick.
type outlook struct {
	perTick, unit float64
	mean          float64 // level
	tick          uint64
}

const (
	// band is the excess, in doublings, that counts as none: half as much again as
	// the mean, or two thirds of it.
	band = 0.5849625007211562 // log2(1.5)
	// unheard is a sum of evidence that is too little to say anything.
	unheard = 1e-6
)

// at prepares a comparison of the listed members, or of all if list is nil.
func (t *rates) at(ro *roster, list []uint32, now Instant) outlook {
	o := outlook{perTick: t.perTick, unit: t.unit, tick: uint64(now) >> estimateTick}
	if list != nil {
		var sum, mass float64
		for _, i := range list {
			o.hear(ro.slots[i].backend, &sum, &mass)
		}
		o.settle(sum, mass)
		return o
	}
	// In a tick the mean hardly moves, and it costs as much as the comparison.
	tick := o.tick << 32
	if v := t.kept.Load(); v != 0 && v&(0xffffffff<<32) == tick {
		o.mean = float64(math.Float32frombits(uint32(v)))
		return o
	}
	var sum, mass float64
	for i := range ro.slots {
		o.hear(ro.slots[i].backend, &sum, &mass)
	}
	o.settle(sum, mass)
	t.kept.Store(tick | uint64(math.Float32bits(float32(o.mean))))
	return o
}

// hear adds a member to the mean level, by its evidence.
func (o *outlook) hear(b *Backend, sum, mass *float64) {
	if e := estimate(b.estimate.Load()); e != 0 {
		m := e.evidence() * exp2(-o.perTick*float64(e.age(o.tick)))
		*sum += m * e.level()
		*mass += m
	}
}

func (o *outlook) settle(sum, mass float64) {
	if o.mean = 32; mass > unheard { // else any level will do: evidence brings all to it
		o.mean = sum / mass
	}
}

// factor returns how many times as slow as the mean a backend counts of which
// that is known.
func (o *outlook) factor(e estimate) float64 {
	if e == 0 {
		return 1
	}
	excess := e.level() - o.mean
	if -band <= excess && excess <= band {
		return 1 // less evidence does not make it more
	}
	evidence := e.evidence() * exp2(-o.perTick*float64(e.age(o.tick)))
	side := 1.0
	if excess < 0 {
		side, excess = -1, -excess
		evidence = (evidence - firstEvidence) * (1 / (1 - firstEvidence))
	}
	if excess *= evidence; excess <= band {
		return 1
	}
	if excess < 2*band {
		excess = 2 * (excess - band)
	}
	return exp2(side * excess)
}

// load is what is compared, before it is divided by the weight: requests in
// flight and one more, times what the backend counts as.
func (o *outlook) load(b *Backend, weight uint32, now Instant) float64 {
	return o.factor(estimate(b.estimate.Load())) * (b.Load(now) + o.unit*float64(weight))
}

// exp2 returns 2^x to 0.4 %, exactly for whole numbers: the integer part becomes
// the exponent, and between powers of two a parabola through both ends does. It is
// monotone, which is what counts here, and costs a nanosecond or two.
func exp2(x float64) float64 {
	x = max(x, -1000) + 1023
	whole := uint64(x)
	f := x - float64(whole)
	return math.Float64frombits(whole<<52) * (1 + f*(0.6565+f*0.3435))
}

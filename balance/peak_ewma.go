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

// NewPeakEWMA returns the policy "peak_ewma".
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
	return &leastRequest{roster: ro, rates: &rates{
		perTick: 4 * math.Log2E / p.decay,
		unit:    math.Exp2(-math.Round(math.Log2(mean))),
	}}
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
	// band is the excess, in doublings, that counts as none: a quarter more or
	// less than the mean.
	band = 0.32192809488736235 // log2(1.25)
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

// factor returns how many times as slow as the mean a backend counts.
func (o *outlook) factor(b *Backend) float64 {
	e := estimate(b.estimate.Load())
	if e == 0 {
		return 1
	}
	excess := (e.level() - o.mean) * e.evidence()
	if -band <= excess && excess <= band {
		return 1
	}
	excess *= exp2(-o.perTick * float64(e.age(o.tick)))
	switch {
	case excess >= 2*band || excess <= -2*band:
	case excess > band:
		excess = 2 * (excess - band)
	case excess < -band:
		excess = 2 * (excess + band)
	default:
		return 1
	}
	return exp2(excess)
}

// load is what is compared, before it is divided by the weight: requests in
// flight and one more, times what the backend counts as.
func (o *outlook) load(b *Backend, weight uint32, now Instant) float64 {
	return o.factor(b) * (b.Load(now) + o.unit*float64(weight))
}

// exp2 returns 2^x, exact for whole numbers, in straight lines between (up to 6 %
// too much): N. N. Schraudolph, "A fast, compact approximation of the exponential
// function", Neural Computation 11(4), 1999. It is monotone, which is what counts
// here, and costs a nanosecond.
func exp2(x float64) float64 {
	return math.Float64frombits(uint64((max(x, -1000) + 1023) * (1 << 52)))
}

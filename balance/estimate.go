// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"time"
)

// What peak_ewma knows about a backend's latency is one word on the Backend,
// changed by compare-and-swap:
//
//	bits 44..63  level: log2 of nanoseconds, in 1/2^14 (0.004 %)
//	bits 28..43  evidence behind it at that instant, 0..1 in 1/65535
//	bits  0..27  the instant, in ticks of 1.05 ms (78 hours, then around again)
//
// The word zero means that nothing is known. A level is logarithmic because
// latencies spread by factors: an answer that took a hundred times as long is
// 6.6 steps of doubling away and not a hundred, so no single one outweighs the
// rest, and from any excess the way back takes about the same time.
//
// Evidence decays by e^-4 in each decay (EWMAConfig.Decay); at a pick, what is
// missing to 1 is filled with the mean of the set. So one formula says how a
// newcomer begins, how an idle backend is forgotten and how much a first answer
// counts:
//
//	excess = (level - mean level of the set) x evidence x e^(-4 x age/decay)
type estimate uint64

const (
	estimateTick  = 20 // log2 of nanoseconds per tick
	ageBits       = 28
	ageMask       = 1<<ageBits - 1
	evidenceBits  = 16
	evidenceOne   = 1<<evidenceBits - 1
	levelShift    = ageBits + evidenceBits
	levelOne      = 1 << 14
	firstEvidence = 0.25 // of one answer, when there was none before
	alarm         = 16   // so many times as fast does a slower answer raise a level
	heardPerDecay = 4096 // answers that are heard in a decay, at most

	// outOfOrder is how many ticks in the future an instant may lie that another
	// goroutine has stored; more is an age of nearly 78 hours.
	outOfOrder = 1 << 10
)

func packEstimate(level, evidence float64, now Instant) estimate {
	l := uint64(math.Round(min(max(level, 0), 63) * levelOne))
	e := uint64(max(math.Round(evidence*evidenceOne), 1))
	return estimate(l<<levelShift | min(e, evidenceOne)<<ageBits | uint64(now)>>estimateTick&ageMask)
}

func (e estimate) level() float64 { return float64(e>>levelShift) * (1.0 / levelOne) }

// evidence is what was there when the estimate was made.
func (e estimate) evidence() float64 {
	return float64(e>>ageBits&evidenceOne) * (1.0 / evidenceOne)
}

// age returns the ticks since the estimate was made; tick is the present one.
func (e estimate) age(tick uint64) uint64 {
	age := (tick - uint64(e)) & ageMask
	if age > ageMask-outOfOrder {
		return 0
	}
	return age
}

// learn returns the estimate after an answer of that level; decay is in ticks.
//
// A faster answer draws the level down as far as time has passed, by
// 1 - e^(-4 x age/decay), at most a quarter of the way. A slower one raises it as
// if sixteen times as much time had passed, but counts as twice the level at
// most. Both depend on time and not on the number of answers, so a busy backend,
// which meets more of the slow ones, does not look slower for it.
//
// Where more than half of the evidence has gone, a much slower answer begins
// anew, as a newcomer's does; one within a factor of two confirms the old level.
//
// Only one answer in 1/4096 of a decay (2.4 ms) is heard, so that no step
// vanishes in rounding and a busy backend's word is not written by every answer.
//
// Example, decay 10 s, an estimate of 50 ms with full evidence that is 0.1 s old:
//
//	25 ms: moves by 1-e^-0.04 = 4 % of one halving, to 48.6 ms
//	100 ms: by 1-e^-0.64 = 47 % of a doubling, to 69 ms
//	5 s: counts as 100 ms, to 69 ms too; the next, 0.1 s later, makes it 96 ms
func (e estimate) learn(level float64, now Instant, decay float64) estimate {
	if e == 0 {
		return packEstimate(level, firstEvidence, now)
	}
	age := float64(e.age(uint64(now) >> estimateTick))
	if age == 0 || age < decay/heardPerDecay {
		return e
	}
	was, kept := e.level(), math.Exp(-4*age/decay)
	old, gain := e.evidence()*kept, min(1-kept, firstEvidence)
	switch {
	case level < was:
	case level > was+1 && old < 0.5:
		return packEstimate(level, firstEvidence, now)
	default:
		level = min(level, was+1)
		kept = math.Exp(-4 * alarm * age / decay)
		old, gain = e.evidence()*kept, 1-kept
	}
	return packEstimate((old*was+gain*level)/(old+gain), old+gain, now)
}

// Latency returns what a policy that learns knows of the backend's time to the
// first byte, 0 when that is nothing, or nothing of the last hour. It leans to
// the slow side: see NewPeakEWMA. Failures count in it with their penalty.
func (b *Backend) Latency(now Instant) time.Duration {
	e := estimate(b.estimate.Load())
	if e == 0 || e.age(uint64(now)>>estimateTick) > uint64(time.Hour)>>estimateTick {
		return 0
	}
	return time.Duration(math.Exp2(e.level()))
}

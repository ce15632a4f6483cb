// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"time"
)

// A backend that fails at once is idle again at once, and to a policy that
// counts requests in flight it looks like the best one of all. So a failed
// attempt stays counted as load, as a ghost, until a real request would have
// been over.
//
// The ghost of all failed attempts of a backend is one word, changed by
// compare-and-swap:
//
//	bits 40..63  attempts still charged, in 1/1024 (up to 16,383)
//	bits  0..39  the instant of that figure, in ticks of 16.384 us (208 days)
//
// No ghost is the word zero, so the fast path is one load. The time constant
// stands beside it on the Backend, because it belongs to the pool and moves.
const (
	ghostOne      = 1 << 10 // one attempt
	ghostMax      = 1<<24 - 1
	ghostTickBits = 40
	ghostTickMask = 1<<ghostTickBits - 1
	ghostTick     = 14 // log2 of nanoseconds per tick
)

// Charge keeps a failed attempt counted as load for about the pool's mean
// latency, so that a backend which fails fast does not look idle: the charge
// decays exponentially with time constant mean, so its integral equals that
// of one request held for mean. elapsed, the time the attempt really took, is
// already paid. A mean of zero or less charges nothing; any other is remembered
// as by SetMeanLatency.
//
// Example: mean 100 ms, a connection refused after 0. One attempt is charged;
// 100 ms later 0.37 of it are left, 500 ms later 0.007, and the area under the
// curve is 0.1 attempt-seconds, what a request of 100 ms leaves. Had the
// failure taken 80 ms, 0.2 would be charged; had it taken 100 ms, nothing.
func (b *Backend) Charge(now Instant, mean, elapsed time.Duration) {
	if mean <= 0 {
		return
	}
	if b.mean.Load() != int64(mean) {
		b.mean.Store(int64(mean))
	}
	add := ghostOne * (1 - float64(max(elapsed, 0))/float64(mean))
	if add <= 0 {
		return
	}
	for {
		old := b.ghost.Load()
		units := math.Round(ghostUnits(old, now, int64(mean)) + add)
		next := packGhost(uint64(min(units, ghostMax)), now)
		if b.ghost.CompareAndSwap(old, next) {
			return
		}
	}
}

// SetMeanLatency stores the pool's mean latency, the time constant by which
// what Charge left decays. The pool's core calls it as its estimate moves. Zero
// or less forgives everything charged so far.
func (b *Backend) SetMeanLatency(d time.Duration) { b.mean.Store(int64(d)) }

// Load returns the requests in flight plus what failed attempts still charge.
func (b *Backend) Load(now Instant) float64 {
	if b.ghost.Load() == 0 {
		return float64(b.inFlight.Load())
	}
	return float64(b.inFlight.Load()) + b.ghostAt(now)
}

// ghostAt returns the attempts still charged. What has decayed below one unit
// is cleared, so that a backend which recovered is back on the fast path.
func (b *Backend) ghostAt(now Instant) float64 {
	word := b.ghost.Load()
	units := ghostUnits(word, now, b.mean.Load())
	if units < 1 {
		if word != 0 {
			b.ghost.CompareAndSwap(word, 0)
		}
		return 0
	}
	return units / ghostOne
}

// ghostUnits decays a ghost word to now.
func ghostUnits(word uint64, now Instant, mean int64) float64 {
	units := float64(word >> ghostTickBits)
	if units == 0 || mean <= 0 {
		return 0
	}
	// The difference of two 40-bit clocks, sign extended: concurrent callers
	// may be a little out of order, which counts as no time at all.
	const spare = 64 - ghostTickBits
	ticks := int64((uint64(now)>>ghostTick-word)<<spare) >> spare
	if ticks <= 0 {
		return units
	}
	return units * math.Exp(-float64(ticks<<ghostTick)/float64(mean))
}

func packGhost(units uint64, now Instant) uint64 {
	if units == 0 {
		return 0
	}
	return units<<ghostTickBits | uint64(now)>>ghostTick&ghostTickMask
}

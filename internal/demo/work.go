// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Spread is how the work of requests is distributed about Delay.
type Spread string

// The spreads.
const (
	SpreadFixed       Spread = "fixed"       // every request costs Delay
	SpreadExponential Spread = "exponential" // memoryless, Delay on average
)

// work says when each answer is due: as an M/M/c or M/D/c server of queueing
// theory does, one queue for all slots, in order of arrival.
//
// The schedule is kept in time as it ought to be, not by the goroutines that
// wait for it: a timer that fires late delays one answer, and the slot is free
// for the next request at the planned instant all the same. So the service times
// are those that were asked for on a busy machine too.
type work struct {
	delay  time.Duration
	spread Spread

	mu    sync.Mutex
	dice  *rand.Rand  // of spreads
	slots []time.Time // when each is free; none: no limit
}

// newWork returns a schedule with so many slots (0: no limit). Equal seeds draw
// equal times in order of arrival; seed 0 draws others in every process.
func newWork(delay time.Duration, spread Spread, slots int, seed uint64) *work {
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &work{delay: delay, spread: spread, dice: rand.New(rand.NewPCG(seed, 0)), slots: make([]time.Time, slots)}
}

// take plans one request's work and returns when its answer is due. Work that is
// planned is done, whether or not its client waits for it.
func (w *work) take(now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	cost := w.delay
	if w.spread == SpreadExponential {
		cost = time.Duration(float64(cost) * w.dice.ExpFloat64())
	}
	if len(w.slots) == 0 {
		return now.Add(cost)
	}
	first := 0
	for i := range w.slots {
		if w.slots[i].Before(w.slots[first]) {
			first = i
		}
	}
	begin := now
	if w.slots[first].After(now) {
		begin = w.slots[first]
	}
	w.slots[first] = begin.Add(cost)
	return w.slots[first]
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
)

const (
	budgetSlots   = 10 // parts of the window
	budgetStripes = 4  // counters of one part, so that cores do not fight over one line
)

// budget counts requests and retries over a sliding window of ten parts. It is
// lock-free; at the turn of a part a few counts may be lost.
type budget struct {
	rules    atomic.Pointer[budgetRules]
	part     time.Duration
	requests atomic.Uint64 // of parts that are over and gone
	retries  atomic.Uint64 // granted since the start
	slots    [budgetSlots + 1]budgetSlot
}

// budgetRules is what the budget allows.
type budgetRules struct {
	share float64
	floor float64 // retries in a window that are always allowed
}

type budgetSlot struct {
	part     atomic.Int64 // which part of the time line the slot counts
	retries  atomic.Int64
	_        [48]byte
	requests [budgetStripes]struct {
		n atomic.Int64
		_ [56]byte
	}
}

func (b *budget) init(c *Budget) {
	window := c.window()
	b.allow(c)
	b.part = max(window/budgetSlots, 1)
	for i := range b.slots {
		b.slots[i].part.Store(-1 << 62)
	}
}

// allow sets what the budget allows; what it has counted stays.
func (b *budget) allow(c *Budget) {
	b.rules.Store(&budgetRules{share: c.Share, floor: c.MinPerSecond * c.window().Seconds()})
}

func (c *Budget) window() time.Duration {
	if c.Window <= 0 {
		return 10 * time.Second
	}
	return c.Window
}

// follow begins a budget where another one ends, over another window.
func (b *budget) follow(old *budget, c *Budget) {
	b.init(c)
	b.requests.Store(old.total())
	b.retries.Store(old.retries.Load())
}

// partOf numbers the parts of the time line, the ones before zero too.
func (b *budget) partOf(now balance.Instant) int64 {
	part := int64(now) / int64(b.part)
	if int64(now)%int64(b.part) < 0 {
		part--
	}
	return part
}

// slot returns the slot for now, emptied when its part has passed.
func (b *budget) slot(now balance.Instant) *budgetSlot {
	part := b.partOf(now)
	const n = budgetSlots + 1
	s := &b.slots[(part%n+n)%n]
	if old := s.part.Load(); old != part && old < part && s.part.CompareAndSwap(old, part) {
		var n int64
		for i := range s.requests {
			n += s.requests[i].n.Swap(0)
		}
		b.requests.Add(uint64(n))
		s.retries.Store(0)
	}
	return s
}

// begin counts one client request. The stripe is chosen by the time's low
// bits, which differ between cores as well as anything at hand.
func (b *budget) begin(now balance.Instant) {
	b.slot(now).requests[uint64(now)>>4%budgetStripes].n.Add(1)
}

// sums returns what the window holds.
func (b *budget) sums(now balance.Instant) (requests, retries int64) {
	part := b.partOf(now)
	for i := range b.slots {
		s := &b.slots[i]
		if p := s.part.Load(); p <= part-budgetSlots || p > part {
			continue
		}
		retries += s.retries.Load()
		for j := range s.requests {
			requests += s.requests[j].n.Load()
		}
	}
	return requests, retries
}

func (b *budget) allowed(requests int64) float64 {
	r := b.rules.Load()
	return max(r.share*float64(requests), r.floor)
}

// spend takes one retry, or refuses. With force it is taken in any case.
func (b *budget) spend(now balance.Instant, force bool) bool {
	s := b.slot(now)
	s.retries.Add(1)
	if requests, retries := b.sums(now); !force && float64(retries) > b.allowed(requests) {
		s.retries.Add(-1)
		return false
	}
	b.retries.Add(1)
	return true
}

// remaining returns the part of the budget that is left, 0..1.
func (b *budget) remaining(now balance.Instant) float64 {
	requests, retries := b.sums(now)
	allowed := b.allowed(requests)
	if allowed <= 0 {
		return 0
	}
	return min(max(1-float64(retries)/allowed, 0), 1)
}

// total returns all requests counted since the start.
func (b *budget) total() uint64 {
	n := b.requests.Load()
	for i := range b.slots {
		for j := range b.slots[i].requests {
			n += uint64(b.slots[i].requests[j].n.Load())
		}
	}
	return n
}

// BeginRequest counts one client request, whatever becomes of it: the retry
// budget is a share of these. It is called once per request, not per attempt.
func (p *Pool) BeginRequest(now balance.Instant) { p.budget.Load().begin(now) }

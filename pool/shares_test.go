// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

var allSigns = health.Overload{Enabled: true, RetryAfter503: true, ORCA: true, GRPCExhausted: true, QueueFull: true}

// TestSlowStartIsTheFairShare holds a pool's newcomer to the line that its ramp
// draws: at a share s it gets s of its fair part of the picks, more or less a
// quarter for how p2c redraws, and more each second. Idle backends, 20,000 picks at
// each instant, fixed seed: a standard deviation is 2 % at the fair part.
func TestSlowStartIsTheFairShare(t *testing.T) {
	var now balance.Instant
	cfg := benchPool(0, func(c *Config) {
		c.SlowStart = SlowStart{Window: 10 * time.Second, From: 0.1}
		c.Active = health.Active{}
	}).cfg
	p := New(cfg, quiet{}, func() balance.Instant { return now })
	defer p.Close()
	p.Update(benchSpecs(4))
	now = now.Add(time.Second)
	p.Update(benchSpecs(5))
	p.Advance()
	newcomer := p.core.order[4].b
	if now = now.Add(publishEvery); newcomer.Ramp() == nil {
		t.Fatal("no slow start")
	}
	p.Advance()
	last, before, rnd := 0.0, 0.0, uint64(1)
	for range 11 {
		got := 0
		const n = 20000
		for range n {
			var l Lease
			rnd = mix(rnd)
			if p.Pick(&l, &balance.Request{Rand: rnd, Now: now}) != Granted {
				t.Fatal("refused")
			}
			got += btoi(l.Backend() == newcomer)
			l.Done(Outcome{Now: now, Kind: Canceled})
		}
		s := newcomer.ShareAt(now)
		fair := float64(got) / n * 5
		if math.Abs(fair-s) > s/4+0.01 || fair < before {
			t.Errorf("at share %.2f the newcomer gets %.3f of its part, %.3f a second ago", s, fair, before)
		}
		last, before = s, fair
		now = now.Add(time.Second)
		p.Advance()
	}
	if last != 1 || newcomer.Ramp() != nil {
		t.Errorf("share %v in the end, ramp %v", last, newcomer.Ramp())
	}
}

// TestHeadroomCountsSlowStart: a 503 with Retry-After is retried only where more
// than half a share is, and a newcomer's is what its ramp says.
func TestHeadroomCountsSlowStart(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{Share: 1, MinPerSecond: 1000} })
	defer p.Close()
	a, b := p.core.order[0].b, p.core.order[1].b
	b.SetRamp(&balance.Ramp{Start: 0, Window: 10 * time.Second, From: 0.1})
	rr := NewRetryRules(3, true, []int{503}, time.Minute)
	f := Failure{Kind: Success, Status: 503, RetryAfter: true, Sent: true, Replayable: true, Backend: a}
	for _, c := range []struct {
		at    time.Duration
		again bool
	}{{0, false}, {4 * time.Second, false}, {6 * time.Second, true}} {
		if d := p.Next(balance.Instant(c.at), &rr, &Try{}, f, 1); d.Again != c.again {
			t.Errorf("%v: %+v", c.at, d)
		}
	}
}

// TestTunnelsTeachNoLatency: an upgraded connection counts as an answer and says
// nothing about latency, however long it was.
func TestTunnelsTeachNoLatency(t *testing.T) {
	var now balance.Instant
	p := New(benchPool(0, nil).cfg, quiet{}, func() balance.Instant { return now })
	defer p.Close()
	p.Update(benchSpecs(1))
	for range 10 {
		for i := range 2 {
			var l Lease
			p.Pick(&l, &balance.Request{Now: now})
			o := Outcome{Now: now, Status: 200, FirstByte: 10 * time.Millisecond, Total: time.Second}
			if i == 1 {
				o = Outcome{Now: now, Status: 101, Total: time.Hour, Tunnel: true}
			}
			l.Done(o)
		}
		now = now.Add(6 * time.Second)
		p.Advance()
	}
	b := p.Snapshot().Backends[0]
	if b.Requests != 20 || b.EWMA != 10*time.Millisecond || b.P99 > 12*time.Millisecond {
		t.Errorf("%d requests, mean %v, p99 %v", b.Requests, b.EWMA, b.P99)
	}
}

// TestQueueTimeoutIsASign: requests that gave up waiting say that the backends at
// their limit are short of it.
func TestQueueTimeoutIsASign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		cfg := benchPool(0, func(c *Config) {
			c.Active, c.Overload = health.Active{}, allSigns
			c.Limits = Limits{BackendRequests: 1, Queue: 100, QueueTimeout: time.Second}
		}).cfg
		p := New(cfg, quiet{}, func() balance.Instant { return balance.Instant(time.Since(start)) })
		p.Start()
		defer p.Close()
		p.Update(benchSpecs(1))
		var held Lease
		if got := p.Pick(&held, &balance.Request{}); got != Granted {
			t.Fatal(got)
		}
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				var l Lease
				if got := p.Wait(&l, &balance.Request{}, 0, nil); got != QueueTimeout {
					t.Errorf("%v", got)
				}
			})
		}
		all.Wait()
		time.Sleep(6 * time.Second) // in the bubble
		if b := p.Snapshot().Backends[0]; b.Health != health.StateOverloaded || b.Share >= 1 {
			t.Errorf("%v with share %v", b.Health, b.Share)
		}
		held.Done(Outcome{Kind: Canceled})
	})
}

// TestSignsFromManyRequests counts under the race detector what many requests say
// at once, with the core at work.
func TestSignsFromManyRequests(t *testing.T) {
	var mu sync.Mutex
	var now balance.Instant
	clock := func() balance.Instant { mu.Lock(); defer mu.Unlock(); return now }
	cfg := benchPool(0, func(c *Config) { c.Active, c.Overload = health.Active{}, allSigns }).cfg
	p := New(cfg, quiet{}, clock)
	defer p.Close()
	p.Update(benchSpecs(3))
	const each = 500
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range each {
				var l Lease
				r := balance.Request{Rand: mix(uint64(g*each + i)), Now: clock()}
				if p.Pick(&l, &r) != Granted {
					t.Error("refused")
					return
				}
				l.Done(Outcome{
					Now: r.Now, Status: 200, Load: float64(i%2) * 2, HasLoad: true, FirstByte: time.Millisecond,
					RetryAfter: i%3 == 0, RetryAfterFor: time.Duration(i) * time.Millisecond, Client: uint64(g + 1),
				})
			}
		})
	}
	for range 20 {
		mu.Lock()
		now = now.Add(500 * time.Millisecond)
		mu.Unlock()
		p.Advance()
	}
	all.Wait()
	mu.Lock()
	now = now.Add(time.Second)
	mu.Unlock()
	p.Advance()
	total := uint64(0)
	for _, m := range p.core.order {
		total += m.answers.Load()
		if s := m.core.health.Share(); s < cfg.Overload.LeastShare() || m.core.health.BaseShare() != 1 {
			t.Errorf("%s has share %v", m.b.ID(), s)
		}
	}
	if total != 4*each {
		t.Errorf("%d answers counted, want %d", total, 4*each)
	}
}

// TestSignsAllocateNothing is the hot path of answers that are signs of overload,
// and of a member suspected of being slow.
func TestSignsAllocateNothing(t *testing.T) {
	p := benchPool(3, func(c *Config) { c.Overload = allSigns })
	defer p.Close()
	for _, m := range p.core.order {
		m.mode.Or(modeSlowAsk)
	}
	for i, o := range []Outcome{
		{Status: 503, RetryAfter: true, RetryAfterFor: time.Second},
		{Status: 200, HasLoad: true, Load: 0.95}, {Status: 200, Overloaded: true}, {Status: 101, Tunnel: true}, {Status: 429},
	} {
		n := uint64(0)
		if got := testing.AllocsPerRun(300, func() {
			var l Lease
			n++
			if p.Pick(&l, &balance.Request{Rand: mix(n)}) != Granted {
				t.Fatal("refused")
			}
			o.Client = n
			l.Done(o)
		}); got != 0 {
			t.Errorf("outcome %d: %v allocations", i, got)
		}
	}
}

// BenchmarkStatistics is what the look at everyone costs: once a second the sums,
// every fifth with the comparison. slow has half of them suspicious, so that
// medians are needed.
func BenchmarkStatistics(b *testing.B) {
	for _, n := range benchSizes {
		for _, slow := range []bool{false, true} {
			b.Run(fmt.Sprintf("backends=%d/slow=%v", n, slow), func(b *testing.B) {
				p := benchPool(n, nil)
				defer p.Close()
				for i, m := range p.core.order {
					took := 10 * time.Millisecond
					if slow && i%2 == 0 {
						took = 80 * time.Millisecond
					}
					for range 150 {
						o := Outcome{Status: 200, FirstByte: took, Client: 1}
						m.observe(p, 0, &o)
					}
				}
				now := balance.Instant(0)
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(statsEvery)
					p.core.statistics(now)
				}
			})
		}
	}
}

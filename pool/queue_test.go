// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/balance"
)

func TestWaitIsFirstComeFirstServed(t *testing.T) {
	inBubble(t, testConfig(), 1, func(t *testing.T, p *Pool, f *fleet) {
		var held Lease
		if got := p.Pick(&held, p.request()); got != Granted {
			t.Fatal(got)
		}
		var served []int
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				var l Lease
				if got := p.Wait(&l, p.request(), 0, nil); got != Granted {
					t.Errorf("waiter %d: %v", i, got)
					return
				}
				served = append(served, i) // one at a time holds the only slot
				time.Sleep(100 * time.Millisecond)
				l.Done(ok(p))
			})
			synctest.Wait()
		}
		if n := p.Snapshot().Queue; n != 3 {
			t.Errorf("%d in the queue", n)
		}
		var l Lease
		if got := p.Pick(&l, p.request()); got != Full {
			t.Errorf("Pick past the queue: %v", got)
		}
		if got := p.Wait(&l, p.request(), 0, nil); got != QueueFull {
			t.Errorf("the fourth: %v", got)
		}
		held.Done(ok(p))
		if got := p.Pick(&l, p.request()); got != Full {
			t.Errorf("a newcomer took the slot that was handed on: %v", got)
		}
		wg.Wait()
		if fmt.Sprint(served) != "[0 1 2]" {
			t.Errorf("served in the order %v", served)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	inBubble(t, testConfig(), 1, func(t *testing.T, p *Pool, f *fleet) {
		var held, l Lease
		p.Pick(&held, p.request())
		began := time.Now()
		if got := p.Wait(&l, p.request(), 0, nil); got != QueueTimeout || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		began = time.Now()
		if got := p.Wait(&l, p.request(), p.now().Add(300*time.Millisecond), nil); got != QueueTimeout || time.Since(began) != 300*time.Millisecond {
			t.Errorf("by deadline: %v after %v", got, time.Since(began))
		}
		abort := make(chan struct{})
		time.AfterFunc(100*time.Millisecond, func() { close(abort) })
		if got := p.Wait(&l, p.request(), 0, abort); got != Aborted {
			t.Errorf("by abort: %v", got)
		}
		// A new backend is room.
		time.AfterFunc(100*time.Millisecond, func() { p.Update(benchSpecs(2)) })
		if got := p.Wait(&l, p.request(), 0, nil); got != Granted || l.Backend().ID() != benchSpecs(2)[1].ID {
			t.Errorf("with a new backend: %v", got)
		}
		l.Done(ok(p))
		// An emptied pool says so at once.
		p.Pick(&l, p.request())
		time.AfterFunc(100*time.Millisecond, func() { p.Update(nil) })
		if got := p.Wait(new(Lease), p.request(), 0, nil); got != NoBackend {
			t.Errorf("in an emptied pool: %v", got)
		}
		held.Done(ok(p))
		l.Done(ok(p))
		if p.Snapshot().InFlight != 0 || p.queue.length.Load() != 0 {
			t.Error("something is left")
		}
	})
}

func TestPoolLimit(t *testing.T) {
	cfg := testConfig()
	cfg.Limits = Limits{PoolRequests: 2, Queue: 1}
	inBubble(t, cfg, 3, func(t *testing.T, p *Pool, f *fleet) {
		var a, b, c Lease
		p.Pick(&a, p.request())
		p.Pick(&b, p.request())
		if got := p.Pick(&c, p.request()); got != Full {
			t.Error(got)
		}
		if s := p.Snapshot().Saturation; s != 1 {
			t.Errorf("saturation %v", s)
		}
		a.Done(ok(p))
		if got := p.Pick(&c, p.request()); got != Granted {
			t.Error(got)
		}
		b.Done(ok(p))
		c.Done(ok(p))
		if n := p.inFlight.Load(); n != 0 {
			t.Errorf("%d in flight at the end", n)
		}
	})
}

// TestSecondAttemptHoldsNobodyUp: a request that has tried one backend waits for
// the other; those behind it must not wait for it beside an idle one.
func TestSecondAttemptHoldsNobodyUp(t *testing.T) {
	inBubble(t, testConfig(), 2, func(t *testing.T, p *Pool, f *fleet) {
		specs := benchSpecs(2)
		on := func(l *Lease, not string) {
			r := p.request()
			r.Tried.Add(balance.IDOf(not))
			if got := p.Pick(l, r); got != Granted || l.Backend().ID() == not {
				t.Fatal(got)
			}
		}
		var first, second Lease
		on(&first, specs[1].ID)
		on(&second, specs[0].ID)
		var wg sync.WaitGroup
		again, order := p.request(), ""
		again.Tried.Add(balance.IDOf(specs[0].ID))
		wg.Go(func() {
			var l Lease
			if got := p.Wait(&l, again, 0, nil); got != Granted || l.Backend().ID() != specs[1].ID {
				t.Errorf("the second attempt: %v", got)
				return
			}
			order += "2"
			l.Done(ok(p))
		})
		synctest.Wait()
		first.Done(ok(p))
		synctest.Wait()
		var l Lease
		if got := p.Pick(&l, p.request()); got != Full {
			t.Errorf("past the queue: %v", got)
		}
		if got := p.Wait(&l, p.request(), 0, nil); got != Granted || l.Backend().ID() != specs[0].ID {
			t.Fatalf("beside an idle backend: %v", got)
		}
		order += "1"
		// The same when room appears by itself, not by a lease's end.
		wg.Go(func() {
			var n Lease
			if got := p.Wait(&n, p.request(), 0, nil); got != Granted || n.Backend().ID() != specs[0].ID {
				t.Errorf("after the limit was lifted: %v", got)
			}
			n.Done(ok(p))
		})
		synctest.Wait()
		l.Backend().SetLimit(2)
		p.Update(specs)
		synctest.Wait()
		l.Done(ok(p))
		second.Done(ok(p))
		wg.Wait()
		if order != "12" {
			t.Errorf("served in the order %q", order)
		}
	})
}

// TestLimitsComeWhileOneFinishes: limits that are switched on at the very moment
// when a request ends leave nobody waiting for a slot that is free. The order is
// the one in which it can happen: the settings are read, they change, somebody
// finds the slot taken and queues, the slot is freed.
func TestLimitsComeWhileOneFinishes(t *testing.T) {
	p := benchPool(1, nil)
	open, tight := p.Config(), p.Config()
	open.Limits = Limits{}
	tight.Limits = Limits{BackendRequests: 1, Queue: 8}
	p.Reconfigure(open)
	var first, second Lease
	if got := p.Pick(&first, &balance.Request{}); got != Granted {
		t.Fatal(got)
	}
	seen := p.set.Load()
	p.Reconfigure(tight)
	r := &balance.Request{}
	if got := p.Pick(&second, r); got != Full {
		t.Fatal(got)
	}
	ticket, got := p.Enqueue(&second, r)
	if ticket == nil {
		t.Fatal(got)
	}
	p.letGo(seen, first.Backend(), 0)
	if got, ok := ticket.Poll(); !ok || got != Granted {
		t.Fatalf("the slot is free and somebody waits for it: %v", got)
	}
	second.Done(Outcome{Status: 200})
	if n := p.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

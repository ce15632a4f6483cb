// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

func reconfigured(t *testing.T, change func(*Config)) (*Pool, *atomic.Int64, func()) {
	t.Helper()
	var clock atomic.Int64
	clock.Store(int64(time.Hour))
	p := New(Config{Name: "p", First: true, Policy: balance.NewRoundRobin(), Retry: Budget{Share: 0.2, MinPerSecond: 3}},
		quiet{}, func() balance.Instant { return balance.Instant(clock.Load()) })
	t.Cleanup(p.Close)
	p.Update([]Spec{{ID: "a", URL: "http://a", Weight: 1}, {ID: "b", URL: "http://b", Weight: 1}})
	later := func() { clock.Add(int64(time.Second)); p.Advance() }
	later()
	if change != nil {
		cfg := p.Config()
		cfg.Policy = nil
		change(&cfg)
		p.Reconfigure(cfg)
	}
	return p, &clock, later
}

// TestReconfigureKeepsBackends changes the policy and every limit: backends stay
// the same objects, with their overrides and what is in flight.
func TestReconfigureKeepsBackends(t *testing.T) {
	p, clock, later := reconfigured(t, nil)
	now := func() balance.Instant { return balance.Instant(clock.Load()) }
	var held Lease
	if got := p.Pick(&held, &balance.Request{Now: now()}); got != Granted {
		t.Fatal(got)
	}
	b := held.Backend()
	weight := uint32(7)
	if err := p.Override(b.ID(), Override{Weight: &weight}); err != nil {
		t.Fatal(err)
	}
	p.BeginRequest(now())
	cfg := p.Config()
	cfg.Policy = balance.NewP2C(2)
	cfg.Limits = Limits{BackendRequests: 1, PoolRequests: 1, Queue: 1}
	p.Reconfigure(cfg)
	later()
	s := p.Snapshot()
	if s.Policy != "p2c" || s.Requests != 1 || s.InFlight != 1 {
		t.Errorf("after: %+v", s)
	}
	for _, x := range s.Backends {
		if x.ID == b.ID() && (x.Backend != b || x.Weight != 7 || !x.WeightOverridden || x.InFlight != 1) {
			t.Errorf("the backend is another one: %+v", x)
		}
	}
	// The limit of one counts requests from now on; the one held was not counted.
	var l, m Lease
	if got := p.Pick(&l, &balance.Request{Now: now()}); got != Granted || l.Backend() == b {
		t.Fatalf("with room on the other backend: %v", got)
	}
	if got := p.Pick(&m, &balance.Request{Now: now()}); got != Full {
		t.Fatalf("above both limits: %v", got)
	}
	l.Done(Outcome{Kind: Success, Status: 200, Now: now()})
	held.Done(Outcome{Kind: Success, Status: 200, Now: now()})
	if n := p.inFlight.Load(); n != 0 {
		t.Errorf("%d of the pool's limit are left in use", n)
	}
	// And away again, while one is counted and one waits.
	if got := p.Pick(&l, &balance.Request{Now: now()}); got != Granted {
		t.Fatal(got)
	}
	done := make(chan Refusal)
	go func() { done <- p.Wait(&m, &balance.Request{Now: now()}, 0, nil) }()
	for p.queue.length.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cfg.Limits, cfg.Policy = Limits{}, nil
	p.Reconfigure(cfg)
	if got := <-done; got != Granted {
		t.Errorf("a waiter when the limits went: %v", got)
	}
	l.Done(Outcome{Kind: Success, Status: 200, Now: now()})
	m.Done(Outcome{Kind: Success, Status: 200, Now: now()})
	if n := p.inFlight.Load(); n != 0 {
		t.Errorf("%d of a limit that is gone are in use", n)
	}
}

// TestReconfigureSwitchesChecks switches active checks off and on: what probes
// had said goes with them, and nobody loses share by their coming.
func TestReconfigureSwitchesChecks(t *testing.T) {
	p, clock, later := reconfigured(t, func(c *Config) {
		c.Active = health.Active{Enabled: true, Interval: time.Minute, FastInterval: time.Second, Timeout: time.Second, Fall: 1, Rise: 2}
	})
	share := func() (n int) {
		for _, b := range p.Snapshot().Backends {
			if b.Share > 0 {
				n++
			}
		}
		return n
	}
	if n := share(); n != 2 {
		t.Fatalf("%d serve when checks begin", n)
	}
	later()
	p.mu.Lock()
	for _, m := range p.core.order {
		p.step(event{kind: evProbe, m: m, result: health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseRefused, OnTrafficPort: true, Sent: balance.Instant(clock.Load())}})
	}
	p.mu.Unlock()
	if n := share(); n != 0 {
		t.Fatalf("%d serve after failed checks", n)
	}
	cfg := p.Config()
	cfg.Active.Enabled, cfg.Policy = false, nil
	p.Reconfigure(cfg)
	if n := share(); n != 2 {
		t.Errorf("%d serve without checks", n)
	}
	if _, ok := p.Advance(); !ok && !p.Ready() {
		t.Error("nothing is due and the pool never becomes ready")
	}
}

// TestReconfigureUnderLoad changes everything while requests are picked: no
// request is refused, and every slot comes back.
func TestReconfigureUnderLoad(t *testing.T) {
	p, clock, later := reconfigured(t, nil)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var l Lease
			for n := uint64(i); ; n += 4 {
				select {
				case <-stop:
					return
				default:
				}
				now := balance.Instant(clock.Load())
				r := balance.Request{Now: now, Rand: mix(n), Key: n, HasKey: true}
				p.BeginRequest(now)
				got := p.Pick(&l, &r)
				if got == Full {
					got = p.Wait(&l, &r, 0, nil)
				}
				if got != Granted {
					t.Errorf("refused: %v", got)
					return
				}
				l.Done(Outcome{Kind: Success, Status: 200, Now: now, FirstByte: time.Millisecond})
			}
		})
	}
	policies := []func() balance.Policy{
		func() balance.Policy { return balance.NewPeakEWMA(balance.EWMAConfig{}) },
		func() balance.Policy { return balance.NewMaglev(balance.HashConfig{BoundedLoad: 1.25, TableSize: 251}) },
		func() balance.Policy { return balance.NewRoundRobin() },
		func() balance.Policy { return nil },
	}
	for i := range 200 {
		cfg := p.Config()
		cfg.Policy = policies[i%len(policies)]()
		cfg.Limits = Limits{}
		if i%3 == 1 {
			cfg.Limits = Limits{BackendRequests: 1, PoolRequests: 2, Queue: 10}
		}
		cfg.Retry.Window = time.Duration(i%5) * time.Second
		cfg.Panic.Off = i%2 == 0
		p.Reconfigure(cfg)
		later()
	}
	close(stop)
	all.Wait()
	s := p.Snapshot()
	if s.InFlight != 0 || p.inFlight.Load() != 0 {
		t.Errorf("%d in flight, %d of the limit in use", s.InFlight, p.inFlight.Load())
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// fleet is a driver whose backends answer probes after some time.
type fleet struct {
	mu       sync.Mutex
	after    time.Duration
	answer   func(id string) health.ProbeResult
	now      func() balance.Instant
	attached map[string]int
	gone     map[string]int
	probes   map[string][]balance.Instant
	notices  []Notice
	live     sync.WaitGroup
}

func newFleet(now func() balance.Instant) *fleet {
	return &fleet{now: now, after: 10 * time.Millisecond, attached: map[string]int{}, gone: map[string]int{}, probes: map[string][]balance.Instant{},
		answer: func(string) health.ProbeResult { return health.ProbeResult{OnTrafficPort: true} }}
}

func (f *fleet) Attach(b *balance.Backend) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached[b.ID()]++
	return "attached to " + b.ID()
}

func (f *fleet) Probe(b *balance.Backend, timeout time.Duration, done func(health.ProbeResult)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.now()
	f.probes[b.ID()] = append(f.probes[b.ID()], sent)
	r, after := f.answer(b.ID()), f.after
	if r.Cause == health.CauseTimeout {
		after = timeout
	}
	f.live.Add(1)
	time.AfterFunc(after, func() {
		defer f.live.Done()
		r.Sent, r.At = sent, f.now()
		done(r)
	})
}

func (f *fleet) CloseIdle(*balance.Backend) {}

func (f *fleet) Gone(b *balance.Backend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[b.ID()]++
}

func (f *fleet) Notice(n Notice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notices = append(f.notices, n)
}

func (f *fleet) set(answer func(string) health.ProbeResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// checkGone demands one Gone for each Attach.
func (f *fleet) checkGone(t *testing.T) {
	t.Helper()
	f.live.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.attached {
		if f.gone[id] != n {
			t.Errorf("%s: attached %d times, gone %d times", id, n, f.gone[id])
		}
	}
}

func testConfig() Config {
	return Config{
		Name: "app", First: true, DrainDeadline: 30 * time.Second,
		Active:  health.Active{Enabled: true, Interval: 5 * time.Second, FastInterval: time.Second, Timeout: 2 * time.Second, Jitter: 0.1, Fall: 3, Rise: 2, HTTP: true},
		Passive: health.Passive{Enabled: true, Consecutive: 5, ConsecutiveConnect: 2, Eject: 30 * time.Second, MaxEject: 300 * time.Second, MaxEjected: 0.5},
		Panic:   Panic{Threshold: 0.5, Floor: 1},
		Limits:  Limits{BackendRequests: 1, Queue: 3, QueueTimeout: 2 * time.Second},
		Retry:   Budget{Share: 0.2, Window: 10 * time.Second, MinPerSecond: 3, Base: 25 * time.Millisecond, Max: 250 * time.Millisecond},
	}
}

// inBubble runs a started pool of n backends in virtual time.
func inBubble(t *testing.T, cfg Config, n int, body func(t *testing.T, p *Pool, f *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		now := func() balance.Instant { return balance.Instant(time.Since(epoch)) }
		f := newFleet(now)
		p := New(cfg, f, now)
		p.Update(benchSpecs(n))
		p.Start()
		body(t, p, f)
		p.Close()
		f.checkGone(t)
	})
}

func (p *Pool) request() *balance.Request {
	now := p.now()
	return &balance.Request{Rand: mix(uint64(now) + 1), Now: now}
}

func ok(p *Pool) Outcome {
	return Outcome{Now: p.now(), Status: 200, Sent: true, FirstByte: time.Millisecond, Total: time.Millisecond}
}

func TestReadyAfterTheFirstRound(t *testing.T) {
	inBubble(t, testConfig(), 3, func(t *testing.T, p *Pool, f *fleet) {
		if p.Ready() {
			t.Error("ready before the first probe was answered")
		}
		time.Sleep(15 * time.Millisecond)
		if !p.Ready() {
			t.Error("not ready after the first round")
		}
	})
	cfg := testConfig()
	inBubble(t, cfg, 0, func(t *testing.T, p *Pool, f *fleet) {
		time.Sleep(4900 * time.Millisecond)
		if p.Ready() {
			t.Error("an empty pool was ready before 5s")
		}
		time.Sleep(200 * time.Millisecond)
		if !p.Ready() {
			t.Error("not ready after 5s")
		}
	})
}

// TestDetectionTime holds what Detection promises: a backend that falls silent
// at any moment is out by then.
func TestDetectionTime(t *testing.T) {
	for i := range 20 {
		inBubble(t, testConfig(), 3, func(t *testing.T, p *Pool, f *fleet) {
			victim := benchSpecs(3)[1].ID
			time.Sleep(10*time.Second + time.Duration(i)*271*time.Millisecond)
			f.set(func(id string) health.ProbeResult {
				if id == victim {
					return health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseTimeout, OnTrafficPort: true}
				}
				return health.ProbeResult{OnTrafficPort: true}
			})
			within := p.Config().Active.Detection()
			if within != 11500*time.Millisecond {
				t.Errorf("Detection %v", within)
			}
			began := time.Now()
			for p.Snapshot().Backends[1].Share > 0 {
				time.Sleep(50 * time.Millisecond)
				if took := time.Since(began); took > within+500*time.Millisecond {
					t.Fatalf("still in after %v", took)
				}
			}
		})
	}
}

// TestProbesAreSpreadInTime checks interval and jitter over ten minutes.
func TestProbesAreSpreadInTime(t *testing.T) {
	cfg := testConfig()
	cfg.Limits = Limits{}
	inBubble(t, cfg, 2, func(t *testing.T, p *Pool, f *fleet) {
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		for id, at := range f.probes {
			if n := len(at); n < 115 || n > 125 {
				t.Errorf("%s was probed %d times in 10m at 5s", id, n)
			}
			short, long := time.Hour, time.Duration(0)
			for i := 1; i < len(at); i++ {
				gap := at[i].Sub(at[i-1])
				short, long = min(short, gap), max(long, gap)
			}
			if short < 4500*time.Millisecond || long > 5510*time.Millisecond || long-short < 500*time.Millisecond {
				t.Errorf("%s: gaps from %v to %v", id, short, long)
			}
		}
	})
}

func TestLeaseBugsAreCountedNotObeyed(t *testing.T) {
	cfg := testConfig()
	cfg.Limits = Limits{}
	inBubble(t, cfg, 1, func(t *testing.T, p *Pool, f *fleet) {
		before := LeaseBugs()
		var l Lease
		p.Pick(&l, p.request())
		b := l.Backend()
		if b.Attachment() != "attached to "+b.ID() {
			t.Errorf("attachment %v", b.Attachment())
		}
		l.Done(ok(p))
		l.Done(ok(p))
		if b.InFlight() != 0 || LeaseBugs() != before+1 {
			t.Errorf("in flight %d, bugs %d", b.InFlight(), LeaseBugs()-before)
		}
		p.Pick(&l, p.request())
		p.Pick(&l, p.request()) // taken while held: the first slot is not lost
		l.Done(ok(p))
		if b.InFlight() != 0 || LeaseBugs() != before+2 {
			t.Errorf("in flight %d, bugs %d", b.InFlight(), LeaseBugs()-before)
		}
	})
}

func TestCloseWithWorkInFlight(t *testing.T) {
	inBubble(t, testConfig(), 2, func(t *testing.T, p *Pool, f *fleet) {
		var l Lease
		p.Pick(&l, p.request())
		p.Close()
		p.Close()
		var m Lease
		if got := p.Pick(&m, p.request()); got != Granted {
			t.Errorf("a closed pool answers %v", got)
		}
		m.Done(ok(p))
		l.Done(ok(p))
		p.Update(nil)
	})
	p := New(testConfig(), newFleet(func() balance.Instant { return 0 }), func() balance.Instant { return 0 })
	p.Update(benchSpecs(1))
	p.Close() // never started
	p.driver.(*fleet).checkGone(t)
}

// TestRefusedIsNoticedByTraffic: a thousand failures wake the core a few
// times, and the backend is out after two.
func TestRefusedIsNoticedByTraffic(t *testing.T) {
	cfg := testConfig()
	cfg.Limits = Limits{}
	inBubble(t, cfg, 3, func(t *testing.T, p *Pool, f *fleet) {
		time.Sleep(time.Second)
		victim := benchSpecs(3)[0].ID
		f.set(func(id string) health.ProbeResult {
			if id == victim {
				return health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseRefused, OnTrafficPort: true}
			}
			return health.ProbeResult{OnTrafficPort: true}
		})
		hits := 0
		for i := range 1000 {
			var l Lease
			r := p.request()
			r.Rand = mix(uint64(i))
			if got := p.Pick(&l, r); got != Granted {
				t.Fatal(got)
			}
			o := ok(p)
			if l.Backend().ID() == victim {
				hits++
				o = Outcome{Now: p.now(), Kind: ConnectRefused}
			}
			l.Done(o)
			time.Sleep(time.Millisecond)
		}
		if hits > 2 {
			t.Errorf("%d requests met the dead backend", hits)
		}
		b := p.Snapshot().Backends[0]
		if b.Health != health.StateBroken || !b.Unreachable || b.Failures != uint64(hits) {
			t.Errorf("%+v", b)
		}
	})
}

// TestRealGoroutines runs everything at once under the race detector.
func TestRealGoroutines(t *testing.T) {
	epoch := time.Now()
	now := func() balance.Instant { return balance.Instant(time.Since(epoch)) }
	f := newFleet(now)
	f.after = time.Millisecond
	var flip atomic.Uint64
	f.answer = func(string) health.ProbeResult {
		switch flip.Add(1) % 5 {
		case 0:
			return health.ProbeResult{Outcome: health.NotReady}
		case 1:
			return health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseRefused, OnTrafficPort: true}
		default:
			return health.ProbeResult{OnTrafficPort: true}
		}
	}
	cfg := testConfig()
	cfg.Active.Interval, cfg.Active.FastInterval, cfg.Active.Timeout = 20*time.Millisecond, 5*time.Millisecond, 10*time.Millisecond
	cfg.Passive.Eject, cfg.Passive.MaxEject = 10*time.Millisecond, 50*time.Millisecond
	cfg.Limits = Limits{BackendRequests: 2, PoolRequests: 6, Queue: 4, QueueTimeout: 20 * time.Millisecond}
	bugs := LeaseBugs()
	p := New(cfg, f, now)
	p.Update(benchSpecs(5))
	p.Start()
	var wg sync.WaitGroup
	var granted atomic.Int64
	deadline := now().Add(20 * time.Second)
	over := func() bool { return granted.Load() >= 400 || now() > deadline }
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 7))
			rr := NewRetryRules(3, true, []int{502}, time.Second)
			for !over() {
				p.BeginRequest(now())
				var try Try
				r := &balance.Request{Rand: rnd.Uint64(), Now: now()}
				for {
					var l Lease
					got := p.Pick(&l, r)
					if got == Full {
						got = p.Wait(&l, r, 0, nil)
					}
					if got != Granted {
						break
					}
					granted.Add(1)
					if b := l.Backend(); b.InFlight() < 1 {
						t.Errorf("%s: %d in flight while held", b.ID(), b.InFlight())
					}
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond)
					o := Outcome{Now: now(), Status: 200, Sent: true, Client: rnd.Uint64N(3), Total: time.Millisecond}
					switch rnd.IntN(10) {
					case 0:
						o.Status = 502
					case 1:
						o = Outcome{Now: now(), Kind: OutcomeKind(rnd.IntN(int(Canceled) + 1)), Sent: rnd.IntN(2) == 0}
					}
					r.Tried.Add(l.Backend().Hash())
					l.Done(o)
					if o.Kind == Success && o.Status == 200 {
						break
					}
					if d := p.Next(now(), &rr, &try, Failure{Kind: o.Kind, Status: o.Status, Sent: o.Sent, Replayable: true}, rnd.Uint64()); !d.Again {
						break
					}
				}
			}
		})
	}
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(99, 7))
		for !over() {
			specs := benchSpecs(5)
			p.Update(append(specs[:rnd.IntN(5)], specs[rnd.IntN(4)+1:]...))
			_ = p.Override(specs[rnd.IntN(5)].ID, Override{Admin: new(balance.Admin(rnd.IntN(3)))})
			p.Snapshot()
			time.Sleep(2 * time.Millisecond)
		}
	})
	wg.Wait()
	if s := p.Snapshot(); s.InFlight != 0 || s.Queue != 0 || p.inFlight.Load() != 0 {
		t.Errorf("left: %d in flight, %d waiting, %d in the pool", s.InFlight, s.Queue, p.inFlight.Load())
	}
	p.Close()
	f.checkGone(t)
	if LeaseBugs() != bugs {
		t.Errorf("%d lease bugs", LeaseBugs()-bugs)
	}
	if granted.Load() < 400 {
		t.Errorf("only %d requests were granted", granted.Load())
	}
}

// TestExportWhileServing exports a pool again and again while it works, into one
// that begins to: each export is whole enough to be taken in without a refusal.
func TestExportWhileServing(t *testing.T) {
	begin := time.Now()
	now := func() balance.Instant { return balance.Instant(time.Since(begin)) }
	cfg := Config{
		Name: "app", First: true, Policy: balance.NewPeakEWMA(balance.EWMAConfig{}),
		Active:  health.Active{Enabled: true, Interval: 2 * time.Millisecond, FastInterval: time.Millisecond, Timeout: time.Millisecond, Fall: 2, Rise: 2},
		Passive: health.Passive{Enabled: true, Consecutive: 3, ConsecutiveConnect: 2, Eject: time.Millisecond, MaxEject: 3 * time.Millisecond, MaxEjected: 0.5},
		Panic:   Panic{Threshold: 0.5, Floor: 1}, Overload: health.Overload{Enabled: true, RetryAfter503: true},
	}
	f := newFleet(now)
	p := New(cfg, f, now)
	specs := []Spec{{ID: "a", URL: "http://a", Weight: 1}, {ID: "b", URL: "http://b", Weight: 1}, {ID: "c", URL: "http://c", Weight: 2}}
	p.Update(specs)
	p.Start()
	var over atomic.Bool
	var work sync.WaitGroup
	for w := range uint64(3) {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(w, 0))
			for !over.Load() {
				l := &Lease{}
				p.BeginRequest(now())
				if p.Pick(l, &balance.Request{Rand: rnd.Uint64(), Now: now()}) != Granted {
					continue
				}
				o := Outcome{Now: now(), Status: 200, Sent: true, FirstByte: time.Millisecond, Total: time.Millisecond, Client: 1 + rnd.Uint64N(3)}
				switch rnd.IntN(8) {
				case 0:
					o.Status = 502
				case 1:
					o.Status, o.RetryAfter = 503, true
				case 2:
					o.Kind, o.Sent = ConnectRefused, false
				case 3:
					o.Status, o.Tunnel = 101, true
				}
				l.Done(o)
			}
		})
	}
	for range 150 {
		g := newFleet(now)
		q := New(cfg, g, now)
		q.Update(specs)
		if r := q.Restore(p.Export(), 0); r.Backends != 3 || len(r.Refused) > 0 {
			t.Errorf("%+v", r)
		}
		q.Start()
		q.Restore(p.Export(), time.Millisecond) // also in the midst of its work
		q.Close()
		g.live.Wait()
	}
	over.Store(true)
	work.Wait()
	p.Close()
	f.live.Wait()
}

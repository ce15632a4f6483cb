// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// The example of knee: 90 in flight at 280 ms, of which 100 ms are without load,
// give a limit of 64; latency that follows confirms it, latency that stays is
// taken for the work's own.
func TestKneeExample(t *testing.T) {
	const ms = float64(time.Millisecond)
	for _, c := range []struct {
		name    string
		r, base float64
	}{{"waits", 200 * ms, 100 * ms}, {"slower work", 280 * ms, 280 * ms}} {
		a := Adaptive{Enabled: true}
		k := knee{limit: a.ceiling(), base: 100 * ms, was: true}
		at := balance.Instant(0)
		feed := func(n, r float64) { // a second of n in flight at r
			for range 10 {
				at = at.Add(kneeEvery)
				answers := n / r * float64(kneeEvery)
				k.step(&a, at, measured{answers: uint64(answers), latency: answers * r, total: answers * r, shed: 1, inFlight: int64(n)})
			}
		}
		for k.limit >= unlimited {
			if feed(90, 280*ms); at > balance.Instant(time.Minute) {
				t.Fatalf("%s: no limit", c.name)
			}
		}
		if k.limit < 63 || k.limit > 65 {
			t.Errorf("%s: the limit is %.1f, want 64", c.name, k.limit)
		}
		for range 10 {
			if feed(60, c.r); !k.tests.on {
				break
			}
		}
		if k.tests.on || k.base < 0.95*c.base || k.base > 1.05*c.base {
			t.Errorf("%s: experiment under way: %v, latency without load %.0f ms, want %.0f", c.name, k.tests.on, k.base/ms, c.base/ms)
		}
	}
}

// What an adaptive limit has found is known to the process that comes after this
// one, under the limits that it has itself, and goes on growing old.
func TestAdaptiveOutlives(t *testing.T) {
	on := func(a Adaptive) func(*Config) {
		a.Enabled = true
		return func(c *Config) { c.Limits.Adaptive = a }
	}
	now := balance.Instant(5 * time.Minute)
	make := func(edit func(*Config)) *Pool {
		p := benchPool(2, edit)
		p.now = func() balance.Instant { return now }
		p.Advance()
		return p
	}
	a := make(on(Adaptive{}))
	if s := a.Export().Adaptive; s != (SavedAdaptive{}) {
		t.Errorf("nothing has been found, exported %+v", s)
	}
	a.set.Load().adaptive.knee = knee{limit: 64, base: 1e8, sure: true, was: true, shed: now.Add(-2 * time.Second), next: now.Add(time.Minute), began: now}
	text, err := json.Marshal(a.Export())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		edit  func(*Config)
		limit int64
	}{
		{"the same", on(Adaptive{}), 64},
		{"a lower ceiling", on(Adaptive{Ceiling: 40}), 40},
		{"a higher floor", on(Adaptive{Floor: 80}), 80},
		{"off", func(*Config) {}, 0},
	} {
		var saved Saved
		if err := json.Unmarshal(text, &saved); err != nil {
			t.Fatal(err)
		}
		b := make(c.edit)
		if r := b.Restore(saved, time.Second); len(r.Refused) > 0 {
			t.Errorf("%s: %v", c.name, r.Refused)
		}
		if s := b.Snapshot().Adaptive; s.Limit != c.limit || s.Enabled && (s.Base != 100*time.Millisecond || s.Limits[balance.HighPriority] != c.limit) {
			t.Errorf("%s: %+v", c.name, s)
		}
		if set := b.set.Load().adaptive; set != nil {
			if k := &set.knee; !k.sure || !k.was || k.shed != now.Add(-3*time.Second) || k.next != now.Add(59*time.Second) {
				t.Errorf("%s: %+v", c.name, k)
			}
		}
		b.Close()
	}
	for _, bad := range []SavedAdaptive{{Limit: -1}, {Limit: math.Inf(1)}, {Base: math.NaN()}, {Limit: 20, Base: -1}} {
		s := Saved{Adaptive: bad}
		if s.check() == "" {
			t.Errorf("%+v is taken", bad)
		}
	}
	a.Close()
}

// Requests are let in by priority up to their part of the limit, take nothing when
// they are refused, and give all back, whatever comes between: queues, slots that
// are handed on, and the limit's coming and going.
func TestAdaptiveSlots(t *testing.T) {
	cfg := Config{Limits: Limits{BackendRequests: 4, Queue: 5, Adaptive: Adaptive{Enabled: true, Floor: 10, Ceiling: 10}}}
	p := New(cfg, quiet{}, func() balance.Instant { return 1 })
	p.Update([]Spec{{ID: "a", URL: "a", Weight: 1}, {ID: "b", URL: "b", Weight: 1}, {ID: "c", URL: "c", Weight: 1}})
	first := p.set.Load().adaptive
	for pr, want := range map[balance.Priority]int64{balance.LowPriority: 8, balance.NormalPriority: 9, balance.HighPriority: 10} {
		var held []*Lease
		for {
			l := &Lease{}
			if got := p.Pick(l, &balance.Request{Priority: pr, Rand: rand.Uint64(), Now: 1}); got != Granted {
				if got != Shed || p.Explain(&balance.Request{Priority: pr, Now: 1}).Refused[0].Refusal != Shed {
					t.Errorf("%v: %v", pr, got)
				}
				break
			}
			held = append(held, l)
		}
		if int64(len(held)) != want || p.Snapshot().Adaptive.InFlight != want {
			t.Errorf("%v: %d were let in, %d counted, want %d", pr, len(held), p.Snapshot().Adaptive.InFlight, want)
		}
		for _, l := range held {
			l.Return(1)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var held []*Lease
	waiting := map[*Ticket]*Lease{}
	for range 20_000 {
		for ticket, l := range waiting {
			if got, ok := ticket.Poll(); ok {
				if delete(waiting, ticket); got == Granted {
					held = append(held, l)
				}
			}
		}
		switch n := rng.IntN(40); {
		case n == 0:
			cfg.Limits.Adaptive.Enabled = !cfg.Limits.Adaptive.Enabled
			p.Reconfigure(cfg)
		case n < 20:
			l, r := &Lease{}, &balance.Request{Priority: balance.Priority(rng.IntN(3)), Rand: rng.Uint64(), Now: 1}
			got := p.Pick(l, r)
			if got == Full {
				var ticket *Ticket
				if ticket, got = p.Enqueue(l, r); ticket != nil {
					waiting[ticket] = l
				}
			}
			if got == Granted {
				held = append(held, l)
			}
		case len(held) > 0:
			i := rng.IntN(len(held))
			held[i].Done(Outcome{Now: 2, Status: 200})
			held = append(held[:i], held[i+1:]...)
		}
	}
	for len(held)+len(waiting) > 0 {
		for ticket, l := range waiting {
			if got, ok := ticket.Poll(); ok {
				if delete(waiting, ticket); got == Granted {
					held = append(held, l)
				}
			}
		}
		for _, l := range held {
			l.Done(Outcome{Now: 2, Status: 200})
		}
		held = held[:0]
	}
	if n := first.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight at rest under the first limit", n)
	}
	if a := p.set.Load().adaptive; a != nil && a.inFlight.Load() != 0 {
		t.Errorf("%d in flight at rest", a.inFlight.Load())
	}
}

// A pick and its end allocate nothing with the limit on.
func TestAdaptiveAllocatesNothing(t *testing.T) {
	p := benchPool(3, func(c *Config) { c.Limits.Adaptive.Enabled = true })
	var l Lease
	r := balance.Request{Now: 1}
	if n := testing.AllocsPerRun(200, func() {
		r.Rand++
		p.Pick(&l, &r)
		l.Done(Outcome{Now: 2, Status: 200})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"

	"github.com/weirlb/weir/balance"
)

// meddling is a policy that calls back at the worst moment: when a backend
// has been chosen and not yet reserved.
type meddling struct {
	balance.Policy
	chosen func(*balance.Backend)
	picks  int
}

type meddlingPicker struct {
	balance.Picker
	p *meddling
}

func (p *meddling) Build(s *balance.Set) balance.Picker { return &meddlingPicker{p.Policy.Build(s), p} }

func (p *meddlingPicker) Pick(r balance.Request) (*balance.Backend, bool) {
	b, ok := p.Picker.Pick(r)
	p.p.picks++
	if ok && p.p.chosen != nil {
		p.p.chosen(b)
	}
	return b, ok
}

// TestDrainBeatsPick drains, removes or fills the backend between the policy's
// choice and the reservation.
func TestDrainBeatsPick(t *testing.T) {
	policy := &meddling{Policy: balance.NewRandom()}
	p := benchPool(0, func(c *Config) { c.Policy = policy })
	defer p.Close()
	p.Update(benchSpecs(2))
	a, b := p.core.order[0].b, p.core.order[1].b
	once := func(do func(*balance.Backend)) {
		policy.chosen = func(b *balance.Backend) {
			policy.chosen = nil
			do(b)
		}
	}
	var l Lease
	var drained *balance.Backend
	once(func(b *balance.Backend) {
		drained = b
		if err := p.Override(b.ID(), Override{Admin: new(balance.Draining)}); err != nil {
			t.Error(err)
		}
	})
	if got := p.Pick(&l, &balance.Request{}); got != Granted || l.Backend() == drained {
		t.Errorf("%v on %v, drained was %v", got, l.Backend().ID(), drained.ID())
	}
	l.Done(Outcome{Kind: Canceled})
	once(func(*balance.Backend) { p.Update(nil) })
	if got := p.Pick(&l, &balance.Request{}); got == Granted {
		t.Errorf("granted %s, which is gone", l.Backend().ID())
	}
	if a.InFlight() != 0 || b.InFlight() != 0 {
		t.Errorf("in flight %d and %d", a.InFlight(), b.InFlight())
	}
}

// TestTheSlotIsHandedOn: with a waiter, Done neither frees the slot nor asks
// the policy; but not when the backend has been drained meanwhile.
func TestTheSlotIsHandedOn(t *testing.T) {
	policy := &meddling{Policy: balance.NewP2C(2)}
	p := benchPool(0, func(c *Config) {
		c.Policy = policy
		c.Limits = Limits{BackendRequests: 1, PoolRequests: 10, Queue: 5}
	})
	defer p.Close()
	p.Update(benchSpecs(2))
	var held [2]Lease
	for i := range held {
		if got := p.Pick(&held[i], &balance.Request{Rand: uint64(i)}); got != Granted {
			t.Fatal(got)
		}
	}
	wait := func(tried *balance.Backend) *waiter {
		r := &balance.Request{}
		if tried != nil {
			r.Tried.Add(tried.Hash())
		}
		w := &waiter{l: &Lease{}, r: r, ready: make(chan Refusal, 1)}
		if got := p.enqueue(w); got != Full {
			t.Fatal(got)
		}
		return w
	}
	first := held[0].Backend()
	avoids, takes := wait(first), wait(nil)
	picks := policy.picks
	held[0].Done(Outcome{Status: 200})
	if policy.picks != picks {
		t.Error("the policy was asked")
	}
	if len(takes.ready) != 1 || len(avoids.ready) != 0 || takes.l.Backend() != first || first.InFlight() != 1 {
		t.Error("the slot did not go to the oldest that has not tried the backend")
	}
	// Drained while someone waits: no new work, the waiter stays.
	if err := p.Override(first.ID(), Override{Admin: new(balance.Draining)}); err != nil {
		t.Fatal(err)
	}
	takes.l.Done(Outcome{Status: 200})
	if len(avoids.ready) != 0 || first.InFlight() != 0 {
		t.Error("a drained backend got new work")
	}
	held[1].Done(Outcome{Status: 200})
	if len(avoids.ready) != 1 || avoids.l.Backend() == first {
		t.Error("the other slot was not handed on")
	}
	avoids.l.Done(Outcome{Status: 200})
	if n := p.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight in the pool", n)
	}
}

// TestStubbornPolicy: a policy that does not look at limits is asked once more
// with the full backend counted as tried.
func TestStubbornPolicy(t *testing.T) {
	p := benchPool(0, func(c *Config) {
		c.Policy = stubborn{}
		c.Limits = Limits{BackendRequests: 1}
	})
	defer p.Close()
	p.Update(benchSpecs(2))
	var a, b, c Lease
	for i, l := range []*Lease{&a, &b} {
		if got := p.Pick(l, &balance.Request{}); got != Granted {
			t.Errorf("pick %d: %v", i, got)
		}
	}
	if got := p.Pick(&c, &balance.Request{}); got != Full || a.Backend() == b.Backend() {
		t.Errorf("the third: %v", got)
	}
	a.Done(Outcome{Status: 200})
	b.Done(Outcome{Status: 200})
}

// stubborn takes the first that was not tried.
type stubborn struct{}

func (stubborn) Name() string { return "stubborn" }

func (stubborn) Build(s *balance.Set) balance.Picker { return stubbornPicker{s} }

type stubbornPicker struct{ s *balance.Set }

func (p stubbornPicker) Pick(r balance.Request) (*balance.Backend, bool) {
	for _, m := range p.s.Members() {
		if !r.Tried.Has(m.Backend.Hash()) {
			return m.Backend, true
		}
	}
	return nil, false
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// strangePool is a pool of random shape in a random state.
func strangePool(t *testing.T, rng *rand.Rand) *Pool {
	t.Helper()
	name := balance.Names()[rng.IntN(len(balance.Names()))]
	policy, err := balance.New(name, balance.Options{Hash: balance.HashConfig{TableSize: 251, BoundedLoad: []float64{0, 1.25}[rng.IntN(2)]}})
	if err != nil {
		t.Fatal(err)
	}
	var specs []Spec
	tiers, zones := 1+rng.IntN(3), 1+rng.IntN(3)
	for i := range 1 + rng.IntN(10) {
		s := Spec{ID: fmt.Sprintf("b%d", i), URL: "http://b", Weight: uint32(rng.IntN(4))}
		s.Zone, s.Priority, s.Backup = string(rune('A'+rng.IntN(zones))), uint8(rng.IntN(tiers)), rng.IntN(8) == 0
		specs = append(specs, s)
	}
	p := established(func(c *Config) {
		c.Policy, c.Instance = policy, rng.Uint64()
		c.Panic = Panic{Threshold: 0.5, Then: Then(rng.IntN(3))}
		c.Retry = Budget{Share: 0.2, MinPerSecond: float64(rng.IntN(2))}
		if rng.IntN(2) == 0 {
			c.Zone.Local = "A"
		}
		if rng.IntN(3) == 0 {
			c.Limits = Limits{BackendRequests: 2, Queue: 4, PoolRequests: int64(rng.IntN(2) * 9)}
		}
	}, specs)
	for i := range specs {
		trouble(t, rng, p, specs[i].ID)
	}
	p.Advance()
	for range rng.IntN(12) { // work in flight
		p.Pick(new(Lease), &balance.Request{Rand: rng.Uint64(), Now: p.now()})
	}
	return p
}

// trouble does something to a backend, or nothing.
func trouble(t *testing.T, rng *rand.Rand, p *Pool, id string) {
	t.Helper()
	m := p.core.byID[id]
	switch rng.IntN(9) {
	case 0:
		word := balance.Draining
		if err := p.Override(id, Override{Admin: &word}); err != nil {
			t.Fatal(err)
		}
	case 1:
		m.b.SetShare(0)
	case 2:
		m.b.SetShare(rng.Float64())
	case 3, 4:
		var l Lease // refused connections, the pool's own way
		for range 3 {
			l.take(p, m, m.b, p.now())
			m.b.Reserve()
			p.inFlight.Add(1)
			l.Done(Outcome{Now: p.now(), Kind: ConnectRefused})
			p.Advance()
		}
	}
}

// What is explained is what is picked: the same dice lead to the same backend,
// the candidates contain it, a choice that is named is it, and explaining changes
// nothing.
func TestExplainAgreesWithPick(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 14))
	named, shared, refused := 0, 0, 0
	for round := range 24 {
		p := strangePool(t, rng)
		r := balance.Request{Rand: rng.Uint64(), Now: p.now(), Key: rng.Uint64(), HasKey: rng.IntN(3) > 0}
		e := p.Explain(&r)
		again := e
		if round%4 == 0 {
			again = p.Explain(&r)
		}
		again.Snapshot.At = e.Snapshot.At
		for i := range again.Snapshot.Backends {
			again.Snapshot.Backends[i].Share = e.Snapshot.Backends[i].Share // the clock goes on
		}
		if !reflect.DeepEqual(e, again) {
			t.Fatalf("explaining changed something:\n%+v\n%+v", e, again)
		}
		sum := 0.0
		for _, c := range e.Candidates {
			sum += c.Chance
		}
		for _, f := range e.Refused {
			sum += f.Part
		}
		if sum < 1-1e-9 || sum > 1+1e-9 {
			t.Fatalf("chances add up to %v: %+v", sum, e)
		}
		for k := range 30 {
			q := balance.Throw(r, k*131)
			want, why := p.would(p.view.Load(), &q)
			var l Lease
			got := p.Pick(&l, &q)
			if got != why || l.Backend() != want {
				t.Fatalf("%s: picked %s (%v), explained %s (%v)", e.Snapshot.Policy, nameOf(l.Backend()), got, nameOf(want), why)
			}
			if got != Granted {
				refused++
				if !slices.ContainsFunc(e.Refused, func(f RefusedPart) bool { return f.Refusal == got }) {
					t.Fatalf("refused with %v, explained %+v", got, e.Refused)
				}
				continue
			}
			if !isCandidate(&e, want) {
				t.Fatalf("%s: %s is no candidate of %+v", e.Snapshot.Policy, want.ID(), e.Candidates)
			}
			if k == 0 && e.Choice != nil && e.Choice != want {
				t.Fatalf("%s: named %s, picked %s", e.Snapshot.Policy, e.Choice.ID(), want.ID())
			}
			if e.Keyed && r.HasKey && len(e.Refused) == 0 && e.Choice != want {
				t.Fatalf("%s: a key's choice is not named, picked %s", e.Snapshot.Policy, want.ID())
			}
			l.Return(p.now())
		}
		if e.Choice != nil {
			named++
		} else {
			shared++
		}
		agreeOnRetries(t, p, &e)
	}
	if named == 0 || shared == 0 || refused == 0 {
		t.Errorf("%d named, %d shared, %d refused: not all of it happened", named, shared, refused)
	}
}

func nameOf(b *balance.Backend) string {
	if b == nil {
		return "nobody"
	}
	return b.ID()
}

func isCandidate(e *Explanation, b *balance.Backend) bool {
	for _, c := range e.Candidates {
		if c.Backend == b {
			return c.Candidate
		}
	}
	return false
}

// agreeOnRetries compares what is said about failures with Next.
func agreeOnRetries(t *testing.T, p *Pool, e *Explanation) {
	t.Helper()
	for _, attempts := range []int{1, 2} {
		for _, replayable := range []bool{false, true} {
			rr := NewRetryRules(attempts, true, []int{502, 503}, 5*time.Second)
			now := p.now()
			for _, c := range p.ExplainRetry(now, &rr, e.After, replayable) {
				d := p.Next(now, &rr, new(Try), c.Failure, 1)
				if d.Again != c.Again || d.Redispatch != c.Redispatch || d.Why != c.Why {
					t.Fatalf("after %+v: explained %+v, Next says %+v", c.Failure, c, d)
				}
				if d.Again && !d.Redispatch { // what it spent would show in the next case
					p.budget.Load().slot(now).retries.Add(-1)
				}
			}
		}
	}
}

// Next says where a failed request goes, without moving anything.
func TestExplainNext(t *testing.T) {
	p := tieredPool(func(c *Config) { c.Policy = balance.NewRoundRobin() })
	r := balance.Request{Rand: 1, Now: p.now()}
	e := p.Explain(&r)
	if e.Choice == nil || e.After != e.Choice || len(e.Next) != 1 || e.Next[0].Backend == e.Choice || e.Next[0].Chance != 1 {
		t.Fatalf("choice %s, next %+v", nameOf(e.Choice), e.Next)
	}
	var l Lease
	if p.Pick(&l, &r); l.Backend() != e.Choice {
		t.Errorf("picked %s, explained %s", nameOf(l.Backend()), e.Choice.ID())
	}
	for i, c := range e.Candidates {
		if first := e.Snapshot.Backends[i].Tier == 0; c.Candidate != first || !first && c.Why != "tier" {
			t.Errorf("%s is a candidate: %v (%s)", c.Backend.ID(), c.Candidate, c.Why)
		}
	}
}

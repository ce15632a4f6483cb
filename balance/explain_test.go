// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// explainedSet makes a random set in random states.
func explainedSet(rng *rand.Rand, now balance.Instant) *balance.Set {
	n := 1 + rng.IntN(9)
	if rng.IntN(12) == 0 {
		n = 250 + rng.IntN(60) // around the bounds of exact comparison
	}
	equal, calm := rng.IntN(2) == 0, rng.IntN(3) == 0
	var total balance.Total
	members := make([]balance.Member, n)
	for i := range members {
		b := balance.NewBackend(fmt.Sprintf("b%d", i), "")
		b.SetTotal(&total)
		m := balance.Member{Backend: b, Weight: 1}
		if !equal {
			m.Weight = uint32(rng.IntN(6))
		}
		if rng.IntN(3) == 0 {
			b.SetLimit(int64(1 + rng.IntN(4)))
		}
		for range rng.IntN(5) {
			b.Reserve()
		}
		if !calm {
			disturb(rng, b, now)
		}
		members[i] = m
	}
	return balance.NewSet(members, rng.Uint64(), rng.IntN(5) == 0)
}

// disturb puts a backend into some state.
func disturb(rng *rand.Rand, b *balance.Backend, now balance.Instant) {
	switch rng.IntN(8) {
	case 0:
		b.SetAdmin(balance.Draining)
	case 1:
		b.SetShare(0)
	case 2:
		b.SetShare(rng.Float64())
	case 3:
		b.SetUnreachable(true)
	case 4:
		b.SetSuspect(true)
	case 5:
		b.SetRamp(&balance.Ramp{Start: now.Add(-time.Second), Window: 10 * time.Second, From: 0.1})
	case 6:
		b.Charge(now, 100*time.Millisecond, 0)
	}
}

// What is explained is what is picked: the candidates contain the pick, a choice
// that is named is it, nothing is moved by explaining, and a still picker answers
// as the real one does.
func TestExplainAgreesWithPick(t *testing.T) {
	rounds := 60
	if raceEnabled {
		rounds = 5
	}
	for _, name := range balance.Names() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, uint64(len(name))))
			named := 0
			for range rounds {
				now := balance.Instant(time.Hour) + balance.Instant(rng.Int64N(int64(time.Hour)))
				set := explainedSet(rng, now)
				opt := balance.Options{Hash: balance.HashConfig{TableSize: 1021, Spill: rng.IntN(3) * 2}}
				if rng.IntN(2) == 0 {
					opt.Hash.BoundedLoad = 1.25
				}
				if rng.IntN(2) == 0 {
					opt.Hash.Fallback = balance.NewRoundRobin()
				}
				policy, err := balance.New(name, opt)
				if err != nil {
					t.Fatal(err)
				}
				if l, ok := policy.(balance.Learner); ok {
					for _, m := range set.Members() {
						l.Learn(m.Backend, balance.Observation{Now: now - 1e8, FirstByte: time.Duration(1+rng.IntN(500)) * time.Millisecond})
					}
				}
				r := balance.Request{Rand: rng.Uint64(), Now: now, Key: rng.Uint64(), HasKey: rng.IntN(4) > 0}
				if rng.IntN(3) == 0 {
					r.Tried.Add(set.Members()[rng.IntN(set.Len())].Backend.Hash())
				}
				if rng.IntN(6) == 0 {
					r.Prefer = set.Members()[rng.IntN(set.Len())].Backend.Hash()
				}
				if agree(t, policy, set, r) {
					named++
				}
				if t.Failed() {
					return
				}
			}
			if named == 0 && name != "random" {
				t.Error("no choice was ever named")
			}
		})
	}
}

// agree compares one explanation with picks, and reports whether it named one.
func agree(t *testing.T, policy balance.Policy, set *balance.Set, r balance.Request) bool {
	t.Helper()
	p := policy.Build(set)
	e := balance.Explain(p, r)
	if again := balance.Explain(p, r); !reflect.DeepEqual(e, again) {
		t.Errorf("explaining changed something:\n%+v\n%+v", e, again)
	}
	x, ok := p.(balance.Explainer)
	if !ok {
		t.Fatalf("%T explains nothing", p)
	}
	for k := range 40 {
		q := balance.Throw(r, k*97)
		still, _ := x.Still().Pick(q)
		if k > 0 && e.Choice == nil {
			e = x.Explain(q) // a turn has been taken: what is drawn needs no more than the rules
		} else if k > 0 {
			e = balance.Explain(p, q)
		}
		got, ok := p.Pick(q)
		if got != still {
			t.Errorf("the still picker picks %v, the real one %v", idOf(still), idOf(got))
		}
		if e.Choice != nil && got != e.Choice {
			t.Errorf("%s picks %v, explained %v", policy.Name(), idOf(got), e.Choice.ID())
		}
		if ok != anyCandidate(e) {
			t.Errorf("%s picks somebody: %v, explained %+v", policy.Name(), ok, e)
		}
		if ok && !candidate(e, got) {
			t.Errorf("%s picks %s, which is no candidate of %+v", policy.Name(), got.ID(), e)
		}
		keyed := len(e.Order) > 0
		if keyed && k == 0 && ok && (e.Choice != got || e.Draws != 1) {
			t.Errorf("a keyed choice is not named: %v of %d draws, picks %s", e.Choice, e.Draws, got.ID())
		}
		if s := lastStep(e); keyed && r.Prefer == 0 && s.Verdict == "taken" && s.Backend != got {
			t.Errorf("the key's order ends at %s, picked is %s", s.Backend.ID(), got.ID())
		}
		if t.Failed() {
			return false
		}
		if e.Choice != nil {
			if k == 3 {
				return true // each costs thousands of picks
			}
		}
	}
	return e.Choice != nil
}

func idOf(b *balance.Backend) string {
	if b == nil {
		return "nobody"
	}
	return b.ID()
}

func anyCandidate(e balance.Explanation) bool {
	for _, m := range e.Members {
		if m.Candidate {
			return true
		}
	}
	return false
}

func candidate(e balance.Explanation, b *balance.Backend) bool {
	for _, m := range e.Members {
		if m.Backend == b {
			return m.Candidate
		}
	}
	return false
}

func lastStep(e balance.Explanation) balance.Step {
	if len(e.Order) == 0 {
		return balance.Step{}
	}
	return e.Order[len(e.Order)-1]
}

// least_request with one least loaded member names it; with two it says how
// chance divides.
func TestExplainLeastRequest(t *testing.T) {
	a, b, c := balance.NewBackend("a", ""), balance.NewBackend("b", ""), balance.NewBackend("c", "")
	a.Reserve()
	b.Reserve()
	c.Reserve()
	c.Reserve()
	set := balance.NewSet([]balance.Member{{Backend: a, Weight: 1}, {Backend: b, Weight: 1}, {Backend: c, Weight: 1}}, 1, false)
	p := balance.NewLeastRequest().Build(set)
	e := balance.Explain(p, balance.Request{Rand: 5, Now: 1})
	if e.Choice != nil || !about(e.Members[0].Chance, 0.5) || !about(e.Members[1].Chance, 0.5) || e.Members[2].Chance != 0 {
		t.Errorf("a tie: %+v", e)
	}
	a.Release()
	if e = balance.Explain(p, balance.Request{Rand: 5, Now: 1}); e.Choice != a || e.Draws != 1 || e.Members[0].Chance != 1 {
		t.Errorf("one least: %+v", e)
	}
}

// Chances are those of the policy: weights for random, 2/3 for the idle one of
// three under p2c.
func TestExplainChances(t *testing.T) {
	backends := []*balance.Backend{balance.NewBackend("a", ""), balance.NewBackend("b", ""), balance.NewBackend("c", "")}
	var members []balance.Member
	for i, b := range backends {
		members = append(members, balance.Member{Backend: b, Weight: uint32(i + 1)})
	}
	e := balance.Explain(balance.NewRandom().Build(balance.NewSet(members, 1, false)), balance.Request{Rand: 9, Now: 1})
	for i, m := range e.Members {
		if !about(m.Chance, float64(i+1)/6) {
			t.Errorf("random, weight %d: chance %.3f", i+1, m.Chance)
		}
		members[i].Weight = 1
	}
	backends[0].Reserve()
	backends[1].Reserve()
	e = balance.Explain(balance.NewP2C(2).Build(balance.NewSet(members, 1, false)), balance.Request{Rand: 9, Now: 1})
	if !about(e.Members[2].Chance, 2.0/3) {
		t.Errorf("p2c, the idle one: %+v", e.Members[2])
	}
}

// 0.03: three standard deviations of 4096 draws are 0.024 at one half.
func about(got, want float64) bool { return got > want-0.03 && got < want+0.03 }

func BenchmarkExplain(b *testing.B) {
	set := explainedSet(rand.New(rand.NewPCG(1, 2)), balance.Instant(time.Hour))
	for _, name := range []string{"p2c", "maglev"} {
		policy, err := balance.New(name, balance.Options{})
		if err != nil {
			b.Fatal(err)
		}
		p := policy.Build(set)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				balance.Explain(p, balance.Request{Rand: 1, Now: balance.Instant(time.Hour), Key: 3, HasKey: true})
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/balance"
)

// Option changes what Policy demands or how it draws.
type Option func(*suite)

// Seed makes all random choices start from n instead of the fixed default.
func Seed(n uint64) Option { return func(s *suite) { s.seed = n } }

// Slack allows shares to be off by this much of what is fair, beyond what
// chance explains (5 standard deviations). The default is 0.05; a hash ring
// with few points needs more. Without load a policy is held to the same.
func Slack(f float64) Option { return func(s *suite) { s.slack = f } }

// Policy checks that the policies which build returns keep the contract of
// balance.Policy and balance.Picker. build is called for every check.
func Policy(t *testing.T, build func() balance.Policy, options ...Option) {
	s := &suite{build: build, seed: 1, slack: 0.05}
	for _, o := range options {
		o(s)
	}
	if build().Name() == "" {
		t.Error("the policy has no name")
	}
	t.Logf("seed %d, repeat with balancetest.Seed(%d)", s.seed, s.seed)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"nobody", nobody},
		{"shares idle", sharesIdle},
		{"shares held", sharesHeld},
		{"shares of the rest", sharesOfTheRest},
		{"oracle", oracle},
		{"excluded", excluded},
		{"panic", panicked},
		{"tried", triedLast},
		{"prefer", prefer},
		{"admission", admission},
		{"ramp", ramp},
		{"learning", learning},
		{"membership", membership},
		{"concurrent", concurrent},
		{"allocations", allocations},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
	if k, ok := build().(balance.Keyed); ok && k.Keyed() {
		t.Run("keyed", func(t *testing.T) { keyed(t, s) })
	}
}

// Concurrent is the part of Policy in which several goroutines pick, reserve,
// change states and rebuild at once: what the race detector can find fault with,
// in a tenth of the time that all of Policy takes under it.
func Concurrent(t *testing.T, build func() balance.Policy, options ...Option) {
	s := &suite{build: build, seed: 1, slack: 0.05}
	for _, o := range options {
		o(s)
	}
	concurrent(t, s)
}

type suite struct {
	build      func() balance.Policy
	seed       uint64
	slack      float64
	collateral float64
}

// rig is a set, its picker and the dice of one check.
type rig struct {
	*testing.T
	members []balance.Member
	set     *balance.Set
	policy  balance.Policy
	picker  balance.Picker
	dice    *rand.Rand
	now     balance.Instant
}

func (s *suite) dice(t *testing.T) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

func (s *suite) rig(t *testing.T, isPanicked bool, weights ...uint32) *rig {
	r := &rig{T: t, dice: s.dice(t), now: 1}
	for i, w := range weights {
		r.members = append(r.members, balance.Member{Backend: backend(i), Weight: w})
	}
	r.set = balance.NewSet(r.members, r.dice.Uint64(), isPanicked)
	r.policy = s.build()
	r.picker = r.policy.Build(r.set)
	return r
}

func backend(i int) *balance.Backend {
	return balance.NewBackend(fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255), "")
}

// equal returns n weights of 1.
func equal(n int) []uint32 {
	w := make([]uint32, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

// request returns a fresh request; time moves on by a millisecond.
func (r *rig) request() balance.Request {
	r.now += 1e6
	return balance.Request{Key: r.dice.Uint64(), HasKey: true, Rand: r.dice.Uint64(), Now: r.now}
}

// pick picks and returns the member's index.
func (r *rig) pick(q balance.Request) int {
	r.Helper()
	b, ok := r.picker.Pick(q)
	if !ok {
		r.Fatalf("Pick found nobody of %s", describe(r.set))
	}
	i := r.indexOf(b)
	if i < 0 {
		r.Fatalf("Pick returned %q, which is not in the set", b.ID())
	}
	return i
}

func (r *rig) indexOf(b *balance.Backend) int {
	for i, m := range r.members {
		if m.Backend == b {
			return i
		}
	}
	return -1
}

// wantShares compares counts with weights. A backend with weight 0 must have
// got nothing.
func (r *rig) wantShares(what string, counts []int, weights []float64, slack float64) {
	r.Helper()
	var n, sum float64
	for i, c := range counts {
		n += float64(c)
		sum += weights[i]
	}
	for i, c := range counts {
		p := weights[i] / sum
		got := float64(c) / n
		if bound := slack*p + 5*math.Sqrt(p*(1-p)/n); math.Abs(got-p) > bound {
			r.Errorf("%s: backend %d got %.4f of the work, want %.4f +- %.4f (all: %v)", what, i, got, p, bound, counts)
		}
	}
}

func floats(weights []uint32) []float64 {
	f := make([]float64, len(weights))
	for i, w := range weights {
		f[i] = float64(w)
	}
	return f
}

// describe prints the live state of a set.
func describe(s *balance.Set) string {
	text := fmt.Sprintf("panicked=%v", s.Panicked())
	for _, m := range s.Members() {
		b := m.Backend
		text += fmt.Sprintf("\n  %s weight=%d share=%g %s suspect=%v unreachable=%v in flight %d of %d",
			b.ID(), m.Weight, b.Share(), b.Admin(), b.Suspect(), b.Unreachable(), b.InFlight(), b.Limit())
	}
	return text
}

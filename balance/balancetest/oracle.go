// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirlb/weir/balance"
)

// Allowed is the naive statement of who may be chosen for a request: exactly
// one of these must be, and nobody when there are none. It is slow and obvious.
func Allowed(s *balance.Set, r balance.Request) []*balance.Backend {
	var candidates []*balance.Backend
	for _, m := range s.Members() {
		b := m.Backend
		if m.Weight > 0 && b.Admin() == balance.Enabled && (s.Panicked() || b.Share() > 0) {
			candidates = append(candidates, b)
		}
	}
	for _, b := range candidates {
		if r.Prefer == b.Hash() && !r.Tried.Has(b.Hash()) && !b.Full() && !b.Unreachable() && !b.Suspect() {
			return []*balance.Backend{b}
		}
	}
	// Each rule holds only while somebody is left: who was tried, who is known
	// to be unreachable, who is full, who is suspect.
	for _, bad := range []func(*balance.Backend) bool{
		func(b *balance.Backend) bool { return r.Tried.Has(b.Hash()) },
		(*balance.Backend).Unreachable,
		(*balance.Backend).Full,
		(*balance.Backend).Suspect,
	} {
		rest := slices.DeleteFunc(slices.Clone(candidates), bad)
		if len(rest) > 0 {
			candidates = rest
		}
	}
	return candidates
}

// Failer is the part of testing.TB that Check uses; rapid.T has it too.
type Failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Check picks once and reports whether the pick is one that Allowed lists.
func Check(t Failer, s *balance.Set, p balance.Picker, r balance.Request) (*balance.Backend, bool) {
	t.Helper()
	allowed := Allowed(s, r)
	b, ok := p.Pick(r)
	switch {
	case ok != (len(allowed) > 0):
		t.Fatalf("Pick(%+v) = %v, want %v of\n%s", r, ok, len(allowed) > 0, describe(s))
	case ok && !slices.Contains(allowed, b):
		t.Fatalf("Pick(%+v) chose %s, which must not be chosen now, of\n%s", r, b.ID(), describe(s))
	case !ok && b != nil:
		t.Fatalf("Pick returned a backend and false")
	}
	return b, ok
}

// oracle throws every state at the policy at once.
func oracle(t *testing.T, s *suite) {
	d := s.dice(t)
	policy := s.build()
	for _, n := range []int{1, 2, 3, 5, 8, 40, 300} {
		for range max(400/n, 3) {
			members := make([]balance.Member, n)
			for i := range members {
				members[i] = balance.Member{Backend: backend(i), Weight: uint32(d.IntN(4))}
			}
			set := balance.NewSet(members, d.Uint64(), d.IntN(3) == 0)
			p := policy.Build(set)
			bad := d.Float64() // how bad things are in this round
			for k := range 30 {
				if k%5 == 0 {
					for _, m := range members {
						unsettle(m.Backend, d, bad)
					}
				}
				r := balance.Request{
					Key: d.Uint64(), HasKey: d.IntN(2) == 0, Rand: d.Uint64(), Now: balance.Instant(k) * 5e6,
				}
				for range d.IntN(5) {
					r.Tried.Add(members[d.IntN(n)].Backend.Hash())
				}
				if d.IntN(4) == 0 {
					r.Prefer = members[d.IntN(n)].Backend.Hash()
				}
				Check(t, set, p, r)
			}
		}
	}
}

// unsettle puts a backend into a random state; bad, 0 to 1, says how likely each
// trouble is.
func unsettle(b *balance.Backend, d *rand.Rand, bad float64) {
	b.SetAdmin(balance.Enabled)
	if d.Float64() < bad*0.5 {
		b.SetAdmin(balance.Admin(1 + d.IntN(2)))
	}
	switch u := d.Float64(); {
	case u < bad*0.6:
		b.SetShare(0)
	case u < bad*0.9:
		b.SetShare(d.Float64())
	default:
		b.SetShare(1)
	}
	b.SetSuspect(d.Float64() < bad*0.7)
	b.SetUnreachable(d.Float64() < bad*0.7)
	b.SetLimit(int64(d.IntN(3)))
	for b.InFlight() > 0 {
		b.Release()
	}
	if d.Float64() < bad {
		b.Reserve()
	}
	if d.Float64() < bad {
		b.Charge(balance.Instant(d.IntN(1e8)), 50e6, 0)
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/balance"
)

// capacity is the naive statement of the bound on a member: c times the average
// over those who may take work now, a ramping one counting for its share.
func capacity(s *balance.Set, m balance.Member, c float64, now balance.Instant) float64 {
	share := func(b *balance.Backend) float64 {
		if s.Panicked() {
			return 1
		}
		return b.ShareAt(now)
	}
	mass, inFlight := 0.0, int64(0)
	for _, o := range s.Members() {
		if takesWork(s, o) {
			mass += float64(o.Weight) * share(o.Backend)
			inFlight += o.Backend.InFlight()
		}
	}
	return math.Ceil(c*float64(inFlight+1)*float64(m.Weight)*share(m.Backend)/mass - 1e-6)
}

// takesWork reports whether nothing at all speaks against a member.
func takesWork(s *balance.Set, m balance.Member) bool {
	b := m.Backend
	return m.Weight > 0 && b.Admin() == balance.Enabled && (s.Panicked() || b.Share() > 0) &&
		!b.Suspect() && !b.Unreachable() && !b.Full()
}

// fitting lists the members that may hold one request more.
func fitting(s *balance.Set, r balance.Request, c float64) (list []*balance.Backend) {
	for _, m := range s.Members() {
		if takesWork(s, m) && !r.Tried.Has(m.Backend.Hash()) &&
			float64(m.Backend.InFlight()+1) <= capacity(s, m, c, r.Now) {
			list = append(list, m.Backend)
		}
	}
	return list
}

// Whatever happens (requests come and end, backends break, ramp, fill up, drain
// and come back) no request is placed above c times the average of the living
// while somebody below has not been tried, and without tries there always is
// somebody.
func TestBoundedLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom([]float64{1, 1.1, 1.25, 2}).Draw(t, "c")
		name := rapid.SampledFrom([]string{"ring_hash", "rendezvous", "maglev"}).Draw(t, "policy")
		p, err := balance.New(name, balance.Options{Hash: balance.HashConfig{
			BoundedLoad: c, TableSize: 1021, VirtualNodes: 20, Spill: rapid.IntRange(0, 8).Draw(t, "spill"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		ms := members(rapid.IntRange(1, 12).Draw(t, "members"), rapid.SliceOfN(rapid.Uint32Range(0, 5), 1, 4).Draw(t, "weights")...)
		set := balance.NewSet(ms, 1, rapid.IntRange(0, 5).Draw(t, "panic") == 0)
		picker := p.Build(set)
		var held []*balance.Backend
		keys := rapid.Uint64Range(0, 9)
		for now := balance.Instant(0); now < 120; now++ {
			switch b := ms[rapid.IntRange(0, len(ms)-1).Draw(t, "member")].Backend; rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				b.SetShare(rapid.SampledFrom([]float64{0, 0.125, 0.5, 1, 1}).Draw(t, "share"))
			case 1:
				b.SetLimit(int64(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "limit")))
			case 2:
				b.SetSuspect(rapid.Bool().Draw(t, "suspect"))
			case 3, 4:
				if len(held) > 0 {
					i := rapid.IntRange(0, len(held)-1).Draw(t, "done")
					held[i].Release()
					held = slices.Delete(held, i, i+1)
				}
			default:
				r := balance.Request{Key: keys.Draw(t, "key"), HasKey: true, Now: now}
				if rapid.IntRange(0, 5).Draw(t, "retry") == 0 {
					r.Tried.Add(b.Hash())
				}
				below := fitting(set, r, c)
				got, ok := picker.Pick(r)
				if len(below) > 0 && (!ok || !slices.Contains(below, got)) {
					t.Fatalf("%s chose %s, who is above the bound, of %d below", name, got.ID(), len(below))
				}
				if r.Tried.Len() == 0 && len(below) == 0 && slices.ContainsFunc(ms, func(m balance.Member) bool { return takesWork(set, m) }) {
					t.Fatal("everyone who may take work is above the bound: the oracle errs")
				}
				if ok && got.Reserve() {
					held = append(held, got)
				}
			}
		}
	})
}

// One key that everybody asks for stays at c times the average on its backend,
// also when the average is over the half that lives, and when the sum is the
// pool's and other backends of it are busy.
func TestBoundedHotKey(t *testing.T) {
	for name, policy := range hashed {
		for _, n := range []int{10, 40, 100} {
			ms := members(n + 1)
			var total balance.Total
			for _, m := range ms {
				m.Backend.SetTotal(&total)
			}
			load(ms[n].Backend, 5000) // of another tier: in the total, not in the set
			p := build(policy(balance.HashConfig{BoundedLoad: 1.25}), ms[:n])
			requests := 20 * n
			now := balance.Instant(time.Hour)
			place := func() {
				for k := range requests {
					now = now.Add(time.Millisecond)
					b, _ := p.Pick(balance.Request{Key: uint64(k % 2), HasKey: true, Now: now})
					b.Reserve()
				}
			}
			most := func() (most int64) {
				for _, m := range ms[:n] {
					most = max(most, m.Backend.InFlight())
				}
				return most
			}
			place()
			if got := most(); got != 25 {
				t.Errorf("%s of %d: the hot backend holds %d requests of 20 on average, want 25", name, n, got)
			}
			for i, m := range ms[:n] {
				for m.Backend.InFlight() > 0 && (i%2 == 0 || m.Backend.InFlight() > 3) {
					m.Backend.Release() // the broken ones keep some for good
				}
				if i%2 == 1 {
					m.Backend.SetShare(0)
				}
			}
			place()
			if got := most(); got != 50 {
				t.Errorf("%s of %d, half of them broken: the hot backend holds %d of 40 on average, want 50", name, n, got)
			}
			for i, m := range ms[:n] {
				if i%2 == 1 && m.Backend.InFlight() > 3 {
					t.Errorf("%s of %d: %s is broken and got work", name, n, m.Backend.ID())
				}
			}
		}
	}
}

// A bound moves a key only while its backend is over it.
func TestBoundLetsGo(t *testing.T) {
	for name, policy := range hashed {
		ms := members(20)
		free := owners(t, build(policy(balance.HashConfig{}), ms), 1000, 0)
		p := build(policy(balance.HashConfig{BoundedLoad: 1.25}), ms)
		if got := owners(t, p, 1000, 0); !slices.Equal(got, free) {
			t.Errorf("%s: the bound moves keys of an idle pool", name)
		}
		load(ms[7].Backend, 30)
		moved := owners(t, p, 1000, 0)
		for k, b := range moved {
			if (b != free[k]) != (free[k] == ms[7].Backend) {
				t.Errorf("%s: key %d of %s went to %s", name, k, free[k].ID(), b.ID())
			}
		}
		for range 30 {
			ms[7].Backend.Release()
		}
		if got := owners(t, p, 1000, 0); !slices.Equal(got, free) {
			t.Errorf("%s: not all keys came back", name)
		}
	}
}

// When the key's backend is saturated the least loaded of the next few is taken:
// they are those that the key goes to one after another without spill.
func TestSpill(t *testing.T) {
	for name, policy := range hashed {
		for _, full := range []bool{false, true} {
			for key := range uint64(12) {
				ms := members(30)
				set := balance.NewSet(ms, 1, false)
				r := balance.Request{Key: key, HasKey: true}
				// The key's order, by trying one after another.
				plain := policy(balance.HashConfig{}).Build(set)
				var order []*balance.Backend
				for range 5 {
					b, _ := plain.Pick(r)
					order = append(order, b)
					r.Tried.Add(b.Hash())
				}
				r.Tried = balance.Tried{}
				cfg := balance.HashConfig{Spill: 3}
				if full {
					order[0].SetLimit(1)
					load(order[0], 1)
				} else {
					cfg.BoundedLoad = 1.5
					load(order[0], 40)
				}
				p := policy(cfg).Build(set)
				expect := func(what string, want *balance.Backend) {
					t.Helper()
					if got, _ := p.Pick(r); got != want {
						t.Fatalf("%s, key %d, full %v, %s: %s was picked, want %s", name, key, full, what, got.ID(), want.ID())
					}
				}
				expect("all idle", order[1])
				load(order[1], 1)
				expect("the next busy", order[2])
				load(order[2], 1)
				expect("two busy", order[3])
				load(order[3], 1)
				expect("three equally busy, a fourth does not count", order[1])
				order[1].SetShare(0)
				// On the circle the next after one that is out need not be the fourth.
				if got, _ := p.Pick(r); got.InFlight() != 0 || got == order[1] {
					t.Fatalf("%s, key %d: %s was picked, though one more counts as the next is out", name, key, got.ID())
				}
			}
		}
	}
}

// Requests without a key go where the fallback says, which sees the same set and
// learns what there is to learn.
func TestHashFallback(t *testing.T) {
	for name, policy := range hashed {
		ms := members(7)
		p := policy(balance.HashConfig{Fallback: balance.NewRoundRobin()})
		if _, ok := p.(balance.Learner); ok {
			t.Errorf("%s learns for a fallback that does not", name)
		}
		picker := build(p, ms)
		counts := map[*balance.Backend]int{}
		for range 70 {
			b, _ := picker.Pick(balance.Request{Key: 5})
			counts[b]++
		}
		for _, m := range ms {
			if counts[m.Backend] != 10 {
				t.Errorf("%s: without a key %s got %d of 70 turns", name, m.Backend.ID(), counts[m.Backend])
			}
		}
		for fallback, learns := range map[balance.Policy]bool{balance.NewPeakEWMA(balance.EWMAConfig{}): true, nil: false} {
			p := policy(balance.HashConfig{Fallback: fallback})
			if _, ok := p.(balance.Learner); ok != learns {
				t.Errorf("%s with %v: a Learner is %v", name, fallback, ok)
			}
			if k, ok := p.(balance.Keyed); !ok || !k.Keyed() {
				t.Errorf("%s is not keyed", name)
			}
			if k, ok := p.(balance.Keeper); !ok || !k.KeepsExcluded() {
				t.Errorf("%s does not keep the excluded", name)
			}
			if u, ok := p.(balance.TotalUser); !ok || u.UsesTotal() {
				t.Errorf("%s asks for a total without a bound", name)
			}
		}
		if u, ok := policy(balance.HashConfig{BoundedLoad: 1}).(balance.TotalUser); !ok || !u.UsesTotal() {
			t.Errorf("%s does not ask for a total", name)
		}
	}
}

func TestHashConfig(t *testing.T) {
	for _, bad := range []balance.HashConfig{
		{BoundedLoad: 0.99}, {BoundedLoad: -1}, {BoundedLoad: math.NaN()}, {BoundedLoad: math.Inf(1)},
		{TableSize: 65536}, {TableSize: 1}, {TableSize: -7}, {TableSize: 5_000_077},
		{VirtualNodes: -1}, {VirtualNodes: 1 << 20}, {Spill: -1}, {Spill: 9},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
		for _, name := range []string{"ring_hash", "rendezvous", "maglev"} {
			if _, err := balance.New(name, balance.Options{Hash: bad}); err == nil {
				t.Errorf("New(%q) takes %+v", name, bad)
			}
		}
	}
	for _, good := range []balance.HashConfig{{}, {BoundedLoad: 1}, {BoundedLoad: 1.25, TableSize: 2, VirtualNodes: 1, Spill: 8}} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
	// Constructors without an error take the nearest that is valid.
	for _, policy := range hashed {
		p := policy(balance.HashConfig{BoundedLoad: 0.5, TableSize: 1 << 10, VirtualNodes: -3, Spill: 100})
		ms := members(3)
		if got := fmt.Sprint(len(owners(t, build(p, ms), 10, 0))); got != "10" {
			t.Error(got)
		}
	}
}

// A backend that fails at once holds nothing, but what its failures still charge
// counts, and it passes its keys on.
func TestBoundCountsFailures(t *testing.T) {
	for name, policy := range hashed {
		ms := members(10)
		p := build(policy(balance.HashConfig{BoundedLoad: 1.25}), ms)
		home := owners(t, p, 200, 0)
		for range 20 {
			ms[3].Backend.Charge(0, time.Second, 0)
		}
		for k, b := range owners(t, p, 200, 0) {
			if b == ms[3].Backend {
				t.Fatalf("%s: key %d went to a backend with 20 failures charged", name, k)
			}
		}
		if got := owners(t, p, 200, balance.Instant(0).Add(time.Minute)); !slices.Equal(got, home) {
			t.Errorf("%s: not all keys came back", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// TestTierLoadsOfEnvoy holds tierLoads to the tables of Envoy's documentation
// ("Priority levels"), in percent, which it gives rounded.
func TestTierLoadsOfEnvoy(t *testing.T) {
	for _, c := range [][2][]float64{
		{{100, 100}, {100, 0}},
		{{72, 100}, {100, 0}},
		{{71, 100}, {99, 1}},
		{{50, 100}, {70, 30}},
		{{25, 100}, {35, 65}},
		{{0, 100}, {0, 100}},
		{{25, 25}, {50, 50}},
		{{100, 100, 100}, {100, 0, 0}},
		{{71, 71, 100}, {99, 1, 0}},
		{{50, 50, 100}, {70, 30, 0}},
		{{25, 100, 100}, {35, 65, 0}},
		{{25, 25, 100}, {35, 35, 30}},
		{{25, 25, 20}, {36, 36, 28}},
		{{0, 0, 0}, {0, 0, 0}},
		{{1}, {100}},
	} {
		healths := make([]float64, len(c[0]))
		for i, h := range c[0] {
			healths[i] = h / 100
		}
		for i, load := range tierLoads(healths, 1.4) {
			if math.Abs(load-c[1][i]/100) > 0.01 {
				t.Errorf("%v: %v, want %v", c[0], tierLoads(healths, 1.4), c[1])
				break
			}
		}
	}
}

// TestZoneLoadsAddUp: when every zone has the same demand and each balancer
// follows zoneLoads, every zone gets work in proportion to its capacity, and no
// balancer sends away more than its zone cannot take.
func TestZoneLoadsAddUp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		n := 1 + rnd.IntN(6)
		capacities, sum := make([]float64, n), 0.0
		for i := range capacities {
			capacities[i] = float64(rnd.IntN(10))
			sum += capacities[i]
		}
		if sum == 0 {
			continue
		}
		got := make([]float64, n)
		for i := range capacities {
			capacities[i] /= sum
		}
		for local := range n {
			all := 0.0
			for i, load := range zoneLoads(capacities, local) {
				all += load
				got[i] += load / float64(n)
				if load < 0 || i == local && math.Abs(load-min(1, capacities[i]*float64(n))) > 1e-8 {
					t.Fatalf("%v, local %d: %v", capacities, local, zoneLoads(capacities, local))
				}
			}
			if math.Abs(all-1) > 1e-9 {
				t.Fatalf("%v, local %d: %v in all", capacities, local, all)
			}
		}
		for i := range got {
			if math.Abs(got[i]-capacities[i]) > 1e-8 {
				t.Fatalf("zone %d gets %v, has %v of the capacity: %v", i, got[i], capacities[i], capacities)
			}
		}
	}
}

// tieredPool has three tiers of three zones with two backends each, "p0-A-0".
func tieredPool(change func(*Config)) *Pool {
	var specs []Spec
	for tier := range 3 {
		for _, zone := range []string{"A", "B", "C"} {
			for i := range 2 {
				specs = append(specs, Spec{ID: fmt.Sprintf("p%d-%s-%d", tier, zone, i), URL: "http://b", Weight: 1, Zone: zone, Priority: uint8(tier)})
			}
		}
	}
	return established(change, specs)
}

// established is a pool whose members belong to the process's first
// configuration: all serve, nobody probes.
func established(change func(*Config), specs []Spec) *Pool {
	var now balance.Instant
	p := New(benchPool(0, change).cfg, quiet{}, func() balance.Instant { now++; return now })
	p.Update(specs)
	return p
}

// placed counts where n picks go, by the first so many letters of the id.
func placed(t *testing.T, p *Pool, n, letters int, request func(i int) balance.Request) map[string]float64 {
	t.Helper()
	got := map[string]float64{}
	for i := range n {
		r := request(i)
		var l Lease
		if answer := p.Pick(&l, &r); answer != Granted {
			t.Fatal(answer)
		}
		got[l.Backend().ID()[:letters]] += 1 / float64(n)
		l.Done(Outcome{Kind: Canceled})
	}
	return got
}

func anything(i int) balance.Request { return balance.Request{Rand: mix(uint64(i))} }

// near allows four standard deviations of n draws.
func near(got, want float64, n int) bool {
	return math.Abs(got-want) <= 4*math.Sqrt(want*(1-want)/float64(n))+1e-12
}

// setShares stores what health would, without anybody publishing anything.
func setShares(p *Pool, share float64, which func(*member) bool) {
	for _, m := range p.core.order {
		if which(m) {
			m.b.SetShare(share)
		}
	}
}

// TestLossNeedsNoPublication: when a zone, and then a tier, is lost, the next
// picks go elsewhere, though the published figures are those from before.
func TestLossNeedsNoPublication(t *testing.T) {
	const n = 8000
	p := tieredPool(func(c *Config) { c.Zone.Local = "A" })
	defer p.Close()
	if got := placed(t, p, n, 4, anything); got["p0-A"] < 0.999999 {
		t.Errorf("all is well: %v", got)
	}
	setShares(p, 0, func(m *member) bool { return m.core.spec.Zone == "A" && m.core.spec.Priority == 0 })
	if got := placed(t, p, n, 4, anything); !near(got["p0-B"], 0.5, n) || !near(got["p0-C"], 0.5, n) {
		t.Errorf("without the own zone: %v", got)
	}
	setShares(p, 0, func(m *member) bool { return m.core.spec.Priority == 0 })
	if got := placed(t, p, n, 4, anything); got["p1-A"] < 0.999999 {
		t.Errorf("without the first tier: %v", got)
	}
	setShares(p, 0, func(m *member) bool { return m.core.spec.Zone != "C" || m.core.spec.Priority < 2 })
	if got := placed(t, p, n, 4, anything); got["p2-C"] < 0.999999 {
		t.Errorf("with one zone of the last tier: %v", got)
	}
	// A retry goes to whoever was not tried, wherever that is.
	r := anything(0)
	for _, id := range []string{"p2-C-0", "p2-C-1"} {
		r.Tried.Add(balance.IDOf(id))
	}
	setShares(p, 1, func(m *member) bool { return m.core.spec.ID == "p1-B-1" })
	if b, ok := p.view.Load().pick(&r); !ok || b.ID() != "p1-B-1" {
		t.Errorf("a retry: %v", b)
	}
}

// keyed is p2c that says it places keys.
type keyed struct{ balance.Policy }

func (keyed) Keyed() bool { return true }

// TestKeysStay: as a tier loses health its keys move to the next one, each once,
// and nothing else moves; when it comes back they do.
func TestKeysStay(t *testing.T) {
	const n = 4000
	var specs []Spec
	for i := range 10 {
		specs = append(specs, Spec{ID: fmt.Sprint("a", i), URL: "u", Weight: 1})
	}
	specs = append(specs, Spec{ID: "s", URL: "u", Weight: 1, Backup: true})
	p := established(func(c *Config) { c.Policy = keyed{balance.NewP2C(2)}; c.Overprovisioning = 1 }, specs)
	defer p.Close()
	tierOf := func(key int) int {
		r := balance.Request{Rand: mix(uint64(key) * 7), Key: mix(uint64(key)), HasKey: true}
		b, ok := p.view.Load().pick(&r)
		if !ok {
			t.Fatal("nobody")
		}
		m, _ := b.Owner().(*member)
		return m.core.tier.level
	}
	before := make([]int, n)
	for step, health := range []int{10, 9, 7, 5, 7, 9, 10} {
		for i, m := range p.core.order[:10] {
			if i < health {
				m.core.health.Init(0, &p.cfg.Active, &p.cfg.Passive, true)
			} else {
				m.core.health.Break(0, 0, "test")
			}
			m.b.SetShare(m.core.health.Share())
			p.core.recount(m)
		}
		p.core.dirty, p.core.ever = true, false
		p.Advance()
		moved := [2]int{}
		for key := range n {
			now := tierOf(key)
			if step > 0 && now != before[key] {
				moved[btoi(now == 0)]++
			}
			before[key] = now
		}
		want := math.Abs(float64(health-[]int{10, 10, 9, 7, 5, 7, 9}[step])) / 10
		there := float64(moved[0]+moved[1]) / n
		if moved[0] > 0 && moved[1] > 0 || !near(there, want, n) {
			t.Errorf("at %d of 10: %v moved, want %v of %d one way", health, moved, want, n)
		}
	}
}

// TestTurnsOfTiers: with the first tier full, round_robin goes on evenly in the
// second.
func TestTurnsOfTiers(t *testing.T) {
	var specs []Spec
	for i := range 4 {
		specs = append(specs, Spec{ID: fmt.Sprint("b", i), URL: "u", Weight: 1, Priority: uint8(i / 2)})
	}
	p := established(func(c *Config) { c.Policy = balance.NewRoundRobin(); c.Limits.BackendRequests = 1 }, specs)
	defer p.Close()
	held := make([]Lease, 2)
	for i := range held {
		p.Pick(&held[i], &balance.Request{})
	}
	got := placed(t, p, 100, 2, anything)
	if got["b0"] != 0 || got["b1"] != 0 || math.Abs(got["b2"]-0.5) > 1e-9 {
		t.Errorf("%v", got)
	}
}

// TestStickySessionsStay: a session that lives in another tier or zone than new
// work goes to stays where it is, as long as that may take work.
func TestStickySessionsStay(t *testing.T) {
	p := tieredPool(func(c *Config) { c.Zone.Local = "A" })
	defer p.Close()
	r := anything(3)
	r.Prefer = balance.IDOf("p2-C-1")
	if b, _ := p.view.Load().pick(&r); b.ID() != "p2-C-1" {
		t.Errorf("the session is on p2-C-1, the pick says %s", b.ID())
	}
	setShares(p, 0, func(m *member) bool { return m.core.spec.ID == "p2-C-1" })
	if b, _ := p.view.Load().pick(&r); b.ID()[:4] != "p0-A" {
		t.Errorf("the session's backend is gone, the pick says %s", b.ID())
	}
}

// TestOverloadShrinksATierOnlyAtTheFloor follows S10: while somebody in the tier
// has headroom all of its work stays. From the moment nobody has until they can
// carry all of it again, what overload has left of it is its capacity.
func TestOverloadShrinksATierOnlyAtTheFloor(t *testing.T) {
	var now balance.Instant
	p := New(benchPool(0, func(c *Config) { c.Overload = health.Overload{Enabled: true, Floor: 0.1} }).cfg, quiet{}, func() balance.Instant { return now })
	defer p.Close()
	p.Update([]Spec{{ID: "a", URL: "u", Weight: 1}, {ID: "b", URL: "u", Weight: 3}, {ID: "s", URL: "u", Weight: 1, Backup: true}})
	for i, c := range []struct{ a, b, load float64 }{
		{1, 1, 1}, {0.1, 1, 1}, {0.1, 0.2, 1}, {0.1, 0.1, 0.14}, {0.1, 0.3, 1.4 * (0.1 + 0.9) / 4}, {0.6, 0.6, 0.84},
		{0.8, 0.8, 1}, {0.5, 0.5, 1}, {0.1, 0.1, 0.14}, {1, 1, 1},
	} {
		now = now.Add(publishEvery)
		for k, share := range []float64{c.a, c.b} {
			m := p.core.order[k]
			m.core.health.SetOverload(now, share, "test")
			m.b.SetShare(m.core.health.Share())
			p.core.recount(m)
		}
		p.Advance()
		if got := p.Snapshot().Tiers[0].Load; math.Abs(got-c.load) > 1e-6 {
			t.Errorf("step %d, shares %v and %v: load %v, want %v", i, c.a, c.b, got, c.load)
		}
		if got := placed(t, p, 2000, 1, anything); !near(got["s"], 1-c.load, 2000) {
			t.Errorf("step %d: the backup gets %v, want %v", i, got["s"], 1-c.load)
		}
	}
}

// TestTieredPickAllocatesNothing is for the way through tiers and zones, for
// spilling over, stickiness and retries.
func TestTieredPickAllocatesNothing(t *testing.T) {
	p := tieredPool(func(c *Config) { c.Zone.Local = "A" })
	defer p.Close()
	run := func(what string, r balance.Request) {
		if got := testing.AllocsPerRun(200, func() {
			var l Lease
			r.Rand = mix(r.Rand)
			if got := p.Pick(&l, &r); got != Granted {
				t.Fatal(got)
			}
			l.Done(Outcome{Status: 200})
		}); got != 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
	}
	run("common", balance.Request{})
	run("sticky", balance.Request{Prefer: balance.IDOf("p2-C-1")})
	r := balance.Request{}
	r.Tried.Add(balance.IDOf("p0-A-0"))
	r.Tried.Add(balance.IDOf("p0-A-1"))
	run("elsewhere", r)
	setShares(p, 0, func(m *member) bool { return m.core.spec.Priority == 0 })
	run("next tier", balance.Request{})
}

// BenchmarkTieredPickDone is BenchmarkPickDone where tiers and zones are to be
// chosen: two tiers that both get work, and three zones with an excess.
func BenchmarkTieredPickDone(b *testing.B) {
	for _, c := range []struct {
		name  string
		zone  string
		tiers int
	}{{"tiers=2", "", 2}, {"zones=3", "A", 1}, {"tiers=2/zones=3", "A", 2}} {
		b.Run(c.name, func(b *testing.B) {
			specs := benchSpecs(100)
			for i := range specs {
				specs[i].Priority = uint8(i % c.tiers)
				specs[i].Zone = string("AABBBBCCCC"[i/2%10])
			}
			p := established(func(cfg *Config) { cfg.Zone.Local = c.zone; cfg.Overprovisioning = 0.5 }, specs)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				attempt(p, i)
			}
		})
	}
}

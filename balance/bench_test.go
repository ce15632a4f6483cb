// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

var benchSizes = []int{3, 100, 10_000}

// members returns n members of weight 1, or of the given weights in turn.
func members(n int, weights ...uint32) []balance.Member {
	ms := make([]balance.Member, n)
	for i := range ms {
		w := uint32(1)
		if len(weights) > 0 {
			w = weights[i%len(weights)]
		}
		ms[i] = balance.Member{Backend: balance.NewBackend(fmt.Sprintf("10.0.%d.%d:80", i/256, i%256), ""), Weight: w}
	}
	return ms
}

func eachPolicy(do func(name string, build func() balance.Policy)) {
	for _, name := range balance.Names() {
		do(name, func() balance.Policy {
			p, err := balance.New(name, balance.Options{})
			if err != nil {
				panic(err)
			}
			return p
		})
	}
}

// random returns a request whose key and random bits are the next of a sequence.
func random(rnd interface{ Uint64() uint64 }) balance.Request {
	x := rnd.Uint64()
	return balance.Request{Rand: x, Key: x, HasKey: true}
}

// eachSize runs a benchmark for every policy at every size.
func eachSize(b *testing.B, bench func(b *testing.B, n int, build func() balance.Policy)) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) { bench(b, n, build) })
		}
	})
}

var sink *balance.Backend

// BenchmarkPick is the decision alone; -cpu 1,2 gives one and two goroutines.
func BenchmarkPick(b *testing.B) {
	eachSize(b, func(b *testing.B, n int, build func() balance.Policy) {
		p := build().Build(balance.NewSet(members(n), 1, false))
		b.ReportAllocs()
		b.ResetTimer() // tables take longer to build than to ask
		b.RunParallel(func(pb *testing.PB) {
			rnd := rand.NewPCG(1, 2)
			var got *balance.Backend
			for pb.Next() {
				got, _ = p.Pick(random(rnd))
			}
			_ = got
		})
	})
}

// BenchmarkPickReserveRelease is what a request costs the core at least.
func BenchmarkPickReserveRelease(b *testing.B) {
	eachSize(b, func(b *testing.B, n int, build func() balance.Policy) {
		p := build().Build(balance.NewSet(members(n), 1, false))
		b.ReportAllocs()
		b.ResetTimer() // tables take longer to build than to ask
		b.RunParallel(func(pb *testing.PB) {
			rnd := rand.NewPCG(1, 2)
			for pb.Next() {
				got, _ := p.Pick(random(rnd))
				if got.Reserve() {
					got.Release()
				}
			}
		})
	})
}

// BenchmarkPickWeighted draws through the alias table.
func BenchmarkPickWeighted(b *testing.B) {
	eachSize(b, func(b *testing.B, n int, build func() balance.Policy) {
		p := build().Build(balance.NewSet(members(n, 5, 1, 3), 1, false))
		rnd := rand.NewPCG(1, 2)
		b.ReportAllocs()
		for b.Loop() {
			sink, _ = p.Pick(random(rnd))
		}
	})
}

// BenchmarkPickDegraded is a pool of which a third is out and everyone has a
// limit, with a picker that has not been rebuilt.
func BenchmarkPickDegraded(b *testing.B) {
	eachSize(b, func(b *testing.B, n int, build func() balance.Policy) {
		ms := members(n)
		for i, m := range ms {
			m.Backend.SetLimit(100)
			if i%3 == 0 {
				m.Backend.SetShare(0)
			}
		}
		p := build().Build(balance.NewSet(ms, 1, false))
		rnd := rand.NewPCG(1, 2)
		b.ReportAllocs()
		for b.Loop() {
			sink, _ = p.Pick(random(rnd))
		}
	})
}

// BenchmarkScan is least_request where it is slowest: everyone is looked at. The
// metric is what one of them costs, with equal and with different weights, idle
// and with loads that leave few ties.
func BenchmarkScan(b *testing.B) {
	for name, weights := range map[string][]uint32{"equal": {1}, "weighted": {5, 1, 3}} {
		for _, most := range []int{0, 20} {
			b.Run(fmt.Sprintf("%s/load=%d", name, most), func(b *testing.B) {
				rnd := rand.New(rand.NewPCG(1, 2))
				ms := members(256, weights...)
				for _, m := range ms {
					load(m.Backend, rnd.IntN(most+1))
				}
				p := balance.NewLeastRequest().Build(balance.NewSet(ms, 1, false))
				for b.Loop() {
					sink, _ = p.Pick(random(rnd))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/backend")
			})
		}
	}
}

// BenchmarkBuild is what a change of membership costs.
func BenchmarkBuild(b *testing.B) {
	eachSize(b, func(b *testing.B, n int, build func() balance.Policy) {
		s, p := balance.NewSet(members(n, 5, 1, 3), 1, false), build()
		for b.Loop() {
			p.Build(s)
		}
	})
}

// TestPickCost holds picks to a multiple of a loop that does nothing but read
// two random backends of the same set: nanoseconds belong to a machine, ratios
// to the code. It also asserts that nothing is allocated at any size.
func TestPickCost(t *testing.T) {
	// The fastest of several rounds, in alternation: other work on the machine
	// only ever adds.
	rounds, picks := 7, 20_000
	if raceEnabled {
		rounds, picks = 1, 2000 // times mean nothing, allocations do
	}
	limits := map[string]float64{"p2c": 8, "random": 4, "round_robin": 6, "maglev": 12}
	for _, n := range benchSizes {
		ms := members(n)
		pickers := map[string]balance.Picker{}
		best := map[string]time.Duration{}
		eachPolicy(func(name string, build func() balance.Policy) {
			p := build().Build(balance.NewSet(ms, 1, false))
			pickers[name] = p
			rnd := rand.NewPCG(3, 4)
			if got := testing.AllocsPerRun(200, func() { sink, _ = p.Pick(random(rnd)) }); got != 0 {
				t.Errorf("%s allocates %g times a pick at %d backends", name, got, n)
			}
		})
		time1 := func(name string, loop func(rnd *rand.PCG)) {
			rnd := rand.NewPCG(1, 2)
			start := time.Now()
			loop(rnd)
			if d := time.Since(start); best[name] == 0 || d < best[name] {
				best[name] = d
			}
		}
		for range rounds {
			time1("reference", func(rnd *rand.PCG) {
				for range picks {
					x := rnd.Uint64()
					a, b := ms[x>>32%uint64(n)].Backend, ms[x&0xffffffff%uint64(n)].Backend
					if sink = a; b.InFlight() < a.InFlight() {
						sink = b
					}
				}
			})
			time1("scan", func(*rand.PCG) {
				for range picks / 100 {
					for i := range ms[:min(n, 256)] {
						if ms[i].Backend.InFlight() < sink.InFlight() {
							sink = ms[i].Backend
						}
					}
				}
			})
			for name, p := range pickers {
				loops := picks
				if name == "least_request" || name == "peak_ewma" || name == "rendezvous" { // look at many
					loops /= 100
				}
				time1(name, func(rnd *rand.PCG) {
					for range loops {
						sink, _ = p.Pick(random(rnd))
					}
				})
			}
		}
		for name, limit := range limits {
			ratio := float64(best[name]) / float64(best["reference"])
			t.Logf("%d backends: %s costs %.1f times the reference (%.1f ns)", n, name, ratio, float64(best[name].Nanoseconds())/float64(picks))
			if !raceEnabled && ratio > limit {
				t.Errorf("%d backends: %s costs %.1f times the reference, allowed is %g", n, name, ratio, limit)
			}
		}
		if n == 100 {
			ratio := float64(best["least_request"]) / float64(best["scan"])
			t.Logf("least_request costs %.1f times a plain scan", ratio)
			if !raceEnabled && ratio > 8 {
				t.Errorf("least_request costs %.1f times a plain scan, allowed is 8", ratio)
			}
		}
	}
}

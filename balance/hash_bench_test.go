// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// eachHash runs a benchmark for every hash policy at every size, with defaults.
func eachHash(b *testing.B, cfg balance.HashConfig, bench func(b *testing.B, ms []balance.Member, build func([]balance.Member) balance.Picker)) {
	for _, name := range []string{"ring_hash", "rendezvous", "maglev"} {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				bench(b, members(n), func(ms []balance.Member) balance.Picker {
					p, err := balance.New(name, balance.Options{Hash: cfg})
					if err != nil {
						b.Fatal(err)
					}
					return build(p, ms)
				})
			})
		}
	}
}

// BenchmarkPickBounded is a pool with a bound of 1.25 and four requests a backend
// in flight, by random keys.
func BenchmarkPickBounded(b *testing.B) {
	eachHash(b, balance.HashConfig{BoundedLoad: 1.25}, func(b *testing.B, ms []balance.Member, build func([]balance.Member) balance.Picker) {
		var total balance.Total
		for _, m := range ms {
			m.Backend.SetTotal(&total)
		}
		p, rnd := build(ms), rand.NewPCG(1, 2)
		held := make([]*balance.Backend, 4*len(ms))
		now := balance.Instant(0)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			now = now.Add(10 * time.Microsecond)
			r := random(rnd)
			r.Now = now
			got, _ := p.Pick(r)
			got.Reserve()
			if old := held[i%len(held)]; old != nil {
				old.Release()
			}
			held[i%len(held)] = got
		}
	})
}

// BenchmarkPickRetry is a second attempt: the key's own backend has been tried.
func BenchmarkPickRetry(b *testing.B) {
	eachHash(b, balance.HashConfig{}, func(b *testing.B, ms []balance.Member, build func([]balance.Member) balance.Picker) {
		p, rnd := build(ms), rand.NewPCG(1, 2)
		requests := make([]balance.Request, 1024)
		for i := range requests {
			requests[i] = random(rnd)
			first, _ := p.Pick(requests[i])
			requests[i].Tried.Add(first.Hash())
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			sink, _ = p.Pick(requests[i%len(requests)])
		}
	})
}

// BenchmarkMaglevTable is the default table for a thousand backends, which is to
// take less than 30 ms.
func BenchmarkMaglevTable(b *testing.B) {
	for name, weights := range map[string][]uint32{"equal": {1}, "weighted": {5, 1, 3}} {
		b.Run(name, func(b *testing.B) {
			s := balance.NewSet(members(1000, weights...), 1, false)
			p := balance.NewMaglev(balance.HashConfig{})
			for b.Loop() {
				p.Build(s)
			}
		})
	}
}

// A table of 65537 slots for a thousand backends is to take less than 30 ms. It is
// held to a multiple of sorting as many numbers, about 5 ms here: nanoseconds
// belong to a machine.
func TestMaglevTableCost(t *testing.T) {
	for what, weights := range map[string][]uint32{"equal": {1}, "weighted": {5, 1, 3}} {
		s := balance.NewSet(members(1000, weights...), 1, false)
		p := balance.NewMaglev(balance.HashConfig{})
		rnd := rand.New(rand.NewPCG(1, 2))
		var table, sorting time.Duration
		for range 5 {
			numbers := make([]uint64, 65537)
			for i := range numbers {
				numbers[i] = rnd.Uint64()
			}
			start := time.Now()
			p.Build(s)
			middle := time.Now()
			slices.Sort(numbers)
			end := time.Now()
			if d := middle.Sub(start); table == 0 || d < table {
				table = d
			}
			if d := end.Sub(middle); sorting == 0 || d < sorting {
				sorting = d
			}
		}
		t.Logf("%s: the table takes %v, sorting %v", what, table, sorting)
		if !raceEnabled && table > 3*sorting {
			t.Errorf("%s: the table takes %v, sorting as many numbers %v; allowed is 3 times that", what, table, sorting)
		}
	}
}

// Nothing is allocated by bounded loads, second attempts, spills and requests
// without a key.
func TestHashAllocatesNothing(t *testing.T) {
	for name, policy := range hashed {
		for _, n := range benchSizes {
			if raceEnabled {
				n = min(n, 1000) // more than the sizes from which things are done otherwise
			}
			ms := members(n)
			for i, m := range ms {
				load(m.Backend, i%5)
			}
			p := build(policy(balance.HashConfig{BoundedLoad: 1.25, Spill: 2, Fallback: balance.NewLeastRequest()}), ms)
			rnd := rand.NewPCG(1, 2)
			tried := random(rnd)
			tried.Tried.Add(ms[0].Backend.Hash())
			for _, r := range []balance.Request{random(rnd), {Rand: 5}, tried} {
				if got := testing.AllocsPerRun(20, func() {
					r.Key += 77
					sink, _ = p.Pick(r)
				}); got != 0 {
					t.Errorf("%s allocates %g times a pick at %d backends", name, got, n)
				}
			}
		}
	}
}

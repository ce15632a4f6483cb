// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/balance"
)

var benchSizes = []int{3, 100, 10_000, 256}

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

var sink *balance.Backend

// BenchmarkPick is the decision alone; -cpu 1,2 gives one and two goroutines.
func BenchmarkPick(b *testing.B) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p := build().Build(balance.NewSet(members(n), 1, false))
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					rnd := rand.NewPCG(1, 2)
					var got *balance.Backend
					for pb.Next() {
						got, _ = p.Pick(balance.Request{Rand: rnd.Uint64()})
					}
					_ = got
				})
			})
		}
	})
}

// BenchmarkPickReserveRelease is what a request costs the core at least.
func BenchmarkPickReserveRelease(b *testing.B) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p := build().Build(balance.NewSet(members(n), 1, false))
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					rnd := rand.NewPCG(1, 2)
					for pb.Next() {
						got, _ := p.Pick(balance.Request{Rand: rnd.Uint64()})
						if got.Reserve() {
							got.Release()
						}
					}
				})
			})
		}
	})
}

// BenchmarkPickWeighted draws through the alias table.
func BenchmarkPickWeighted(b *testing.B) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p := build().Build(balance.NewSet(members(n, 5, 1, 3), 1, false))
				rnd := rand.NewPCG(1, 2)
				b.ReportAllocs()
				for b.Loop() {
					sink, _ = p.Pick(balance.Request{Rand: rnd.Uint64()})
				}
			})
		}
	})
}

// BenchmarkPickLimited is a pool whose backends have a limit: never the shortest path.
func BenchmarkPickDegraded(b *testing.B) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
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
					sink, _ = p.Pick(balance.Request{Rand: rnd.Uint64()})
				}
			})
		}
	})
}

// BenchmarkBuild is what a change of membership costs.
func BenchmarkBuild(b *testing.B) {
	eachPolicy(func(name string, build func() balance.Policy) {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				s, p := balance.NewSet(members(n, 5, 1, 3), 1, false), build()
				for b.Loop() {
					p.Build(s)
				}
			})
		}
	})
}

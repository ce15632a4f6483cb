// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/weirlb/weir/pool"
)

// sixEqual is the fleet of the race: six servers at 70 % load, one request in
// twenty six times larger.
func sixEqual(t testing.TB, seed uint64, policyName string, requests int) *World {
	w := NewWorld(seed)
	for _, id := range []string{"s1", "s2", "s3", "s4", "s5", "s6"} {
		w.AddServer(ServerConfig{ID: id, Service: Exponential(40 * time.Millisecond)})
	}
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{Policy: policy(t, policyName), First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 0.7 * 6 / 0.050, Limit: requests, Size: Heavy(1.0/20, 6), Keys: Keys{N: 10_000}})
	return w
}

// BenchmarkRace runs 5,000 requests over six servers; the goal for all eight
// policies together is a second.
func BenchmarkRace(b *testing.B) {
	for _, name := range policies {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sixEqual(b, 1, name, 5000).Finish(forever)
			}
		})
	}
}

// BenchmarkMillion runs a million requests through health checks, passive
// checks, retries and a network, over twenty servers; the goal is 20 s.
func BenchmarkMillion(b *testing.B) {
	for b.Loop() {
		million(b, 1_000_000)
	}
}

func million(t testing.TB, requests int) *World {
	w := NewWorld(1)
	for i := range 20 {
		w.AddServer(ServerConfig{ID: string(rune('a' + i)), Service: Exponential(50 * time.Millisecond), Concurrency: 16})
	}
	lb := w.AddBalancer(BalancerConfig{Pool: turmoilPool(t, "p2c"), Network: Exponential(time.Millisecond), Retry: pool.NewRetryRules(2, true, []int{503}, time.Second)})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 0.7 * 20 * 16 / 0.050, Limit: requests, Timeout: 10 * time.Second})
	if !w.Finish(forever) {
		t.Fatal("not over")
	}
	return w
}

// TestSteadyStateAllocatesNothing: a request costs no allocation once the free
// lists are filled, which is what makes a million of them cheap. The few that
// remain are probes and statistics.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if slower > 1 {
		t.Skip("the race detector allocates")
	}
	w := sixEqual(t, 1, "p2c", 1_000_000)
	until := 10 * time.Second
	w.Run(until)
	before := w.Stats().Requests
	allocs := testing.AllocsPerRun(5, func() {
		until += 10 * time.Second
		w.Run(until)
	})
	per := allocs / (float64(w.Stats().Requests-before) / 6)
	if per > 0.05 {
		t.Errorf("%.3f allocations per request", per)
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

func named(t testing.TB, name string) balance.Policy {
	p, err := balance.New(name, balance.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// alone skips a simulation under the race detector: it has one goroutine, and
// takes ten times as long.
func alone(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine")
	}
}

// seeds runs a simulation with ten seeds and returns the mean of what it says.
func seeds(sim func(seed uint64) float64) float64 {
	sum := 0.0
	for seed := range uint64(10) {
		sum += sim(seed + 1)
	}
	return sum / 10
}

// One of six servers at 30 % speed, the whole at 70 % of what it can do.
func TestPeakEWMASlowServer(t *testing.T) {
	alone(t)
	share := 0.0
	p := func(name string) float64 {
		share = 0
		return seeds(func(seed uint64) float64 {
			f := newFleet(named(t, name), 6, 0.7*5.3/6, seed)
			f.servers[0].speed = 0.3
			f.run(10 * time.Second)
			took := f.run(30 * time.Second)
			share += f.share(0) / 10
			return p99(took).Seconds()
		})
	}
	robin, least, peak := p("round_robin"), p("least_request"), p("peak_ewma")
	t.Logf("p99: round_robin %.3f s, least_request %.3f s, peak_ewma %.3f s; the slow one gets %.2f of an even share", robin, least, peak, share)
	if peak > robin/10 || peak > least {
		t.Errorf("peak_ewma does not adapt")
	}
	if share < 0.1 || share > 0.4 {
		t.Errorf("the slow one gets %.2f of an even share, it can do 0.3 / 0.88", share)
	}
}

// A backend that fails in 1 ms among honest ones gets no more than its share,
// and is back within 10 s of having become honest.
func TestPeakEWMABlackHole(t *testing.T) {
	alone(t)
	for _, load := range []float64{0.1, 0.3, 0.7, 0.8} {
		worst, back := 0.0, 0.0
		hole := seeds(func(seed uint64) float64 {
			f := newFleet(named(t, "peak_ewma"), 6, load, seed)
			f.run(10 * time.Second)
			f.servers[0].black = true
			f.run(30 * time.Second)
			share := f.share(0)
			worst = max(worst, share)
			f.servers[0].black = false
			f.run(10 * time.Second)
			f.run(10 * time.Second)
			back += f.share(0) / 10
			return share
		})
		t.Logf("load %g: black hole gets %.2f of its share, at most %.2f; after 10 s of honesty %.2f", load, hole, worst, back)
		if worst > 1.2 || hole > 0.5 {
			t.Errorf("load %g: the black hole gets %.2f of its share, at most %.2f", load, hole, worst)
		}
		if back < 0.85 {
			t.Errorf("load %g: 10 s after the failures ended it gets %.2f of its share", load, back)
		}
	}
}

// The starved one: an estimate as bad as they come on a server that is now as
// good as the others.
func TestPeakEWMAStarved(t *testing.T) {
	alone(t)
	for _, load := range []float64{0.05, 0.3, 0.7} {
		share := seeds(func(seed uint64) float64 {
			f := newFleet(named(t, "peak_ewma"), 6, load, seed)
			f.run(10 * time.Second)
			for range 60 {
				f.run(100 * time.Millisecond)
				f.policy.(balance.Learner).Learn(f.members[0].Backend, balance.Observation{Now: f.now, FirstByte: time.Minute})
			}
			if got := f.members[0].Backend.Latency(f.now); got < 50*time.Second || got > 61*time.Second {
				t.Fatalf("60 answers of a minute make an estimate of %v", got)
			}
			f.run(10 * time.Second)
			f.run(10 * time.Second)
			return f.share(0)
		})
		t.Logf("load %g: 10 to 20 s later it gets %.2f of its share", load, share)
		if share < 0.85 {
			t.Errorf("load %g: 10 to 20 s later it gets %.2f of its share", load, share)
		}
	}
}

// One slow answer costs a backend some of its work for some seconds, not all.
func TestPeakEWMAOutlier(t *testing.T) {
	alone(t)
	for _, load := range []float64{0.3, 0.7} {
		share := seeds(func(seed uint64) float64 {
			f := newFleet(named(t, "peak_ewma"), 6, load, seed)
			f.run(10 * time.Second)
			before := f.members[0].Backend.Latency(f.now)
			f.policy.(balance.Learner).Learn(f.members[0].Backend, balance.Observation{Now: f.now, FirstByte: time.Minute})
			if after := f.members[0].Backend.Latency(f.now); after < before || after > before*21/10 {
				t.Errorf("one answer of a minute moved the estimate from %v to %v, want twice at most", before, after)
			}
			f.run(3 * time.Second)
			return f.share(0)
		})
		t.Logf("load %g: in the 3 s after one slow answer it gets %.2f of its share", load, share)
		if share < 0.4 {
			t.Errorf("load %g: in the 3 s after one slow answer it gets %.2f of its share", load, share)
		}
	}
}

// A newcomer among busy servers is not flooded: in its first second it never has
// more than twice what the others have.
func TestPeakEWMANewcomer(t *testing.T) {
	alone(t)
	for _, name := range []string{"least_request", "peak_ewma"} {
		for _, speed := range []float64{0.2, 1} { // cold, warm
			worst := 0.0
			rate := seeds(func(seed uint64) float64 {
				f := newFleet(named(t, name), 6, 0.8, seed)
				for _, s := range f.servers {
					s.workers = 20
				}
				f.gap /= 10
				f.run(10 * time.Second)
				s := f.join()
				s.workers, s.speed = 20, speed
				picked := 0
				for range 100 {
					f.run(10 * time.Millisecond)
					picked += s.picked
					mean := 0.0
					for _, m := range f.members[:6] {
						mean += float64(m.Backend.InFlight()) / 6
					}
					worst = max(worst, float64(f.members[6].Backend.InFlight())/mean)
				}
				return float64(picked) * float64(f.gap) / 1e9 * 7
			})
			t.Logf("%s: a newcomer of speed %g gets %.2f of its share in its first second, at most %.2f times what others have in flight", name, speed, rate, worst)
			if name == "peak_ewma" && (worst > 2 || rate > 1.6) {
				t.Errorf("the newcomer of speed %g is flooded: %.2f times the others", speed, worst)
			}
		}
	}
}

// Equal servers keep equal shares: the work of each does not swing from second
// to second more than where latencies are not looked at.
func TestPeakEWMANoOscillation(t *testing.T) {
	alone(t)
	swing := func(name string, load float64) float64 {
		return seeds(func(seed uint64) float64 {
			f := newFleet(named(t, name), 6, load, seed)
			f.run(10 * time.Second)
			sum := 0.0
			for range 30 {
				f.run(time.Second)
				for i := range f.servers {
					sum += (f.share(i) - 1) * (f.share(i) - 1)
				}
			}
			return math.Sqrt(sum / 30 / 6)
		})
	}
	for _, load := range []float64{0.1, 0.3, 0.7, 0.9} {
		random, p2c, least, peak := swing("random", load), swing("p2c", load), swing("least_request", load), swing("peak_ewma", load)
		t.Logf("load %g: share of a second off by random %.3f, p2c %.3f, least_request %.3f, peak_ewma %.3f", load, random, p2c, least, peak)
		if peak > 1.5*random {
			t.Errorf("load %g: peak_ewma swings by %.3f, random by %.3f", load, peak, random)
		}
	}
}

// Shares follow the weights, as with least_request, when latencies are equal but
// for chance.
func TestPeakEWMAWeights(t *testing.T) {
	alone(t)
	share := func(name string, load float64) float64 {
		return seeds(func(seed uint64) float64 {
			f := newFleet(named(t, name), 6, load*10/6, seed)
			f.servers[0].workers = 10
			f.members[0].Weight = 5
			f.picker = f.policy.Build(balance.NewSet(f.members, 1, false))
			f.run(10 * time.Second)
			f.run(30 * time.Second)
			return f.share(0) / 6
		})
	}
	for _, load := range []float64{0.3, 0.7, 0.9} {
		least, peak := share("least_request", load), share("peak_ewma", load)
		t.Logf("load %g: weight 5 of 10 gets %.3f by least_request, %.3f by peak_ewma", load, least, peak)
		if math.Abs(peak-least) > 0.06 {
			t.Errorf("load %g: weight 5 of 10 gets %.3f by least_request, %.3f by peak_ewma", load, least, peak)
		}
	}
}

// Learning and picking go on at once, without a lock or an allocation.
func TestPeakEWMAConcurrent(t *testing.T) {
	ms := members(40, 1, 2)
	policy := named(t, "peak_ewma")
	p := build(policy, ms)
	learner := policy.(balance.Learner)
	var wg sync.WaitGroup
	for k := range uint64(4) {
		wg.Go(func() {
			d := rand.New(rand.NewPCG(k, 3))
			for i := range 5000 {
				now := balance.Instant(i) * 1e6
				b, ok := p.Pick(balance.Request{Rand: d.Uint64(), Now: now})
				if !ok || !b.Reserve() {
					t.Error("nobody")
					return
				}
				b.Release()
				learner.Learn(b, balance.Observation{Now: now, FirstByte: time.Duration(d.IntN(1e8)), Failed: d.IntN(20) == 0})
			}
		})
	}
	wg.Wait()
	for _, m := range ms {
		if l := m.Backend.Latency(5e9); l < 0 || l > 6*time.Second {
			t.Errorf("an estimate of %v", l)
		}
	}
	o := balance.Observation{Now: 6e9, FirstByte: 1e6}
	if got := testing.AllocsPerRun(200, func() {
		o.Now += 1e7
		learner.Learn(ms[0].Backend, o)
	}); got != 0 {
		t.Errorf("Learn allocates %g times", got)
	}
}

func BenchmarkLearn(b *testing.B) {
	backend := balance.NewBackend("b", "")
	learner := balance.NewPeakEWMA(balance.EWMAConfig{}).(balance.Learner)
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, step := range map[string]balance.Instant{"every 10us": 1e4, "every 10ms": 1e7} {
		b.Run(name, func(b *testing.B) {
			o := balance.Observation{}
			b.ReportAllocs()
			for b.Loop() {
				o.Now += step
				o.FirstByte = time.Duration(1e7 + rnd.IntN(1e7))
				learner.Learn(backend, o)
			}
		})
	}
}

// BenchmarkPickLearned is peak_ewma when every member's estimate is another one,
// in half of them far from the mean.
func BenchmarkPickLearned(b *testing.B) {
	for _, n := range append([]int{256}, benchSizes...) {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ms := members(n)
			policy := balance.NewPeakEWMA(balance.EWMAConfig{})
			rnd := rand.New(rand.NewPCG(1, 2))
			for _, m := range ms {
				for range 100 {
					policy.(balance.Learner).Learn(m.Backend, balance.Observation{FirstByte: time.Duration(5e6 + rnd.IntN(5e7))})
				}
				load(m.Backend, rnd.IntN(20))
			}
			p := build(policy, ms)
			r := balance.Request{Now: 1e9}
			b.ReportAllocs()
			for b.Loop() {
				r.Rand = rnd.Uint64()
				r.Now += 1e4
				sink, _ = p.Pick(r)
			}
		})
	}
}

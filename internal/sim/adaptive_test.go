// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// limited is a pool with an adaptive limit: 4 servers that work on 8 requests at
// once for 100 ms, 320/s in all, asked for load times that. Their health pages are
// served by the same workers, and clients leave after 2 s.
func limited(seed uint64, load float64, until time.Duration, tune func(*setting)) *stage {
	s := &setting{
		seed: seed, policy: "p2c", servers: 4, load: load,
		server:  ServerConfig{Service: Exponential(100 * time.Millisecond), Concurrency: 8, ProbeQueues: true, ProbeTime: 5 * time.Millisecond},
		traffic: Traffic{Until: until, Timeout: 2 * time.Second},
		tune:    func(_ int, c *BalancerConfig) { c.Pool.Limits.Adaptive.Enabled = true },
	}
	if tune != nil {
		tune(s)
	}
	return s.build()
}

func (st *stage) adaptive() pool.AdaptiveSnapshot { return st.balancers[0].Pool().Snapshot().Adaptive }

// goodput is what was answered well in a phase over what the servers can do at speed.
func (st *stage) goodput(phase string, long time.Duration, speed float64) float64 {
	return float64(st.Stats().Phase(phase).OK) / (st.capacity * speed * long.Seconds())
}

func eachSeed(t *testing.T, do func(t *testing.T, seed uint64)) {
	t.Helper()
	for seed := range max(1, uint64(5/slower)) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) { do(t, seed+1) })
	}
}

// At half load nothing is refused, however unevenly requests come: a burst drains.
func TestAdaptiveLeavesBurstsAlone(t *testing.T) {
	for name, tune := range map[string]func(*setting){
		"at random": nil,
		"waves":     func(s *setting) { s.traffic.Pattern = Waves },
		"bursts":    func(s *setting) { s.traffic.Pattern, s.traffic.Burst = Bursts, 20 },
	} {
		t.Run(name, func(t *testing.T) {
			eachSeed(t, func(t *testing.T, seed uint64) {
				st := limited(seed, 0.5, 60*time.Second, tune)
				st.Finish(limit)
				if n := st.Stats().Reasons["shed"]; n != 0 {
					t.Errorf("%d of %d requests were refused: %+v", n, st.Stats().Requests, st.adaptive())
				}
			})
		})
	}
}

// The limit follows a capacity that is halved and doubled again at 120 % load: in
// each part at least 90 % of what the servers can do then is answered in time,
// the changes themselves and what is learned from them included.
func TestAdaptiveFollowsCapacity(t *testing.T) {
	const part = 40 * time.Second
	eachSeed(t, func(t *testing.T, seed uint64) {
		st := limited(seed, 1.2, 3*part, nil)
		st.Phase("whole")
		for i, phase := range []string{"half", "whole again"} {
			st.At(part*time.Duration(i+1), func() {
				st.Phase(phase)
				for _, s := range st.servers {
					s.SetSpeed([]float64{0.5, 1}[i])
				}
			})
		}
		st.Finish(limit)
		for phase, speed := range map[string]float64{"whole": 1, "half": 0.5, "whole again": 1} {
			if got := st.goodput(phase, part, speed); got < 0.9 {
				t.Errorf("%s: goodput %.2f, want 0.9: %v", phase, got, st.Stats().Phase(phase).Reasons)
			}
		}
	})
}

// Requests that are three times as much work: latency rises to more than twice
// what it was. At a load that the servers can do (25 %, then 75 %) hardly anything is
// refused; at one that they cannot (40 %, then 120 %, of which 0.83 is all there is)
// 90 % of what they can do is done, while it is found out how much of the latency is
// the work's own. The worst of twelve seeds are 0.66 and 0.72 in the second case:
// there a first cut is judged by a throughput from the moment of the change, and a
// second one of four seconds follows.
func TestAdaptiveKnowsSlowerWork(t *testing.T) {
	for _, c := range []struct {
		name       string
		load, part float64 // least part of good answers while work is slow
	}{{"and keeps up", 0.25, 0.9}, {"and does not", 0.4, 0.75}} {
		t.Run(c.name, func(t *testing.T) {
			eachSeed(t, func(t *testing.T, seed uint64) {
				var st *stage
				st = limited(seed, c.load, 90*time.Second, func(s *setting) {
					s.traffic.Size = func(*Stream) float64 {
						if st.Now() >= 30*time.Second && st.Now() < 60*time.Second {
							return 3
						}
						return 1
					}
				})
				st.Phase("fast")
				st.At(30*time.Second, func() { st.Phase("slow") })
				st.At(60*time.Second, func() { st.Phase("fast again") })
				st.Finish(limit)
				for phase, least := range map[string]float64{"fast": 1, "slow": c.part, "fast again": 0.97} {
					if p := st.Stats().Phase(phase); float64(p.OK) < least*float64(p.Requests) {
						t.Errorf("%s: %d of %d good, want %.2f: %v", phase, p.OK, p.Requests, least, p.Reasons)
					}
				}
			})
		})
	}
}

// Ten times the load at once, from clients who leave: what was let in before it
// was noticed is lost, and then the servers do useful work again. It is over when
// the load is.
func TestAdaptiveSurge(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		st := limited(seed, 0.6, 60*time.Second, nil)
		st.Phase("before")
		st.At(20*time.Second, func() { st.Phase("at first"); st.source.SetRate(10 * st.capacity) })
		st.At(30*time.Second, func() { st.Phase("later") })
		st.At(45*time.Second, func() { st.Phase("after"); st.source.SetRate(0.6 * st.capacity) })
		st.Finish(limit)
		if got := st.goodput("later", 15*time.Second, 1); got < 0.9 {
			t.Errorf("goodput %.2f ten seconds into the surge: %v", got, st.Stats().Phase("later").Reasons)
		}
		if p := st.Stats().Phase("after"); float64(p.OK) < 0.97*float64(p.Requests) {
			t.Errorf("%d of %d good after the surge: %v", p.OK, p.Requests, p.Reasons)
		}
	})
}

// What matters least is refused first: of three kinds that are 40 % of capacity
// each, the most important hardly loses anything, and the least bears the excess.
func TestAdaptivePriorities(t *testing.T) {
	whole(t)
	eachSeed(t, func(t *testing.T, seed uint64) {
		st := limited(seed, 0.4, 60*time.Second, nil)
		kinds := map[*Source]balance.Priority{st.source: balance.NormalPriority}
		for _, p := range []balance.Priority{balance.LowPriority, balance.HighPriority} {
			kinds[st.AddTraffic(Traffic{To: st.balancers, Rate: 0.4 * st.capacity, Until: 60 * time.Second, Timeout: 2 * time.Second, Priority: p})] = p
		}
		var all, refused [balance.Priorities]int
		st.OnRecord = func(r *Record) {
			p := kinds[r.Source]
			all[p]++
			if r.Reason == "shed" {
				refused[p]++
			}
		}
		st.Finish(limit)
		part := func(p balance.Priority) float64 { return float64(refused[p]) / float64(all[p]) }
		low, normal, high := part(balance.LowPriority), part(balance.NormalPriority), part(balance.HighPriority)
		if low < 0.3 || normal > 0.12 || high > 0.04 || normal < high {
			t.Errorf("refused: low %.3f, normal %.3f, high %.3f", low, normal, high)
		}
		s := st.adaptive()
		for p := range all {
			if int(s.Shed[p]) != refused[p] {
				t.Errorf("%v: %d refused, the pool counted %d", balance.Priority(p), refused[p], s.Shed[p])
			}
		}
		if s.InFlight != 0 {
			t.Errorf("%d in flight at rest", s.InFlight)
		}
	})
}

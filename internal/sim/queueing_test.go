// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/pool"
)

// single runs one server behind one balancer and returns the mean time in the
// system and the part of the requests that waited, in units of the service time.
func single(seed uint64, c int, load float64, service Dist, requests int) (mean, busy float64) {
	w := NewWorld(seed)
	s := w.AddServer(ServerConfig{ID: "a", Service: service, Concurrency: c})
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
	rate := load * float64(c) / service.Mean().Seconds()
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: rate, Limit: requests})
	w.Finish(1 << 60)
	return w.Stats().Latency.Mean().Seconds() / service.Mean().Seconds(),
		s.Figures().Busy.Seconds() / w.Now().Seconds() / float64(c)
}

// erlangC is the probability that a request waits in M/M/c (Erlang, 1917; from
// Erlang B by its recurrence).
func erlangC(c int, load float64) float64 {
	a := load * float64(c)
	b := 1.0
	for i := 1; i <= c; i++ {
		b = a * b / (float64(i) + a*b)
	}
	return b / (1 - load*(1-b))
}

// TestQueueingTheory: one server alone is M/M/c, M/D/1 and M/G/1; the mean over
// four runs of 100,000 requests lies within 3 % of the formulas (5 % for the
// lognormal, whose variance counts and converges slowly), the utilisation within
// 1 %.
//
//	M/M/c: 1 + C(c, a) / (c (1 - load))   in units of the service time
//	M/G/1: 1 + load (1 + cv2) / (2 (1 - load))   (Pollaczek and Khinchine)
func TestQueueingTheory(t *testing.T) {
	const ms = time.Millisecond
	mg1 := func(load, cv2 float64) float64 { return 1 + load*(1+cv2)/(2*(1-load)) }
	mmc := func(c int, load float64) float64 { return 1 + erlangC(c, load)/(float64(c)*(1-load)) }
	for _, q := range []struct {
		name      string
		c         int
		load      float64
		service   Dist
		want      float64
		tolerance float64
	}{
		{"M/M/1 at 50 %", 1, 0.5, Exponential(50 * ms), 2, 0.03},
		{"M/M/1 at 80 %", 1, 0.8, Exponential(50 * ms), 5, 0.03},
		{"M/M/4 at 80 %", 4, 0.8, Exponential(50 * ms), mmc(4, 0.8), 0.03},
		{"M/M/16 at 90 %", 16, 0.9, Exponential(50 * ms), mmc(16, 0.9), 0.03},
		{"M/D/1 at 70 %", 1, 0.7, Fixed(50 * ms), mg1(0.7, 0), 0.03},
		{"M/G/1 at 70 %, lognormal", 1, 0.7, Lognormal(50*ms, 0.8), mg1(0.7, math.Exp(0.64)-1), 0.05},
	} {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			mean, busy := 0.0, 0.0
			for seed := range uint64(4) {
				m, b := single(seed, q.c, q.load, q.service, 100_000/slower)
				mean, busy = mean+m/4, busy+b/4
			}
			tolerance := q.tolerance * math.Sqrt(slower)
			if math.Abs(mean/q.want-1) > tolerance {
				t.Errorf("mean time in the system is %.3f service times, the formula says %.3f", mean, q.want)
			}
			if math.Abs(busy/q.load-1) > tolerance/3 {
				t.Errorf("utilisation %.4f at load %.2f", busy, q.load)
			}
		})
	}
}

// TestLittle: requests inside are rate times time inside (Little, 1961), with a
// queue, pauses and a warm-up in the middle.
func TestLittle(t *testing.T) {
	w := NewWorld(3)
	s := w.AddServer(ServerConfig{
		ID: "a", Service: Lognormal(20*time.Millisecond, 1), Concurrency: 4, Cold: 2 * time.Second,
		PauseEvery: Exponential(time.Second), PauseFor: Uniform(0, 50*time.Millisecond),
	})
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 100, Limit: 20_000})
	w.Finish(time.Hour)
	inside := s.Figures().Inside.Seconds()
	waited := w.Stats().Latency.Mean().Seconds() * 20_000
	if math.Abs(inside/waited-1) > 1e-6 {
		t.Errorf("%.6f request-seconds inside the server, clients waited %.6f", inside, waited)
	}
}

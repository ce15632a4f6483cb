// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// seeds is how many runs each fact is held to.
const seeds = 50 / slower

// raceWorld is servers with exponential work of 50 ms on average, and balancers that only place: no checks, no limits.
type raceWorld struct {
	policy    string
	servers   int
	slots     int
	balancers int
	requests  int
	load      float64
	stale     time.Duration
	each      func(i int, c *ServerConfig)
}

func (r raceWorld) run(t *testing.T, seed uint64) *World {
	t.Helper()
	w := NewWorld(seed)
	if r.stale > 0 {
		w.ShareCounts(r.stale)
	}
	for i := range r.servers {
		c := ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Exponential(50 * time.Millisecond), Concurrency: r.slots}
		if r.each != nil {
			r.each(i, &c)
		}
		w.AddServer(c)
	}
	var to []*Balancer
	for range max(r.balancers, 1) {
		to = append(to, w.AddBalancer(BalancerConfig{Pool: pool.Config{Policy: policy(t, r.policy), First: true}, Response: time.Hour}))
	}
	rate := r.load * float64(r.servers*r.slots) / 0.050
	w.AddTraffic(Traffic{To: to, Rate: rate, Limit: r.requests})
	if !w.Finish(24 * time.Hour) {
		t.Fatalf("%d requests have not ended", w.Open())
	}
	if s := w.Stats(); s.OK != uint64(r.requests) {
		t.Fatalf("%d of %d requests are OK", s.OK, r.requests)
	}
	return w
}

// p99 runs all seeds and returns the 99th percentile of each in milliseconds.
func (r raceWorld) p99(t *testing.T) []float64 {
	t.Helper()
	out := make([]float64, seeds)
	for i := range out {
		out[i] = inMillis(r.run(t, uint64(i+1)).Stats().Latency.Quantile(0.99))
	}
	return out
}

// over divides seed by seed: the same arrivals under two policies.
func over(a, b []float64) Cell {
	q := make([]float64, len(a))
	for i := range a {
		q[i] = a[i] / b[i]
	}
	return cellOf(q)
}

// TestRaceOfEqualServers holds what `weir sim race` shows: six equal servers at
// 70 % load, one request in twenty six times larger. Round robin's p99 is 1.8 to
// 3.5 times least_request's (median over the seeds; 1.4 to 4 in nine of ten),
// random's is worse than round robin's, and p2c and peak_ewma are within half of
// least_request's.
func TestRaceOfEqualServers(t *testing.T) {
	t.Parallel()
	r := race.Run(Options{Seeds: seeds, Policies: []string{"least_request", "p2c", "peak_ewma", "round_robin", "random"}})
	if c := r.Cell("round_robin", "over_least"); c.Median < 1.8 || c.Median > 3.5 || c.Low < 1.4 || c.High > 4 {
		t.Errorf("round_robin's p99 is %.2f (%.2f to %.2f) times least_request's, not 1.8 to 3.5", c.Median, c.Low, c.High)
	}
	if rr, random := r.Cell("round_robin", "p99"), r.Cell("random", "p99"); random.Median < 1.1*rr.Median {
		t.Errorf("random's p99 is %.0f ms, round_robin's %.0f ms", random.Median, rr.Median)
	}
	for _, name := range []string{"p2c", "peak_ewma"} {
		if c := r.Cell(name, "over_least"); c.Median > 1.5 {
			t.Errorf("%s's p99 is %.2f times least_request's", name, c.Median)
		}
	}
	for _, row := range r.Rows {
		if c := r.Cell(row.Name, "errors"); c.High != 0 {
			t.Errorf("%s fails requests: %+v", row.Name, c)
		}
	}
}

// TestRaceWithASlowServer: six servers at 70 % load, one of them at 30 % of the
// speed. Round robin and random give it 2.3 times what it can do, and its queue
// grows as long as the run lasts; round robin with weights of 10 and 3 stays
// stable, and so do the policies that look at load, with equal weights.
func TestRaceWithASlowServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy   string
		weighted bool
		diverges bool
	}{
		{"round_robin", false, true},
		{"random", false, true},
		{"round_robin", true, false},
		{"p2c", false, false},
		{"least_request", false, false},
		{"peak_ewma", false, false},
	} {
		t.Run(fmt.Sprintf("%s weighted=%v", c.policy, c.weighted), func(t *testing.T) {
			t.Parallel()
			r := raceWorld{policy: c.policy, servers: 6, slots: 4, requests: 4000, load: 0.7, each: func(i int, s *ServerConfig) {
				if c.weighted {
					s.Weight = 10
				}
				if i == 0 {
					s.Speed = 0.3
					if c.weighted {
						s.Weight = 3
					}
				}
			}}
			twice := r
			twice.requests *= 2
			short, long := r.p99(t), twice.p99(t)
			by := over(long, short)
			worst := cellOf(long)
			if c.diverges && (by.Median < 1.6 || worst.Median < 5000) {
				t.Errorf("twice the run has %.2f times the p99, %.0f ms: it should grow with the run", by.Median, worst.Median)
			}
			if !c.diverges && (by.Median > 1.25 || worst.High > 1000) {
				t.Errorf("twice the run has %.2f times the p99, %.0f ms at most: it should not grow", by.Median, worst.High)
			}
		})
	}
}

// TestRaceOfStaleCounts: twenty balancers that know each other's requests as they
// were 300 ms ago. least_request and peak_ewma send everything where the load was
// least: their p99 is at least three times p2c's. p2c, which compares two at
// random, loses about half against fresh counts in the mean (25 to 75 %).
func TestRaceOfStaleCounts(t *testing.T) {
	t.Parallel()
	base := raceWorld{servers: 20, slots: 4, balancers: 20, requests: 5000, load: 0.7, stale: 300 * time.Millisecond}
	p99 := map[string][]float64{}
	for _, name := range []string{"p2c", "least_request", "peak_ewma"} {
		r := base
		r.policy = name
		p99[name] = r.p99(t)
	}
	for _, name := range []string{"least_request", "peak_ewma"} {
		if c := over(p99[name], p99["p2c"]); c.Low < 3 {
			t.Errorf("%s's p99 is %.2f (%.2f to %.2f) times p2c's, not 3 or more", name, c.Median, c.Low, c.High)
		}
	}
	stale, fresh := make([]float64, seeds), make([]float64, seeds)
	for i := range seeds {
		r := base
		r.policy = "p2c"
		stale[i] = inMillis(r.run(t, uint64(i+1)).Stats().Latency.Mean())
		r.stale = time.Nanosecond
		fresh[i] = inMillis(r.run(t, uint64(i+1)).Stats().Latency.Mean())
	}
	if c := over(stale, fresh); c.Median < 1.25 || c.Median > 1.75 {
		t.Errorf("stale counts make p2c's mean %.2f (%.2f to %.2f) times as long, not about one and a half", c.Median, c.Low, c.High)
	}
}

// TestIdleNewcomerUnderP2C: one idle server among n busy ones is in two of n draws
// and wins both: 2/n of the picks, within 3 % over all seeds. Nobody floods it.
func TestIdleNewcomerUnderP2C(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 10, 40} {
		picks, all := 0.0, 0.0
		for seed := range uint64(seeds) {
			w := NewWorld(seed + 1)
			for i := range n {
				c := ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Fixed(time.Hour), Concurrency: 1000}
				if i == 0 {
					c.Service = Fixed(0) // idle at every pick
				}
				w.AddServer(c)
			}
			lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{Policy: balance.NewP2C(2), First: true}})
			// First everybody else gets something to do.
			w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 1000, Pattern: Even, Limit: 30 * n, Name: "filling"})
			w.Run(time.Second * time.Duration(n))
			before := w.Servers()[0].Figures().Arrived
			busy := 0
			for _, s := range w.Servers()[1:] {
				if running, _ := s.Busy(); running > 0 {
					busy++
				}
			}
			if busy != n-1 {
				t.Fatalf("%d of %d others are busy", busy, n-1)
			}
			w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 1000, Pattern: Even, Limit: 2000, Name: "measured"})
			w.Run(time.Second*time.Duration(n) + 10*time.Second)
			picks += float64(w.Servers()[0].Figures().Arrived - before)
			all += 2000
		}
		if got, want := picks/all, 2/float64(n); math.Abs(got/want-1) > 0.03*math.Sqrt(slower) {
			t.Errorf("an idle newcomer among %d gets %.4f of the picks, not %.4f", n, got, want)
		}
	}
}

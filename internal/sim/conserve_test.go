// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

// turmoil is a world in which everything happens at once: it is what conservation
// and determinism are tested on.
func turmoil(t testing.TB, seed uint64, policyName string) *World {
	const ms = time.Millisecond
	w := NewWorld(seed)
	var servers []*Server
	for i := range 6 {
		servers = append(servers, w.AddServer(ServerConfig{
			ID: fmt.Sprintf("s%d", i+1), Zone: []string{"x", "y"}[i%2], Service: Lognormal(20*ms, 0.8), Concurrency: 4, Queue: 16,
			Speed: []float64{1, 1, 0.5, 1, 1, 2}[i], RetryAfter: time.Second * time.Duration(i%2), Errors: 0.01 * float64(i%2),
			Cold: 5 * time.Second, Boot: time.Second, Reports: i%3 == 0, ProbeQueues: i == 4, ProbeTime: ms, Cancels: i == 2,
			PauseEvery: Exponential(3 * time.Second), PauseFor: Uniform(10*ms, 200*ms),
		}))
	}
	rules := pool.NewRetryRules(3, true, []int{502, 503, 504}, 2*time.Second)
	var edges []*Balancer
	inner := w.AddBalancer(BalancerConfig{
		Name: "inner", Pool: turmoilPool(t, policyName), Retry: rules, Request: 2 * time.Second, Response: 500 * ms,
		Connect: 100 * ms, Network: Exponential(ms), Marks: true, ProbeLoss: 0.05,
	})
	var specs []pool.Spec
	for _, s := range servers[:4] {
		specs = append(specs, s.Spec())
	}
	specs = append(specs, pool.Spec{ID: "inner", Weight: 2})
	for range 2 {
		edges = append(edges, w.AddBalancer(BalancerConfig{
			Pool: turmoilPool(t, policyName), Specs: specs, Retry: rules, Request: 3 * time.Second, Network: Fixed(ms), Marks: true,
		}))
	}
	w.AddTraffic(Traffic{To: edges, Rate: 300, Pattern: Waves, Until: 40 * time.Second, Timeout: time.Second, Retries: 1, Backoff: 50 * ms, Keys: Keys{N: 100, Skew: 1}, Size: Heavy(0.05, 6), Unsafe: 0.2})
	w.AddTraffic(Traffic{To: edges, Rate: 50, Pattern: Bursts, Limit: 1500})
	w.AddTraffic(Traffic{To: []*Balancer{inner}, Users: 30, Until: 35 * time.Second})
	w.AddConnections(Connections{To: edges[0], Clients: 40, Rate: 1, Hold: Exponential(5 * time.Second), Spread: time.Second})
	w.AddAutoscaler(AutoscalerConfig{
		Name: "auto", Server: ServerConfig{Service: Exponential(20 * ms), Concurrency: 2, Boot: time.Second, Cold: 2 * time.Second},
		Balancers: []*Balancer{inner}, Start: 1, Max: 4, Period: 2 * time.Second, Settle: 6 * time.Second, Drain: time.Second, Grace: 3 * time.Second,
	})
	for i, f := range []Fault{
		{Mode: Refuse}, {Mode: Unreachable}, {Mode: Drop}, {Mode: Silent, Checks: true}, {Mode: Answer, After: ms},
		{Mode: Cut, After: 5 * ms}, {Mode: Fail, Part: 0.5}, {Mode: Drop, Part: 0.3},
	} {
		s := servers[i%len(servers)]
		w.At(time.Duration(3+3*i)*time.Second, func() { s.SetFault(f) })
		w.At(time.Duration(5+3*i)*time.Second, func() { s.SetFault(Fault{}) })
	}
	w.At(8*time.Second, servers[0].Kill)
	w.At(10*time.Second, func() { servers[0].Start(nil) })
	w.At(12*time.Second, func() { servers[1].Pause(2 * time.Second) })
	w.At(14*time.Second, func() {
		w.Deploy(Deploy{Servers: servers[2:5], Every: 4 * time.Second, Drains: true, Delay: 2 * time.Second})
	})
	w.At(20*time.Second, func() { edges[0].Update(specs[1:]) })
	w.At(22*time.Second, func() { edges[0].Update(specs) })
	w.At(30*time.Second, func() { w.Deploy(Deploy{Servers: servers[:2]}) })
	return w
}

func turmoilPool(t testing.TB, name string) pool.Config {
	return pool.Config{
		Policy: policy(t, name), First: true,
		Active:    health.Active{Enabled: true, Interval: 2 * time.Second, FastInterval: 500 * time.Millisecond, Timeout: 500 * time.Millisecond, Jitter: 0.1, Fall: 2, Rise: 2, HTTP: true},
		Passive:   health.Passive{Enabled: true, Consecutive: 5, ConsecutiveConnect: 2, Eject: 5 * time.Second, MaxEject: 20 * time.Second, MaxEjected: 0.5},
		Overload:  health.Overload{Enabled: true, RetryAfter503: true, ORCA: true, QueueFull: true},
		SlowStart: pool.SlowStart{Window: 5 * time.Second, From: 0.1},
		Panic:     pool.Panic{Threshold: 0.5, Floor: 1},
		Limits:    pool.Limits{BackendRequests: 20, Queue: 32, QueueTimeout: 300 * time.Millisecond},
		Retry:     pool.Budget{Share: 0.2, MinPerSecond: 3, Base: 25 * time.Millisecond, Max: 250 * time.Millisecond},
	}
}

// TestConservation: whatever happens, each request ends exactly once, and when all
// is over nothing is in flight anywhere: in no pool, no queue, no server.
func TestConservation(t *testing.T) {
	for _, name := range []string{"p2c", "round_robin", "random", "least_request", "peak_ewma", "ring_hash", "rendezvous", "maglev"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range max(3/slower, 1) {
				conserve(t, turmoil(t, uint64(seed+1), name))
			}
		})
	}
}

func conserve(t *testing.T, w *World) {
	t.Helper()
	bugs := pool.LeaseBugs()
	ended := 0
	w.OnRecord = func(r *Record) {
		ended++
		if r.Ended < r.Arrived || r.Tries < 1 || r.OK && (r.Server == nil || r.Attempts < 1 || r.Reason != "") {
			t.Fatalf("%+v", *r)
		}
	}
	held := w.held[0]
	w.Run(60 * time.Second)
	held.Stop()
	w.Run(180 * time.Second) // zombies end, drains too
	started := 0
	for _, s := range w.traffic {
		started += s.Started()
		if s.Started() != s.Ended() || !s.over {
			t.Errorf("%s: %d requests arrived, %d ended", s.Name(), s.Started(), s.Ended())
		}
	}
	s := w.Stats()
	if w.Open() != 0 || ended != started || int(s.Requests) != started || started < 5000 {
		t.Errorf("%d open; %d arrived, %d ended, %d counted", w.Open(), started, ended, s.Requests)
	}
	reasons := uint64(0)
	for _, n := range s.Reasons {
		reasons += uint64(n)
	}
	if s.OK+reasons != s.Requests || s.OK < s.Requests/2 {
		t.Errorf("%d OK and %d not, of %d: %v", s.OK, reasons, s.Requests, s.Reasons)
	}
	for _, b := range w.balancers {
		snap := b.pool.Snapshot()
		if snap.InFlight != 0 || snap.Queue != 0 || len(b.waiting) != 0 {
			t.Errorf("%s: %d in flight, %d queued", b.Name(), snap.InFlight, snap.Queue)
		}
		for i := range snap.Backends {
			if n := snap.Backends[i].InFlight; n != 0 {
				t.Errorf("%s: %d in flight on %s", b.Name(), n, snap.Backends[i].ID)
			}
		}
	}
	for _, srv := range w.servers {
		running, waiting := srv.Busy()
		if running != 0 || waiting != 0 || srv.Connections() != 0 {
			t.Errorf("%s: %d running, %d waiting, %d connections", srv.ID(), running, waiting, srv.Connections())
		}
	}
	if pool.LeaseBugs() != bugs {
		t.Errorf("%d leases were finished twice", pool.LeaseBugs()-bugs)
	}
}

// fingerprint runs a world and hashes all that can be seen of it.
func fingerprint(t testing.TB, w *World) uint64 {
	h := fnv.New64a()
	w.OnRecord = func(r *Record) {
		server := "-"
		if r.Server != nil {
			server = r.Server.ID()
		}
		fmt.Fprintln(h, r.Source.Name(), r.Arrived, r.Ended, r.Balancer.Name(), server, r.Tries, r.Attempts, r.Status, r.Reason, r.Queued)
	}
	w.OnNotice = func(b *Balancer, n pool.Notice) {
		id := ""
		if n.Backend != nil {
			id = n.Backend.ID()
		}
		fmt.Fprintln(h, b.Name(), n.At, n.Kind, id, n.From, n.To, n.Reason, n.Share, n.Why)
	}
	samples := w.AddSampler(time.Second, w.balancers[0])
	w.Run(60 * time.Second)
	fmt.Fprintln(h, samples.Points, w.Events(), w.stats.ReasonNames())
	return h.Sum64()
}

// TestSameSeedSameRun: all records, notices and samples of a run are the same
// again, and others with another seed.
func TestSameSeedSameRun(t *testing.T) {
	names := []string{"p2c", "round_robin", "peak_ewma", "maglev"}
	for _, name := range names[:1+3/slower] {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, c := fingerprint(t, turmoil(t, 7, name)), fingerprint(t, turmoil(t, 7, name)), fingerprint(t, turmoil(t, 8, name))
			if a != b {
				t.Error("the same seed gives another run")
			}
			if a == c {
				t.Error("another seed gives the same run")
			}
		})
	}
}

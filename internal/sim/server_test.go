// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

const ms = time.Millisecond

// one is a world with one server, asked on the beat.
func one(c ServerConfig, b BalancerConfig) (*World, *Server, *[]Record) {
	w := NewWorld(1)
	c.ID = "a"
	s := w.AddServer(c)
	b.Pool.First = true
	lb := w.AddBalancer(b)
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 10, Pattern: Even, Limit: 100})
	records := &[]Record{}
	w.OnRecord = func(r *Record) { *records = append(*records, *r) }
	return w, s, records
}

// TestFaults: what each way to fail looks like from outside: the balancer's word,
// the time until then, and whether the server has done work.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		fault  Fault
		status int
		reason string
		after  time.Duration
		busy   bool
	}{
		{Fault{}, 200, "", 20 * ms, true},
		{Fault{Mode: Refuse}, 502, "connect_refused", 0, false},
		{Fault{Mode: Unreachable}, 502, "unreachable", 0, false},
		{Fault{Mode: Drop}, 504, "connect_timeout", 300 * ms, false},
		{Fault{Mode: Silent}, 504, "response_timeout", 700 * ms, false},
		{Fault{Mode: Answer, After: ms}, 500, "", ms, false},
		{Fault{Mode: Answer, Status: 503, After: ms}, 503, "", ms, false},
		{Fault{Mode: Cut, After: 5 * ms}, 502, "reset", 5 * ms, false},
		{Fault{Mode: Fail}, 500, "", 20 * ms, true},
	} {
		t.Run(fmt.Sprintf("%d %d", c.fault.Mode, c.fault.Status), func(t *testing.T) {
			w, s, records := one(ServerConfig{Service: Fixed(20 * ms)}, BalancerConfig{Connect: 300 * ms, Response: 700 * ms})
			s.SetFault(c.fault)
			if !w.Finish(time.Minute) {
				t.Fatal("not over")
			}
			for _, r := range *records {
				if r.Status != c.status || r.Reason != c.reason || r.Latency() != c.after {
					t.Fatalf("%d %q after %v, want %d %q after %v", r.Status, r.Reason, r.Latency(), c.status, c.reason, c.after)
				}
			}
			if busy := s.Figures().Busy > 0; busy != c.busy {
				t.Errorf("worked %v", s.Figures().Busy)
			}
		})
	}
}

// TestFaultOfAPart: 30 % of the requests are struck, and a retry may be lucky.
func TestFaultOfAPart(t *testing.T) {
	w := NewWorld(1)
	for _, id := range []string{"a", "b"} {
		w.AddServer(ServerConfig{ID: id, Service: Fixed(ms)}).SetFault(Fault{Mode: Refuse, Part: 0.3})
	}
	lb := w.AddBalancer(BalancerConfig{Retry: pool.NewRetryRules(2, true, nil, 0), Pool: pool.Config{First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 100, Limit: 20_000})
	w.Finish(time.Hour)
	s := w.Stats()
	if failed := float64(s.Failed()) / float64(s.Requests); math.Abs(failed-0.09) > 0.01 {
		t.Errorf("%.3f of the requests failed, not 0.3 x 0.3", failed)
	}
	if attempts := float64(s.Attempts) / float64(s.Requests); math.Abs(attempts-1.3) > 0.02 {
		t.Errorf("%.3f attempts per request, not 1.3", attempts)
	}
}

// TestSpeedChangesWhatIsUnderWay: 100 ms of work, half of it at full speed, is
// over after 50 + 50/0.25 ms; a pause adds its length, a stop waits for the end.
func TestSpeedChangesWhatIsUnderWay(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *World, s *Server)
		want time.Duration
	}{
		{"slower", func(w *World, s *Server) { w.At(150*ms, func() { s.SetSpeed(0.25) }) }, 250 * ms},
		{"pause", func(w *World, s *Server) { w.At(150*ms, func() { s.Pause(time.Second) }) }, 1100 * ms},
		{"two pauses", func(w *World, s *Server) {
			w.At(150*ms, func() { s.Pause(300 * ms) })
			w.At(250*ms, func() { s.Pause(300 * ms) })
		}, 500 * ms},
		{"a pause of another speed", func(w *World, s *Server) {
			w.At(150*ms, func() { s.Pause(100 * ms) })
			w.At(200*ms, func() { s.SetSpeed(0.5) })
		}, 250 * ms},
		{"kill", func(w *World, s *Server) { w.At(150*ms, s.Kill) }, 50 * ms},
		{"stop", func(w *World, s *Server) { w.At(150*ms, func() { s.Stop(0, 0, nil) }) }, 100 * ms},
		{"grace", func(w *World, s *Server) { w.At(150*ms, func() { s.Stop(0, 20*ms, nil) }) }, 70 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := NewWorld(1)
			s := w.AddServer(ServerConfig{ID: "a", Service: Fixed(100 * ms)})
			lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
			w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 10, Pattern: Even, Limit: 1})
			c.do(w, s)
			w.Finish(time.Minute)
			if got := w.Stats().Latency.Max(); got != c.want {
				t.Errorf("took %v, not %v", got, c.want)
			}
		})
	}
}

// TestColdStart: in the first tenth of the warm-up a server at 20 % takes nearly
// five times as long; after it, as long as ever; in between it never gets slower.
func TestColdStart(t *testing.T) {
	w, s, records := one(ServerConfig{Service: Fixed(10 * ms), Cold: 8 * time.Second, ColdSpeed: 0.2, Boot: 500 * ms}, BalancerConfig{})
	s.Kill()
	s.Start(nil)
	w.Finish(time.Minute)
	last := time.Hour
	seen := 0
	for _, r := range *records {
		if !r.OK {
			if r.Arrived >= 500*ms {
				t.Errorf("a request at %v failed: %s", r.Arrived, r.Reason)
			}
			continue
		}
		seen++
		if r.Latency() > last {
			t.Errorf("%v at %v, %v before: it cools", r.Latency(), r.Arrived, last)
		}
		last = r.Latency()
		if r.Arrived < time.Second && last < 35*ms || r.Arrived > 8600*ms && last != 10*ms {
			t.Errorf("%v at %v", last, r.Arrived)
		}
	}
	if seen < 90 {
		t.Errorf("%d answers", seen)
	}
}

// TestQueueOfAServer: one slot and two places to wait: of five at once two are
// turned away at once, with the Retry-After that was asked for.
func TestQueueOfAServer(t *testing.T) {
	w := NewWorld(1)
	w.AddServer(ServerConfig{ID: "a", Service: Fixed(10 * ms), Queue: 2, RetryAfter: time.Second})
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 1, Pattern: Bursts, Burst: 5, Limit: 5})
	got := map[time.Duration]int{}
	w.OnRecord = func(r *Record) { got[r.Latency()]++ }
	w.Finish(time.Hour)
	if got[0] != 2 || got[10*ms] != 1 || got[20*ms] != 1 || got[30*ms] != 1 || w.Stats().Reasons["status_503"] != 2 {
		t.Errorf("%v %v", got, w.Stats().Reasons)
	}
}

// TestPoolQueue: with one request per backend the pool's own queue holds the
// rest, in order, for at most its timeout.
func TestPoolQueue(t *testing.T) {
	w := NewWorld(1)
	w.AddServer(ServerConfig{ID: "a", Service: Fixed(100 * ms), Concurrency: 10})
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true, Limits: pool.Limits{BackendRequests: 1, Queue: 3, QueueTimeout: 250 * ms}}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 1, Pattern: Bursts, Burst: 6, Limit: 6})
	var got []string
	w.OnRecord = func(r *Record) { got = append(got, fmt.Sprint(r.Latency(), " ", r.Queued, " ", r.Reason)) }
	w.Finish(time.Hour)
	want := []string{"0s 0s queue_full", "0s 0s queue_full", "100ms 0s ", "200ms 100ms ", "250ms 250ms queue_timeout", "300ms 200ms "}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q", got)
	}
}

// TestProbes: a killed, a paused and an unready server are each seen within the
// detection time that the pool promises, and seen again when they are back; lost
// probes alone take nobody out who answers real requests.
func TestProbes(t *testing.T) {
	active := health.Active{Enabled: true, Interval: 2 * time.Second, FastInterval: 500 * ms, Timeout: 500 * ms, Jitter: 0.1, Fall: 2, Rise: 2, HTTP: true}
	for _, c := range []struct {
		name string
		down func(*Server)
		up   func(*Server)
		want health.State
		loss float64
	}{
		{"kill", (*Server).Kill, func(s *Server) { s.Start(nil) }, health.StateBroken, 0},
		{"pause", func(s *Server) { s.Pause(20 * time.Second) }, func(*Server) {}, health.StateBroken, 0},
		{"unready", func(s *Server) { s.SetReady(false) }, func(s *Server) { s.SetReady(true) }, health.StateNotReady, 0},
		{"loss", func(*Server) {}, func(*Server) {}, health.StateHealthy, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := NewWorld(1)
			a := w.AddServer(ServerConfig{ID: "a", Service: Fixed(10 * ms), Concurrency: 10})
			w.AddServer(ServerConfig{ID: "b", Service: Fixed(10 * ms), Concurrency: 10})
			lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true, Active: active}, ProbeNetwork: Exponential(ms), ProbeLoss: c.loss, Response: time.Second})
			w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 50, Until: 60 * time.Second})
			state := func() health.State { return lb.Pool().Snapshot().Backends[0].Health }
			w.Run(20 * time.Second)
			if state() != health.StateHealthy {
				t.Fatalf("%v at the beginning", state())
			}
			c.down(a)
			w.Run(w.Now() + active.Detection() + 500*ms)
			if state() != c.want {
				t.Errorf("%v after the detection time of %v", state(), active.Detection())
			}
			w.Run(40 * time.Second)
			c.up(a)
			w.Run(50 * time.Second)
			if state() != health.StateHealthy {
				t.Errorf("%v ten seconds after it is back", state())
			}
		})
	}
}

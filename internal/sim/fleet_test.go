// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

// layers is three balancers in a row over four servers half of whose answers are
// 503: amplification is what the servers get per request of a client.
func layers(seed uint64, marks bool) float64 {
	w := NewWorld(seed)
	var specs []pool.Spec
	for i := range 4 {
		specs = append(specs, w.AddServer(ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Fixed(5 * ms), Concurrency: 100}).Spec())
	}
	for _, s := range w.Servers() {
		s.SetFault(Fault{Mode: Answer, Status: 503, Part: 0.5, After: ms})
	}
	var top *Balancer
	for i := range 3 {
		c := BalancerConfig{
			Name: fmt.Sprintf("layer%d", i+1), Specs: specs, Marks: marks, Retry: pool.NewRetryRules(3, true, []int{502, 503}, 0),
			Pool: pool.Config{First: true, Retry: pool.Budget{Share: 0.2, Base: 10 * ms, Max: 100 * ms}},
		}
		top = w.AddBalancer(c)
		// Two ways to the layer below, as pools have, else a retry has nowhere to go.
		twin := c
		twin.Name += "b"
		w.AddBalancer(twin)
		specs = []pool.Spec{{ID: c.Name, Weight: 1}, {ID: twin.Name, Weight: 1}}
	}
	w.AddTraffic(Traffic{To: []*Balancer{top}, Rate: 200, Limit: 10_000})
	w.Finish(time.Hour)
	n := uint64(0)
	for _, s := range w.Servers() {
		n += s.Figures().Arrived
	}
	return float64(n) / 10_000
}

// TestLayersOfRetries: three layers with budgets of 20 % at 50 % failures multiply
// to 1.2^3 = 1.73 without an agreement; with marks on answers only one layer
// retries, and it is 1.20.
func TestLayersOfRetries(t *testing.T) {
	whole(t)
	for seed := range uint64(3) {
		if got := layers(seed+1, false); got < 1.6 || got > 1.75 {
			t.Errorf("without marks the servers get %.3f of the requests, not 1.73", got)
		}
		if got := layers(seed+1, true); got < 1.1 || got > 1.3 {
			t.Errorf("with marks the servers get %.3f of the requests, not 1.20", got)
		}
	}
}

// TestDeployWithDrains: six servers restarted one after another, each announced:
// no request fails. Without the announcement some do.
func TestDeployWithDrains(t *testing.T) {
	whole(t)
	run := func(drains bool) (failed uint64, restarts int) {
		w := NewWorld(1)
		for i := range 6 {
			w.AddServer(ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Exponential(20 * ms), Concurrency: 8, Boot: time.Second})
		}
		lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true, Active: health.Active{
			Enabled: true, Interval: 2 * time.Second, FastInterval: 500 * ms, Timeout: 500 * ms, Jitter: 0.1, Fall: 2, Rise: 2, HTTP: true,
		}}})
		src := w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 500})
		over := false
		w.At(5*time.Second, func() {
			w.Deploy(Deploy{
				Servers: w.Servers(), Every: 10 * time.Second, Drains: drains, Delay: 5 * time.Second,
				Each: func(_ *Server, up bool) {
					if up {
						restarts++
					}
				},
				Then: func() { over = true },
			})
		})
		w.Run(90 * time.Second)
		if src.Stop(); !over || !w.Finish(2*time.Minute) {
			t.Errorf("the deploy is not over")
		}
		return w.Stats().Failed(), restarts
	}
	if failed, n := run(true); failed != 0 || n != 6 {
		t.Errorf("%d requests failed in %d announced restarts", failed, n)
	}
	if failed, n := run(false); failed == 0 || n != 6 {
		t.Errorf("%d requests failed in %d kills", failed, n)
	}
}

// TestAutoscaler: at four times the load it has about four times the servers
// after some periods, all of which work at about the target; afterwards it goes
// back, and no request fails on the way down.
func TestAutoscaler(t *testing.T) {
	whole(t)
	w := NewWorld(1)
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
	a := w.AddAutoscaler(AutoscalerConfig{
		Name: "web", Balancers: []*Balancer{lb}, Start: 3, Max: 30, Target: 0.6, Period: 5 * time.Second, Settle: 30 * time.Second,
		Server: ServerConfig{Service: Exponential(50 * ms), Concurrency: 4, Boot: 3 * time.Second}, Drain: time.Second,
	})
	src := w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 0.6 * 3 * 4 / 0.050})
	w.Run(60 * time.Second)
	if n := a.Servers(); n < 3 || n > 4 {
		t.Errorf("%d servers at the load of 3", n)
	}
	src.SetRate(4 * 0.6 * 3 * 4 / 0.050)
	w.Run(180 * time.Second)
	if n := a.Servers(); n < 11 || n > 14 {
		t.Errorf("%d servers at the load of 12", n)
	}
	w.Phase("down")
	src.SetRate(0.6 * 3 * 4 / 0.050)
	w.Run(400 * time.Second)
	if n := a.Servers(); n < 3 || n > 4 || len(lb.Specs()) != n {
		t.Errorf("%d servers at the load of 3 again, %d in the balancer", n, len(lb.Specs()))
	}
	if f := w.Stats().Phase("down").Failed(); f != 0 {
		t.Errorf("%d requests failed on the way down: %v", f, w.Stats().Phase("down").Reasons)
	}
}

// TestHeldConnections: connections stay where they were placed when a server is
// added, however unequal that is; those of a server that dies come to the others
// at once, and are evenly spread over them.
func TestHeldConnections(t *testing.T) {
	w := NewWorld(1)
	for _, id := range []string{"a", "b"} {
		w.AddServer(ServerConfig{ID: id, Service: Fixed(ms)})
	}
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{Policy: policy(t, "least_request"), First: true}, Retry: pool.NewRetryRules(2, true, nil, 0)})
	h := w.AddConnections(Connections{To: lb, Clients: 300, Rate: 0.1})
	w.Run(10 * time.Second)
	c := w.AddServer(ServerConfig{ID: "c", Service: Fixed(ms)})
	lb.Update([]pool.Spec{w.Server("a").Spec(), w.Server("b").Spec(), c.Spec()})
	w.Run(20 * time.Second)
	if a, b := h.On(w.Server("a")), h.On(w.Server("b")); a != 150 || b != 150 || h.On(c) != 0 || c.Connections() != 0 {
		t.Errorf("%d and %d, and %d on the newcomer", a, b, h.On(c))
	}
	w.Server("a").Kill()
	w.Run(30 * time.Second)
	if b, n := h.On(w.Server("b")), h.On(c); b != 150 || n != 150 || h.Lost() != 150 {
		t.Errorf("%d, and %d on the newcomer; %d lost", b, n, h.Lost())
	}
	ended, failed, latency := h.Requests()
	if ended < 700 || failed > 5 || latency.Quantile(0.5).Round(10*time.Microsecond) != ms {
		t.Errorf("%d requests, %d failed, median %v", ended, failed, latency.Quantile(0.5))
	}
	h.Stop()
	w.Run(31 * time.Second)
	if n := lb.Pool().Snapshot().InFlight; n != 0 || w.Server("b").Connections() != 0 {
		t.Errorf("%d in flight after all have gone", n)
	}
}

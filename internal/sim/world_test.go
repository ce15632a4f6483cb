// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

func policy(t testing.TB, name string) balance.Policy {
	t.Helper()
	p, err := balance.New(name, balance.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSkeleton(t *testing.T) {
	w := NewWorld(1)
	for _, id := range []string{"a", "b", "c"} {
		w.AddServer(ServerConfig{ID: id, Service: Exponential(50 * time.Millisecond)})
	}
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{Policy: policy(t, "p2c"), First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Rate: 42, Limit: 5000})
	if !w.Finish(time.Hour) {
		t.Fatalf("%d requests are open at the end", w.Open())
	}
	s := w.Stats()
	if s.Requests != 5000 || s.OK != 5000 {
		t.Errorf("%d requests, %d OK", s.Requests, s.OK)
	}
	t.Log(s.Latency.Mean(), s.Latency.Quantile(0.5), s.Latency.Quantile(0.99), s.Reasons, w.Now(), w.Events())
	for _, srv := range w.Servers() {
		t.Log(srv.ID(), s.Share(srv), srv.Figures())
	}
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
)

// TestUnscraped: where nobody scrapes, departures still free memory.
func TestUnscraped(t *testing.T) {
	now := time.Unix(1000, 0)
	m := NewMetrics(MetricsOptions{Now: func() time.Time { return now }})
	r := m.Route("l", "r", "p")
	for i := range 1000 {
		id := fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255)
		r.For(id).Observe(&Record{Status: 200})
		m.BackendGone("p", id)
		now = now.Add(time.Minute)
	}
	if n := len(*r.backends.Load()); n > 13 {
		t.Errorf("%d series are kept of backends that come and go every minute, want about 11", n)
	}
}

func TestLargePool(t *testing.T) {
	now := time.Unix(1000, 0)
	list := backends(501)
	m := NewMetrics(MetricsOptions{Now: func() time.Time { return now }})
	m.RegisterPools(func() []PoolGauges { return []PoolGauges{{Name: "p", Backends: list}} })
	// Series resolved before the pool's size was known.
	for _, b := range list {
		m.Series("l", "r", "p", b.ID).Observe(&Record{Status: 200, Sent: true, Linked: true})
	}
	check := func(want float64) {
		t.Helper()
		f := scrape(t, m)
		for _, name := range []string{"weir_requests_total", "weir_upstream_connections_total", "weir_in_flight", "weir_backend_flips_total"} {
			for _, x := range f[name].GetMetric() {
				for _, l := range x.GetLabel() {
					if l.GetName() == "backend" && l.GetValue() != "" {
						t.Fatalf("%s has a series for %s", name, l.GetValue())
					}
				}
			}
		}
		if f["weir_backend_state"] != nil || f["weir_backend_share"] != nil {
			t.Error("per-backend gauges are exposed")
		}
		if got := sum(f["weir_requests_total"]); got != want {
			t.Errorf("requests: %v, want %v", got, want)
		}
		if got := sum(f["weir_upstream_connections_total"], "reused=false"); got != want {
			t.Errorf("connections: %v, want %v", got, want)
		}
	}
	check(501)
	// Now it is known: all share one.
	if m.Series("l", "r", "p", "10.9.9.9:1") != m.Series("l", "r", "p", "") {
		t.Error("a large pool's newcomer has a series of its own")
	}
	m.Series("l", "r", "p", "10.9.9.9:1").Observe(&Record{Status: 200, Sent: true, Linked: true})
	check(502)
	// Dropping those that left must not make a counter fall.
	other := make([]BackendGauges, 501)
	for i := range other {
		other[i] = BackendGauges{ID: fmt.Sprintf("b%d", i), State: "healthy"}
	}
	list = other
	check(502)
	now = now.Add(leftFor + time.Second)
	check(502)
}

// TestScrapeSize bounds /metrics (2 MiB) with a pool of 10,000 backends, all of
// which have served, beside one at the limit of per-backend series.
func TestScrapeSize(t *testing.T) {
	large, small := backends(10000), backends(500)
	m := NewMetrics(MetricsOptions{})
	m.RegisterPools(func() []PoolGauges {
		return []PoolGauges{{Name: "large", Backends: large}, {Name: "small", Backends: small}}
	})
	m.SetPoolSize("large", len(large))
	for _, b := range large {
		m.Series("web", "all-of-it", "large", b.ID).Observe(&Record{Status: 200})
	}
	for _, b := range small {
		s := m.Series("web", "some-of-it", "small", b.ID)
		s.Observe(&Record{Status: 200})
		s.Observe(&Record{Status: 502, Reason: message.ResetBeforeResponse})
	}
	if n := len(scrapeText(t, m)); n > 2<<20 {
		t.Errorf("/metrics has %d bytes, want at most 2 MiB", n)
	} else {
		t.Logf("/metrics has %d bytes", n)
	}
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, req)
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatalf("not compressed: %v", err)
	}
	if _, err := io.Copy(io.Discard, z); err != nil {
		t.Fatal(err)
	}
}

// TestIdleRoutesCostNoText: routes and pools that never saw a request have no
// histograms, and get them with their first one.
func TestIdleRoutesCostNoText(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	const routes, pools = 5000, 100
	for i := range routes {
		m.Route("web", fmt.Sprintf("route-%04d.example.com/some/prefix", i), fmt.Sprintf("pool-%02d", i%pools))
	}
	large := backends(10000)
	m.RegisterPools(func() []PoolGauges { return []PoolGauges{{Name: "pool-00", Backends: large}} })
	text := scrapeText(t, m)
	t.Logf("/metrics of %d idle routes has %d bytes", routes, len(text))
	if len(text) > 64<<10 {
		t.Errorf("/metrics of %d idle routes has %d bytes, want at most 64 KiB", routes, len(text))
	}
	m.Series("web", "route-0007.example.com/some/prefix", "pool-07", "b").Observe(&Record{Status: 200, Total: time.Millisecond})
	f := scrape(t, m)
	if n := len(f["weir_request_seconds"].GetMetric()); n != 1 {
		t.Errorf("%d routes have a histogram, want the one that served", n)
	}
	if n := len(f["weir_upstream_seconds"].GetMetric()); n != 4 {
		t.Errorf("%d phases, want the 4 of one pool", n)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	rt := m.Route("l", "r", "p")
	rt.For("b")
	ok := &Record{Status: 200, Sent: true, Linked: true, Total: time.Millisecond, FirstByte: time.Millisecond, Queue: 1, Connect: 1}
	failed := &Record{Status: 502, Reason: message.ConnectRefused, Total: time.Millisecond}
	rt.For("b").Observe(failed)
	pool := m.Pool("p")
	if n := testing.AllocsPerRun(100, func() {
		s := rt.For("b")
		s.Observe(ok)
		s.Observe(failed)
		pool.Retry(message.ResetBeforeResponse, 503, RetryNoBudget)
		pool.Redispatch(message.ConnectRefused)
	}); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	m := NewMetrics(MetricsOptions{})
	rt := m.Route("l", "r", "p")
	b.Run("serial", func(b *testing.B) {
		s := rt.For("b")
		r := &Record{Status: 200, Sent: true, Linked: true, Total: 3 * time.Millisecond, FirstByte: 2 * time.Millisecond, Reused: true}
		b.ReportAllocs()
		for b.Loop() {
			s.Observe(r)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			r := &Record{Status: 200, Sent: true, Linked: true, Total: 3 * time.Millisecond, FirstByte: 2 * time.Millisecond, Reused: true}
			for pb.Next() {
				rt.For("b").Observe(r)
			}
		})
	})
}

func BenchmarkScrape(b *testing.B) {
	list := backends(500)
	m := NewMetrics(MetricsOptions{})
	m.RegisterPools(func() []PoolGauges { return []PoolGauges{{Name: "p", Backends: list}} })
	for _, x := range list {
		m.Series("l", "r", "p", x.ID).Observe(&Record{Status: 200})
	}
	for b.Loop() {
		scrapeText(b, m)
	}
}

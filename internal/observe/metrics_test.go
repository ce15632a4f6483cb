// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirlb/weir/internal/message"
)

func scrapeText(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape answered %d: %.500s", w.Code, w.Body.String())
	}
	return w.Body.String()
}

func scrape(t testing.TB, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(scrapeText(t, m)))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// sum adds up the values of a family whose labels include want ("k=v" each).
func sum(f *dto.MetricFamily, want ...string) float64 {
	total := 0.0
	for _, m := range f.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if slices.ContainsFunc(want, func(w string) bool {
			k, v, _ := strings.Cut(w, "=")
			return labels[k] != v
		}) {
			continue
		}
		switch {
		case m.Counter != nil:
			total += m.Counter.GetValue()
		case m.Gauge != nil:
			total += m.Gauge.GetValue()
		case m.Histogram != nil:
			total += float64(m.Histogram.GetSampleCount())
		}
	}
	return total
}

func labelNames(f *dto.MetricFamily) string {
	set := map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			set[l.GetName()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(set)), ",")
}

func backends(n int) []BackendGauges {
	out := make([]BackendGauges, n)
	for i := range out {
		out[i] = BackendGauges{ID: fmt.Sprintf("10.%d.%d.%d:8080", i>>16, i>>8&255, i&255), State: "healthy", Share: 1, InFlight: 2, Flips: 1}
	}
	return out
}

// TestNames holds the exposition to the names, labels and types that users'
// dashboards rely on.
func TestNames(t *testing.T) {
	want := map[string]string{ // name: type, sorted labels
		"weir_requests_total":             "COUNTER backend,code,listener,pool,reason,route",
		"weir_request_seconds":            "HISTOGRAM listener,pool,route",
		"weir_upstream_seconds":           "HISTOGRAM phase,pool",
		"weir_queue_seconds":              "HISTOGRAM pool",
		"weir_in_flight":                  "GAUGE backend,pool",
		"weir_backend_state":              "GAUGE backend,pool,state",
		"weir_backends":                   "GAUGE pool,state",
		"weir_backend_share":              "GAUGE backend,pool",
		"weir_backend_flips_total":        "COUNTER backend,pool",
		"weir_ejections_total":            "COUNTER backend,cause,pool",
		"weir_panic":                      "GAUGE pool",
		"weir_correlated_failure":         "GAUGE kind,pool",
		"weir_retries_total":              "COUNTER cause,outcome,pool",
		"weir_redispatches_total":         "COUNTER cause,pool",
		"weir_hedges_total":               "COUNTER outcome,pool",
		"weir_grpc_calls_total":           "COUNTER grpc_status,listener,pool,route",
		"weir_sticky_total":               "COUNTER outcome,pool",
		"weir_retry_budget_remaining":     "GAUGE pool",
		"weir_connections":                "GAUGE listener,pool,side",
		"weir_http2_streams":              "GAUGE listener",
		"weir_upstream_connections_total": "COUNTER backend,pool,reused",
		"weir_config_generation":          "GAUGE ",
		"weir_config_reloads_total":       "COUNTER outcome",
		"weir_upgrades_total":             "COUNTER outcome",
		"weir_accept_overflows_total":     "COUNTER ",
		"weir_bug_total":                  "COUNTER where",
		"weir_floods_total":               "COUNTER cause,listener",
		"weir_acme_orders_total":          "COUNTER outcome",
		"weir_accept_queue_length":        "GAUGE listener",
		"weir_accept_queue_limit":         "GAUGE listener",
		"weir_time_wait":                  "GAUGE ",
		"weir_ephemeral_ports_free":       "GAUGE destination",
		"weir_pool_saturation":            "GAUGE pool",
		"weir_queue_length":               "GAUGE pool",
		"weir_concurrency_limit":          "GAUGE pool",
		"weir_shed_total":                 "COUNTER pool,priority",
		"weir_probe_seconds":              "HISTOGRAM outcome",
		"weir_log_dropped_total":          "COUNTER ",
		"weir_build_info":                 "GAUGE goversion,version",

		"weir_certificate_expiry_timestamp_seconds": "GAUGE listener,name",
	}
	m := NewMetrics(MetricsOptions{Version: "1.2.3"})
	m.Floods("web", []string{"ping"})
	m.Flood("web", "ping")
	m.RegisterPools(func() []PoolGauges {
		list := backends(3)
		list[0].Address = "10.0.0.0:8080"
		return []PoolGauges{{
			Name: "app", QueueLength: 3, Saturation: .5, Connections: 9, Backends: list,
			Limit: &LimitGauges{Limit: 64, Shed: []uint64{1, 2, 0}},
		}}
	})
	m.RegisterListeners(func() []ListenerGauges {
		return []ListenerGauges{{Name: "web", Connections: 5, HTTP2: true, Streams: 7, AcceptQueue: 1, AcceptQueueLimit: 4096, Certificates: []CertificateGauge{
			{Name: "example.com", NotAfter: time.Unix(2e9, 0)}, {Name: "example.com", NotAfter: time.Unix(1e9, 0)},
		}}}
	})
	m.RegisterLogDropped(func() uint64 { return 4 })
	m.Series("web", "all", "app", "10.0.0.1:8080").Observe(&Record{Status: 200, Sent: true, Linked: true, Total: time.Millisecond, GRPC: CallWithout})
	m.Pool("app").Retry(message.ResetBeforeResponse, 0, RetrySucceeded)
	m.Pool("app").Redispatch(message.ConnectRefused)
	m.Pool("app").Hedge(HedgeWon)
	m.Pool("app").Sticky(StickyMoved)
	m.Ejected("app", "10.0.0.1:8080", "consecutive")
	m.SetGeneration(7)
	m.Reload(errors.New("no"))
	m.Probe("pass", time.Millisecond)

	got := scrape(t, m)
	for name, shape := range want {
		f := got[name]
		if f == nil {
			t.Errorf("%s is not exposed", name)
			continue
		}
		if g := f.GetType().String() + " " + labelNames(f); g != shape {
			t.Errorf("%s is %q, want %q", name, g, shape)
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
	}
	if n := sum(got["weir_certificate_expiry_timestamp_seconds"], "name=example.com"); n != 1e9 {
		t.Errorf("of two certificates with one name %.0f is shown, not the one that ends first", n)
	}
	for name := range got {
		if strings.HasPrefix(name, "weir_") && want[name] == "" {
			t.Errorf("%s is exposed and not in the list", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if got[name] == nil {
			t.Errorf("%s is not exposed", name)
		}
	}
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		rec   Record
		class string
		exact string
	}{
		{Record{Status: 200}, "2xx", "200"},
		{Record{Status: 226}, "2xx", "226"},
		{Record{Status: 101}, "1xx", "101"},
		{Record{Status: 304}, "3xx", "304"},
		{Record{Status: 404}, "4xx", "404"},
		{Record{Status: 429, Reason: message.RateLimited}, "429", "429"},
		{Record{Reason: message.ClientAbort}, "499", "499"},
		{Record{Status: 500}, "5xx", "500"},
		{Record{Status: 502, Reason: message.ConnectRefused}, "502", "502"},
		{Record{Status: 502}, "502", "502"},
		{Record{Reason: message.NoBackend}, "503", "503"},
		{Record{Status: 504, Reason: message.ResponseTimeout}, "504", "504"},
		{Record{Status: 200, Reason: message.ClientAbort}, "2xx", "200"},
		{Record{Status: 0}, "none", "none"},
		{Record{Status: 999}, "none", "none"},
		{Record{Status: -1}, "none", "none"},
		{Record{Status: 599}, "5xx", "599"},
	} {
		for exact, want := range map[bool]string{false: c.class, true: c.exact} {
			m := NewMetrics(MetricsOptions{ExactCodes: exact})
			s := m.Series("l", "r", "p", "b")
			s.Observe(&c.rec)
			s.Observe(&c.rec)
			f := scrape(t, m)["weir_requests_total"]
			if n := sum(f, "code="+want, "reason="+c.rec.Reason.String(), "backend=b", "pool=p", "route=r", "listener=l"); n != 2 || len(f.GetMetric()) != 1 {
				t.Errorf("status %d, reason %v, exact %v: want 2 under %s, got %v", c.rec.Status, c.rec.Reason, exact, want, f)
			}
		}
	}
}

func TestPhases(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	s := m.Series("l", "r", "p", "b")
	s.Observe(&Record{Status: 200, Reused: true, Sent: true, Linked: true, FirstByte: 3 * time.Millisecond, Total: 4 * time.Millisecond})
	s.Observe(&Record{Status: 200, Sent: true, Linked: true, Queue: 2 * time.Second, Connect: time.Millisecond, FirstByte: 3 * time.Millisecond, Total: 3 * time.Second})
	s.Observe(&Record{Status: 503, Reason: message.QueueTimeout, Queue: 2 * time.Second, Total: 2 * time.Second})
	s.Observe(&Record{Status: 101, Sent: true, Linked: true, Tunnel: true, FirstByte: time.Millisecond, Total: time.Hour})
	s.Connection(false)
	f := scrape(t, m)
	for _, c := range []struct {
		name  string
		label string
		want  float64
	}{
		{"weir_request_seconds", "pool=p", 3},
		{"weir_upstream_seconds", "phase=total", 3},
		{"weir_upstream_seconds", "phase=queue", 3},
		{"weir_upstream_seconds", "phase=connect", 1},
		{"weir_upstream_seconds", "phase=first_byte", 3},
		{"weir_queue_seconds", "pool=p", 2},
		{"weir_upstream_connections_total", "reused=true", 1},
		{"weir_upstream_connections_total", "reused=false", 3},
	} {
		if got := sum(f[c.name], c.label); got != c.want {
			t.Errorf("%s{%s}: %v, want %v", c.name, c.label, got, c.want)
		}
	}
	for _, h := range f["weir_queue_seconds"].GetMetric() {
		if got := h.GetHistogram().GetSampleSum(); got != 4 {
			t.Errorf("time waited: %v s, want 4", got)
		}
	}
}

// TestBackendSeriesLeave follows one backend out of its pool.
func TestBackendSeriesLeave(t *testing.T) {
	now := time.Unix(1000, 0)
	list := backends(2)
	m := NewMetrics(MetricsOptions{Now: func() time.Time { return now }})
	m.RegisterPools(func() []PoolGauges { return []PoolGauges{{Name: "p", Backends: list}} })
	gone := list[1].ID
	m.Series("l", "r", "p", list[0].ID).Observe(&Record{Status: 200})
	s := m.Series("l", "r", "p", gone)
	s.Observe(&Record{Status: 200})
	m.Ejected("p", gone, "consecutive")
	has := func() bool {
		f := scrape(t, m)
		requests := sum(f["weir_requests_total"], "backend="+gone) > 0
		if ejections := sum(f["weir_ejections_total"], "backend="+gone) > 0; ejections != requests {
			t.Errorf("requests exposed: %v, ejections: %v", requests, ejections)
		}
		return requests
	}
	if !has() {
		t.Fatal("present backend has no series")
	}
	list = list[:1]
	if !has() { // this scrape notices the departure
		t.Error("series dropped at once")
	}
	now = now.Add(leftFor - time.Second)
	if !has() {
		t.Error("series dropped before ten minutes")
	}
	list = backends(2)
	has() // back again: the clock starts anew
	list = list[:1]
	has()
	now = now.Add(leftFor - time.Second)
	if !has() {
		t.Error("a backend that had returned was dropped by its first departure")
	}
	now = now.Add(2 * time.Second)
	if has() {
		t.Error("series still there after ten minutes")
	}
	if m.Series("l", "r", "p", gone) == s {
		t.Error("a dropped series was handed out again")
	}
	if sum(scrape(t, m)["weir_requests_total"], "backend="+list[0].ID) != 1 {
		t.Error("the backend that stayed lost its count")
	}
}

// TestHostileNames: labels are whatever configuration and discovery say.
func TestHostileNames(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	bad := "a\xff\n\"\\{}"
	m.RegisterPools(func() []PoolGauges {
		// Two generations that hold one pool, twice the same backend.
		p := PoolGauges{Name: bad, Backends: []BackendGauges{{ID: bad, State: "healthy"}, {ID: bad, State: "broken"}}}
		return []PoolGauges{p, p}
	})
	m.RegisterListeners(func() []ListenerGauges {
		return []ListenerGauges{{Name: bad, Connections: 1, Streams: 4}, {Name: bad, Connections: 2, HTTP2: true, Streams: 3}}
	})
	m.Series(bad, bad, bad, bad).Observe(&Record{Status: 200})
	m.Ejected(bad, bad, bad)
	m.Bug(bad)
	f := scrape(t, m)
	if sum(f["weir_requests_total"]) != 1 || sum(f["weir_connections"], "side=client") != 3 || sum(f["weir_http2_streams"]) != 7 || sum(f["weir_backend_state"]) != 1 {
		t.Error("hostile names are miscounted")
	}
}

// TestObserveConcurrently checks that nothing is lost between stripes, and, under
// -race, that nothing is torn.
func TestObserveConcurrently(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	const workers, each = 8, 2000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := new(Record)
			for i := range each {
				s := m.Route("l", "r", "p").For(fmt.Sprint("b", i%7))
				*r = Record{Status: 200, Sent: true, Linked: true, Total: time.Duration(i) * time.Microsecond}
				if i%10 == 0 {
					r.Reason, r.Status = message.Reason(1+(i/10+w)%5), 502
				}
				s.Observe(r)
				if i%500 == 0 {
					scrapeText(t, m)
				}
			}
		})
	}
	wg.Wait()
	f := scrape(t, m)
	if got := sum(f["weir_requests_total"]); got != workers*each {
		t.Errorf("requests: %v, want %d", got, workers*each)
	}
	if got := sum(f["weir_request_seconds"]); got != workers*each {
		t.Errorf("durations: %v, want %d", got, workers*each)
	}
	if got := sum(f["weir_requests_total"], "code=502"); got != workers*each/10 {
		t.Errorf("failures: %v, want %d", got, workers*each/10)
	}
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math/bits"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// leftFor is how long the series of a backend outlive it (S18): long enough
// for several scrapes, short enough that pods coming and going do not pile up.
const leftFor = 10 * time.Minute

// defaultBackendSeries is the largest pool with a series per backend (S18).
const defaultBackendSeries = 500

// MetricsOptions configures NewMetrics. The zero value is the default.
type MetricsOptions struct {
	Version       string           // of the build, for weir_build_info
	ExactCodes    bool             // label code is the status itself (metrics.codes: exact)
	BackendSeries int              // largest pool with per-backend series; 0: 500; negative: no pool has any
	Now           func() time.Time // nil: time.Now
}

// Metrics holds every series of the process and exposes them. All methods are
// safe for concurrent use.
type Metrics struct {
	// Constant after NewMetrics.
	codes    *codeTable
	stripes  int
	shift    uint // of a 64-bit product, to get a stripe
	now      func() time.Time
	registry *prometheus.Registry
	bugs     *prometheus.CounterVec
	floods   *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	upgrades *prometheus.CounterVec
	orders   *prometheus.CounterVec
	probes   [len(probeOutcomes)]histogram

	// Atomic.
	exactCodes    atomic.Bool  // see Change
	backendSeries atomic.Int64 // negative: no pool has any
	generation    atomic.Uint64
	pools         atomic.Pointer[func() []PoolGauges]
	listeners     atomic.Pointer[func() []ListenerGauges]
	swept         atomic.Int64 // unix nanoseconds of the last sweep

	ports portCache // has a lock of its own, never held together with mu

	mu         sync.Mutex // guards what follows; taken before RouteSeries.mu
	routes     map[routeKey]*RouteSeries
	poolSeries map[string]*PoolSeries
	ejections  map[ejectionKey]*ejection
	bugTotals  map[string]uint64           // as BugTotal was told last
	shaken     map[string]*HandshakeSeries // by listener
	logDropped []func() uint64
}

type routeKey struct{ listener, route, pool string }

type ejectionKey struct{ pool, backend, cause string }

type ejection struct {
	n    uint64
	left int64
}

// probeOutcomes are the words of weir_probe_seconds{outcome}.
var probeOutcomes = [...]string{"pass", "not_ready", "overloaded", "no_answer"}

// NewMetrics returns an empty set of metrics with a registry of its own.
func NewMetrics(opt MetricsOptions) *Metrics {
	m := &Metrics{
		codes:      newCodeTable(),
		now:        opt.Now,
		registry:   prometheus.NewRegistry(),
		routes:     make(map[routeKey]*RouteSeries),
		poolSeries: make(map[string]*PoolSeries),
		ejections:  make(map[ejectionKey]*ejection),
		bugTotals:  make(map[string]uint64),
	}
	m.Change(opt.ExactCodes, opt.BackendSeries)
	if m.now == nil {
		m.now = time.Now
	}
	// A power of two near the number of cores, at most 8: more would cost more
	// memory and scrape time than contention.
	n := bits.Len(uint(min(runtime.GOMAXPROCS(0), 8) - 1))
	m.stripes, m.shift = 1<<n, uint(64-n)
	for i := range m.probes {
		m.probes[i] = newHistogram(1)
	}
	m.bugs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_bug_total", Help: "Broken invariants: each is a defect of weir. The log has the state.",
	}, []string{"where"})
	m.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_config_reloads_total", Help: "Configurations applied (success) or refused (failure).",
	}, []string{"outcome"})
	m.upgrades = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_upgrades_total", Help: "Handovers to another binary: done, as counted by the process that took over, or why not.",
	}, []string{"outcome"})
	m.orders = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_acme_orders_total", Help: "Attempts to get a certificate by ACME that ended: obtained or failed.",
	}, []string{"outcome"})
	m.orders.WithLabelValues("obtained")
	m.orders.WithLabelValues("failed")
	// They exist from the start, so that an alert on their increase sees the first one.
	m.bugs.WithLabelValues("lease")
	m.reloads.WithLabelValues("success")
	m.reloads.WithLabelValues("failure")
	for _, outcome := range upgradeOutcomes {
		m.upgrades.WithLabelValues(outcome)
	}
	m.floods = newFloods()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": clean(opt.Version), "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.bugs, m.floods, m.reloads, m.upgrades, m.orders, build, collector{m}, hostCollector{m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in the format the scraper asks for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // a faulty metric must not hide the others
		MaxRequestsInFlight: 4,
		Timeout:             15 * time.Second,
		Registry:            m.registry,
	})
}

// Registry returns the registry, for collectors of other packages.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Series resolves the counters of one combination. Each name may be empty; the
// result stays valid and is the same for the same names until the backend has
// been gone for ten minutes.
func (m *Metrics) Series(listener, route, pool, backend string) *Series {
	return m.Route(listener, route, pool).For(backend)
}

// Route resolves what the series of one listener, route and pool share; its
// For is the fast way to a backend's Series.
func (m *Metrics) Route(listener, route, pool string) *RouteSeries {
	k := routeKey{clean(listener), clean(route), clean(pool)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.routes[k]; r != nil {
		r.left = 0
		return r
	}
	r := &RouteSeries{
		metrics: m, listener: k.listener, route: k.route,
		pool: m.poolLocked(k.pool), seconds: newHistogram(m.stripes),
	}
	r.none = m.newSeries(r, "")
	r.backends.Store(&map[string]*Series{})
	m.routes[k] = r
	return r
}

// Pool resolves the counters that belong to a pool as a whole.
func (m *Metrics) Pool(name string) *PoolSeries {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.poolLocked(clean(name))
}

func (m *Metrics) poolLocked(name string) *PoolSeries {
	p := m.poolSeries[name]
	if p == nil {
		p = &PoolSeries{
			name: name, queue: newHistogram(m.stripes),
			connect: newHistogram(m.stripes), firstByte: newHistogram(m.stripes),
		}
		m.poolSeries[name] = p
	}
	return p
}

func (m *Metrics) newSeries(r *RouteSeries, backend string) *Series {
	return &Series{route: r, backend: clean(backend), stripes: make([]seriesStripe, m.stripes)}
}

// SetPoolSize tells how many backends a pool has, which decides whether they
// get series of their own. A scrape finds out by itself through RegisterPools;
// calling this before the first request spares a large pool the memory.
func (m *Metrics) SetPoolSize(pool string, backends int) {
	m.Pool(pool).size.Store(int64(backends))
}

// BackendGone tells that a backend left its pool; its series are dropped ten
// minutes later unless it comes back.
func (m *Metrics) BackendGone(pool, backend string) {
	pool = clean(pool)
	now := m.now().UnixNano()
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, r := range m.routes {
		if k.pool == pool {
			if s := (*r.backends.Load())[backend]; s != nil {
				s.left.CompareAndSwap(0, now)
			}
		}
	}
	for k, e := range m.ejections {
		if k.pool == pool && k.backend == clean(backend) && e.left == 0 {
			e.left = now
		}
	}
}

// SetGeneration stores the number of the configuration that serves.
func (m *Metrics) SetGeneration(n uint64) { m.generation.Store(n) }

// Reload counts a configuration that was applied (err nil) or refused.
func (m *Metrics) Reload(err error) {
	if err != nil {
		m.reloads.WithLabelValues("failure").Inc()
	} else {
		m.reloads.WithLabelValues("success").Inc()
	}
}

// Order counts an attempt to get a certificate that worked (err nil) or failed.
func (m *Metrics) Order(err error) {
	if err != nil {
		m.orders.WithLabelValues("failed").Inc()
	} else {
		m.orders.WithLabelValues("obtained").Inc()
	}
}

// upgradeOutcomes are the words of weir_upgrades_total{outcome}.
var upgradeOutcomes = [...]string{"done", "refused", "not_started", "exited", "failed", "timeout", "aborted", "no_match", "taken_back"}

// Upgrade counts a handover to another binary, by its outcome.
func (m *Metrics) Upgrade(outcome string) { m.upgrades.WithLabelValues(clean(outcome)).Inc() }

// Bug counts a broken invariant; where is a constant word of the code.
func (m *Metrics) Bug(where string) { m.bugs.WithLabelValues(clean(where)).Inc() }

// BugTotal brings the count for where up to n, for what is counted elsewhere.
func (m *Metrics) BugTotal(where string, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if seen := m.bugTotals[where]; n > seen {
		m.bugs.WithLabelValues(clean(where)).Add(float64(n - seen))
		m.bugTotals[where] = n
	}
}

// Ejected counts a backend taken out by what its traffic said.
func (m *Metrics) Ejected(pool, backend, cause string) {
	k := ejectionKey{clean(pool), clean(backend), clean(cause)}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.ejections[k]
	if e == nil {
		e = new(ejection)
		m.ejections[k] = e
	}
	e.n++
	e.left = 0
}

// Probe counts a finished health probe: outcome is one of pass, not_ready,
// overloaded, no_answer.
func (m *Metrics) Probe(outcome string, took time.Duration) {
	for i, o := range probeOutcomes {
		if o == outcome {
			m.probes[i].observe(0, took)
		}
	}
}

func (m *Metrics) large(p *PoolSeries) bool {
	most := m.backendSeries.Load()
	return most < 0 || p.size.Load() > most
}

// sweepSometimes drops what has left, at most once a minute: where nobody
// scrapes, it is what keeps a process with changing backends from growing.
func (m *Metrics) sweepSometimes() {
	now := m.now().UnixNano()
	if last := m.swept.Load(); now-last >= int64(time.Minute) && m.swept.CompareAndSwap(last, now) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sweepLocked(now)
	}
}

func (m *Metrics) sweepLocked(now int64) {
	before := now - int64(leftFor)
	m.dropRoutes(before)
	for _, r := range m.routes {
		r.drop(before)
	}
	for k, e := range m.ejections {
		if e.left != 0 && e.left <= before {
			delete(m.ejections, k)
		}
	}
}

// clean makes a name fit to be a label value.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

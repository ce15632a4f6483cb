// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/internal/message"
)

// backendStates are the values of weir_backend_state's label state.
var backendStates = [...]string{"unproven", "healthy", "overloaded", "not_ready", "broken"}

// correlatedKinds are the values of weir_correlated_failure's label kind.
var correlatedKinds = [...]string{"shared_dependency", "broken_check"}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descRequests       = desc("weir_requests_total", "Requests finished, by what served them and how they ended. code is a class, or the status itself for 429, 499 (client went away), 502, 503 and 504.", "listener", "route", "pool", "backend", "code", "reason")
	descRequestSeconds = desc("weir_request_seconds", "From the request's head to the last byte of its answer. Tunnels are left out.", "listener", "route", "pool")
	descUpstream       = desc("weir_upstream_seconds", "The same time by phase: waiting for a slot (0 for those that did not), connecting (fresh connections only), until the answer's head, total.", "pool", "phase")
	descQueueSeconds   = desc("weir_queue_seconds", "How long requests waited for a slot, those that did.", "pool")
	descUpstreamConns  = desc("weir_upstream_connections_total", "Connections to backends that requests went over: opened for them or reused.", "pool", "backend", "reused")
	descRetries        = desc("weir_retries_total", "Retries by what made them necessary and what became of them; outcomes other than success and failure are retries refused.", "pool", "cause", "outcome")
	descRedispatches   = desc("weir_redispatches_total", "Attempts made again because the one before had sent nothing.", "pool", "cause")
	descEjections      = desc("weir_ejections_total", "Backends taken out by what their traffic said.", "pool", "backend", "cause")
	descProbeSeconds   = desc("weir_probe_seconds", "Duration of health probes.", "outcome")
	descInFlight       = desc("weir_in_flight", "Requests that hold a slot of the backend.", "pool", "backend")
	descState          = desc("weir_backend_state", "1 for the state that the backend is in.", "pool", "backend", "state")
	descStates         = desc("weir_backends", "Backends of the pool in each state, whatever the pool's size.", "pool", "state")
	descShare          = desc("weir_backend_share", "Share of its traffic that health grants the backend, 0 to 1.", "pool", "backend")
	descFlips          = desc("weir_backend_flips_total", "Changes between serving and not serving.", "pool", "backend")
	descPanic          = desc("weir_panic", "1 while too few backends are healthy and health is ignored.", "pool")
	descCorrelated     = desc("weir_correlated_failure", "1 while the checks of much of the pool fail together and its requests succeed; kind says what that is a sign of.", "pool", "kind")
	descBudget         = desc("weir_retry_budget_remaining", "Retries that would be granted now.", "pool")
	descSaturation     = desc("weir_pool_saturation", "Load against what the pool's limits allow.", "pool")
	descQueueLength    = desc("weir_queue_length", "Requests waiting for a slot.", "pool")
	descLimit          = desc("weir_concurrency_limit", "Requests in flight that the pool's adaptive limit allows; absent while it bounds nothing.", "pool")
	descShed           = desc("weir_shed_total", "Requests refused by the pool's adaptive limit.", "pool", "priority")
	descConnections    = desc("weir_connections", "Open connections: of clients per listener, to backends per pool.", "side", "listener", "pool")
	descStreams        = desc("weir_http2_streams", "Open HTTP/2 streams of clients: requests that are being served, and tunnels.", "listener")
	descAcceptQueue    = desc("weir_accept_queue_length", "Connections that the kernel holds for accept.", "listener")
	descAcceptLimit    = desc("weir_accept_queue_limit", "Where that queue overflows.", "listener")
	descHandshakes     = desc("weir_tls_handshakes_total", "TLS handshakes of clients by how they ended: full and resumed are good ones.", "listener", "outcome")
	descHandshaking    = desc("weir_tls_handshakes_in_progress", "TLS handshakes of clients under way.", "listener")
	descHandshakeTime  = desc("weir_tls_handshake_seconds", "Duration of TLS handshakes of clients that came about, the client's round trips included.", "listener", "outcome")
	descHeaders        = desc("weir_proxy_headers_total", "Connections by what came of their PROXY header. They are served after read, nobody and none, and closed after any other outcome.", "listener", "outcome")
	descCertificate    = desc("weir_certificate_expiry_timestamp_seconds", "When a certificate that the listener serves ends.", "listener", "name")
	descPorts          = desc("weir_ephemeral_ports_free", "Local ports that a new connection to the destination could get, of one source address.", "destination")
	descDiscovered     = desc("weir_discovery_backends", "Backends in the pool that were found rather than listed.", "pool")
	descHeld           = desc("weir_discovery_held", "Found backends that are missing from the last answer and stay until another one confirms that.", "pool")
	descLastAnswer     = desc("weir_discovery_last_answer_timestamp_seconds", "When the source last gave backends; absent before the first time.", "pool")
	descAnswers        = desc("weir_discovery_answers_total", "Looks at the source of a pool's backends: ok, partial (some of it failed), empty (nobody is listed), failed. What was found before stays in use.", "pool", "outcome")
	descGeneration     = desc("weir_config_generation", "Number of the configuration that serves.")
	descLogDropped     = desc("weir_log_dropped_total", "Access log lines lost: the writer fell behind or could not write.")
)

// collector reads the counters out on every scrape.
type collector struct{ m *Metrics }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descRequests, descRequestSeconds, descUpstream, descQueueSeconds, descUpstreamConns,
		descCalls, descRetries, descRedispatches, descHedges, descSticky, descEjections, descProbeSeconds, descInFlight, descState,
		descStates, descShare, descFlips, descPanic, descCorrelated, descBudget, descSaturation, descQueueLength,
		descLimit, descShed,
		descConnections, descStreams, descAcceptQueue, descAcceptLimit, descHandshakes, descHandshaking, descHandshakeTime, descHeaders, descCertificate, descPorts, descGeneration,
		descDiscovered, descHeld, descLastAnswer, descAnswers, descLogDropped,
		descTunnels, descTunnelEnds, descStreamEnds, descSessions, descSessionBytes, descSessionSeconds,
		descDatagrams, descDatagramsDropped, descFlowsEvicted,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m := c.m
	s := sink{ch}
	pools, listeners := m.poolGauges(), m.listenerGauges()
	m.note(pools)
	for to, n := range m.ports.left(m.destinations(pools), m.now()) {
		s.gauge(descPorts, float64(n), to.String())
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweepLocked(m.now().UnixNano())
	m.collectRequests(s)
	m.collectPoolSeries(s)
	m.collectEjections(s)
	for i, o := range probeOutcomes {
		var d distribution
		m.probes[i].addTo(&d)
		s.histogram(descProbeSeconds, &d, o)
	}
	m.collectPoolGauges(s, pools)
	for _, l := range listeners {
		name := clean(l.Name)
		s.gauge(descConnections, float64(l.Connections), "client", name, "")
		if l.HTTP2 {
			s.gauge(descStreams, float64(l.Streams), name)
		}
		if l.AcceptQueueLimit > 0 {
			s.gauge(descAcceptQueue, float64(l.AcceptQueue), name)
			s.gauge(descAcceptLimit, float64(l.AcceptQueueLimit), name)
		}
		for _, h := range l.Handshakes {
			s.counter(descHandshakes, h.N, name, h.Outcome)
		}
		if l.Handshakes != nil {
			s.gauge(descHandshaking, float64(l.Handshaking), name)
			m.collectHandshakes(s, l.Name)
		}
		for _, h := range l.Headers {
			s.counter(descHeaders, h.N, name, h.Outcome)
		}
		s.certificates(name, l.Certificates)
		s.datagrams(name, l.Datagrams)
	}
	s.gauge(descGeneration, float64(m.generation.Load()))
	var dropped uint64
	for _, f := range m.logDropped {
		dropped += f()
	}
	s.counter(descLogDropped, dropped)
}

// note learns from the snapshots how large each pool is and which backends
// have left.
func (m *Metrics) note(pools []PoolGauges) {
	now := m.now()
	for i := range pools {
		p := &pools[i]
		present := make(map[string]bool, len(p.Backends))
		for _, b := range p.Backends {
			present[b.ID] = true
		}
		m.SetPoolSize(p.Name, len(present))
		name := clean(p.Name)
		m.mu.Lock()
		for k, r := range m.routes {
			if k.pool == name {
				r.mark(present, now)
			}
		}
		for k, e := range m.ejections {
			if k.pool != name {
				continue
			}
			if present[k.backend] {
				e.left = 0
			} else if e.left == 0 {
				e.left = now.UnixNano()
			}
		}
		m.mu.Unlock()
	}
}

// destinations are the addresses of backends that have series of their own.
func (m *Metrics) destinations(pools []PoolGauges) map[netip.AddrPort]bool {
	out := make(map[netip.AddrPort]bool)
	for i := range pools {
		if m.large(m.Pool(pools[i].Name)) {
			continue
		}
		for _, b := range pools[i].Backends {
			if a, err := netip.ParseAddrPort(b.Address); err == nil {
				out[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = true
			}
		}
	}
	return out
}

func (m *Metrics) collectRequests(s sink) {
	type connKey struct{ pool, backend string }
	type conns struct{ fresh, reused uint64 }
	connections := make(map[connKey]conns)
	count := func(pool, backend string, fresh, reused uint64) {
		c := connections[connKey{pool, backend}]
		connections[connKey{pool, backend}] = conns{c.fresh + fresh, c.reused + reused}
	}
	for _, r := range m.routes {
		var d distribution
		r.seconds.addTo(&d)
		if d.count() > 0 {
			// Only from its first request on: a histogram is two KiB of text, and
			// of thousands of routes most are idle.
			s.histogram(descRequestSeconds, &d, r.listener, r.route, r.pool.name)
		}

		s.calls(r)
		s.sessionsOf(m, r)
		none := make(map[outcome]uint64)
		r.none.addTo(none)
		fresh, reused := r.none.connections()
		if m.large(r.pool) {
			for _, b := range *r.backends.Load() {
				b.addTo(none)
				f, u := b.connections()
				fresh, reused = fresh+f, reused+u
			}
			r.mu.Lock()
			for o, n := range r.departed {
				none[o] += n
			}
			fresh, reused = fresh+r.departedFresh, reused+r.departedUsed
			r.mu.Unlock()
		} else {
			for _, b := range *r.backends.Load() {
				sum := make(map[outcome]uint64)
				b.addTo(sum)
				m.requests(s, r, b.backend, sum)
				f, u := b.connections()
				count(r.pool.name, b.backend, f, u)
			}
		}
		m.requests(s, r, "", none)
		if fresh+reused > 0 {
			count(r.pool.name, "", fresh, reused)
		}
	}
	for k, c := range connections {
		s.counter(descUpstreamConns, c.fresh, k.pool, k.backend, "false")
		s.counter(descUpstreamConns, c.reused, k.pool, k.backend, "true")
	}
}

func (m *Metrics) requests(s sink, r *RouteSeries, backend string, sum map[outcome]uint64) {
	for o, n := range m.shown(sum) {
		s.counter(descRequests, n, r.listener, r.route, r.pool.name, backend, o.code, o.reason.String())
	}
}

func (m *Metrics) collectPoolSeries(s sink) {
	totals := make(map[*PoolSeries]*distribution)
	for _, r := range m.routes {
		d := totals[r.pool]
		if d == nil {
			d = new(distribution)
			totals[r.pool] = d
		}
		r.seconds.addTo(d)
	}
	for _, p := range m.poolSeries {
		for cause := range p.retries {
			for o := range p.retries[cause] {
				if n := p.retries[cause][o].Load(); n > 0 {
					s.counter(descRetries, n, p.name, causeName(cause), retryOutcomeNames[o])
				}
			}
		}
		for cause := range p.redispatches {
			if n := p.redispatches[cause].Load(); n > 0 {
				s.counter(descRedispatches, n, p.name, message.Reason(cause).String())
			}
		}
		s.hedges(p)
		s.sticky(p)
		if p.name == "" {
			continue // requests that found no route have no upstream
		}
		s.tunnelEnds(p)
		total := totals[p]
		if total == nil {
			total = new(distribution)
		}
		var waited, connect, first distribution
		p.queue.addTo(&waited)
		p.connect.addTo(&connect)
		p.firstByte.addTo(&first)
		if total.count()+waited.count()+connect.count()+first.count() == 0 {
			continue // as of idle routes
		}
		s.histogram(descQueueSeconds, &waited, p.name)
		// Those that did not wait are not counted one by one on the hot path:
		// they are all the others, and their wait was zero.
		if all, w := total.count(), waited.count(); all > w {
			waited.n[0] += all - w
		}
		s.histogram(descUpstream, &waited, p.name, "queue")
		s.histogram(descUpstream, &connect, p.name, "connect")
		s.histogram(descUpstream, &first, p.name, "first_byte")
		s.histogram(descUpstream, total, p.name, "total")
	}
}

func (m *Metrics) collectEjections(s sink) {
	type key struct{ pool, cause string }
	folded := make(map[key]uint64)
	for k, e := range m.ejections {
		if m.large(m.poolLocked(k.pool)) {
			folded[key{k.pool, k.cause}] += e.n
			continue
		}
		s.counter(descEjections, e.n, k.pool, k.backend, k.cause)
	}
	for k, n := range folded {
		s.counter(descEjections, n, k.pool, "", k.cause)
	}
}

// discovery exposes what finds a pool's backends, where something does.
func (s sink) discovery(pool string, d *DiscoveryGauges) {
	if d == nil {
		return
	}
	s.gauge(descDiscovered, float64(d.Backends), pool)
	s.gauge(descHeld, float64(d.Held), pool)
	if !d.LastAnswer.IsZero() {
		s.gauge(descLastAnswer, float64(d.LastAnswer.UnixMilli())/1000, pool)
	}
	for _, a := range d.Answers {
		s.counter(descAnswers, a.Count, pool, a.Outcome)
	}
}

func (m *Metrics) collectPoolGauges(s sink, pools []PoolGauges) {
	for i := range pools {
		p := &pools[i]
		name := clean(p.Name)
		s.gauge(descPanic, oneIf(p.Panic), name)
		for _, kind := range correlatedKinds {
			s.gauge(descCorrelated, oneIf(p.Correlated == kind), name, kind)
		}
		s.gauge(descBudget, p.BudgetRemaining, name)
		s.gauge(descSaturation, p.Saturation, name)
		s.gauge(descQueueLength, float64(p.QueueLength), name)
		s.limit(name, p.Limit)
		s.gauge(descConnections, float64(p.Connections), "upstream", "", name)
		s.discovery(name, p.Discovery)

		var states [len(backendStates)]int
		var inFlight, tunnels int64
		var flips uint64
		series := m.poolLocked(name)
		large, tunnelled := m.large(series), series.tunnelled.Load()
		seen := make(map[string]bool, len(p.Backends))
		for j := range p.Backends {
			b := &p.Backends[j]
			id := clean(b.ID)
			if seen[id] {
				continue
			}
			seen[id] = true
			for k, st := range backendStates {
				if st == b.State {
					states[k]++
				}
				if !large {
					s.gauge(descState, oneIf(st == b.State), name, id, st)
				}
			}
			inFlight += b.InFlight
			tunnels += b.Tunnels
			flips += b.Flips
			if !large {
				s.gauge(descInFlight, float64(b.InFlight), name, id)
				if tunnelled {
					s.gauge(descTunnels, float64(b.Tunnels), name, id)
				}
				s.gauge(descShare, b.Share, name, id)
				s.counter(descFlips, b.Flips, name, id)
			}
		}
		for k, st := range backendStates {
			s.gauge(descStates, float64(states[k]), name, st)
		}
		if large {
			s.gauge(descInFlight, float64(inFlight), name, "")
			if tunnelled {
				s.gauge(descTunnels, float64(tunnels), name, "")
			}
			s.counter(descFlips, flips, name, "")
		}
	}
}

func (s sink) certificates(listener string, all []CertificateGauge) {
	first := make(map[string]time.Time, len(all))
	for _, c := range all {
		if c.NotAfter.IsZero() {
			continue
		}
		name := clean(c.Name)
		if t, ok := first[name]; !ok || c.NotAfter.Before(t) {
			first[name] = c.NotAfter
		}
	}
	for name, t := range first {
		s.gauge(descCertificate, float64(t.Unix()), listener, name)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// sink sends constant metrics. A metric that cannot be made (which takes a
// mistake in this package) becomes an invalid one that the handler reports.
type sink struct{ ch chan<- prometheus.Metric }

func (s sink) send(d *prometheus.Desc, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	s.ch <- m
}

// limit writes a pool's adaptive limit.
func (s sink) limit(name string, l *LimitGauges) {
	if l == nil {
		return
	}
	if l.Limit > 0 {
		s.gauge(descLimit, float64(l.Limit), name)
	}
	for i, n := range l.Shed {
		s.counter(descShed, n, name, Priorities[i])
	}
}

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...)
	s.send(d, m, err)
}

func (s sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	m, err := prometheus.NewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	s.send(d, m, err)
}

func (s sink) histogram(d *prometheus.Desc, h *distribution, labels ...string) {
	m, err := prometheus.NewConstHistogram(d, h.count(), h.sum.Seconds(), h.cumulative(), labels...)
	s.send(d, m, err)
}

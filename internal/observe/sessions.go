// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirlb/weir/internal/message"
)

// SessionBytes count the bytes of sessions that have reached the other side,
// while they move. It is safe for concurrent use.
type SessionBytes struct {
	In           atomic.Uint64 // from clients to the backend
	DatagramsIn  atomic.Uint64 // of UDP: how many these are
	_            [6]uint64
	Out          atomic.Uint64 // from the backend to clients
	DatagramsOut atomic.Uint64
	_            [6]uint64
}

// sessionCounts are what a Series has counted of sessions.
type sessionCounts struct {
	bytes SessionBytes
	ends  [message.Reasons]atomic.Uint64
	spans atomic.Uint64 // nanoseconds, of those that have ended
}

// sessionsOf returns the counters of sessions, which begin with the first one.
func (s *Series) sessionsOf() *sessionCounts {
	if c := s.sessions.Load(); c != nil {
		return c
	}
	s.sessions.CompareAndSwap(nil, new(sessionCounts))
	return s.sessions.Load()
}

// Session returns the counters of bytes for a session that begins.
func (s *Series) Session() *SessionBytes { return &s.sessionsOf().bytes }

// ObserveSession counts a session that has ended, or was refused. Its bytes were
// counted as they moved.
func (s *Series) ObserveSession(r *Record) {
	c := s.sessionsOf()
	c.ends[r.Reason].Add(1)
	if r.Total > 0 {
		c.spans.Add(uint64(r.Total))
	}
	if r.Linked {
		s.stripes[0].n[connFresh].Add(1)
	}
	p := s.route.pool
	if r.Connect > 0 {
		p.connect.observe(0, r.Connect)
	}
	if r.Queue > 0 {
		p.queue.observe(0, r.Queue)
	}
}

// sessionSums are counters read out.
type sessionSums struct {
	in, out, spans            uint64
	datagramsIn, datagramsOut uint64
	ends                      [message.Reasons]uint64
}

// addSessions adds what the series has counted.
func (s *Series) addSessions(sum *sessionSums) {
	c := s.sessions.Load()
	if c == nil {
		return
	}
	sum.in += c.bytes.In.Load()
	sum.out += c.bytes.Out.Load()
	sum.datagramsIn += c.bytes.DatagramsIn.Load()
	sum.datagramsOut += c.bytes.DatagramsOut.Load()
	sum.spans += c.spans.Load()
	for i := range c.ends {
		sum.ends[i] += c.ends[i].Load()
	}
}

var (
	descSessions       = desc("weir_sessions_total", "Sessions (TCP, by address or by TLS name, and flows of UDP) finished, by what served them and how they ended.", "listener", "route", "pool", "backend", "reason")
	descSessionBytes   = desc("weir_session_bytes_total", "Bytes of sessions that have reached the other side: in from clients, out to them.", "listener", "route", "pool", "backend", "direction")
	descSessionSeconds = desc("weir_session_seconds_total", "How long finished sessions were open, together.", "listener", "route", "pool", "backend")
)

// sessions exposes the counts of one backend, or of those that have left.
func (s sink) sessions(listener, route, pool, backend string, n *sessionSums) {
	if *n == (sessionSums{}) {
		return
	}
	for i, v := range n.ends {
		if v > 0 {
			s.counter(descSessions, v, listener, route, pool, backend, message.Reason(i).String())
		}
	}
	s.counter(descSessionBytes, n.in, listener, route, pool, backend, "in")
	s.counter(descSessionBytes, n.out, listener, route, pool, backend, "out")
	if n.datagramsIn > 0 {
		s.counter(descDatagrams, n.datagramsIn, listener, route, pool, backend, "in")
		s.counter(descDatagrams, n.datagramsOut, listener, route, pool, backend, "out")
	}
	m, err := prometheus.NewConstMetric(descSessionSeconds, prometheus.CounterValue, time.Duration(n.spans).Seconds(), listener, route, pool, backend)
	s.send(descSessionSeconds, m, err)
}

// sessionsOf exposes the sessions of a route. Called under Metrics.mu.
func (s sink) sessionsOf(m *Metrics, r *RouteSeries) {
	var none sessionSums
	r.none.addSessions(&none)
	large := m.large(r.pool)
	for _, b := range *r.backends.Load() {
		if large {
			b.addSessions(&none)
			continue
		}
		var sum sessionSums
		b.addSessions(&sum)
		s.sessions(r.listener, r.route, r.pool.name, b.backend, &sum)
	}
	if large {
		r.mu.Lock()
		none.add(&r.departedSessions)
		r.mu.Unlock()
	}
	s.sessions(r.listener, r.route, r.pool.name, "", &none)
}

func (n *sessionSums) add(o *sessionSums) {
	n.in, n.out, n.spans = n.in+o.in, n.out+o.out, n.spans+o.spans
	n.datagramsIn, n.datagramsOut = n.datagramsIn+o.datagramsIn, n.datagramsOut+o.datagramsOut
	for i, v := range o.ends {
		n.ends[i] += v
	}
}

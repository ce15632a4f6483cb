// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/pool"
)

// Record is one request of a client that has ended.
type Record struct {
	Source   *Source
	Arrived  time.Duration // since the beginning
	Ended    time.Duration
	Balancer *Balancer // the one asked last
	Server   *Server   // which was tried last; nil: none
	Tries    int       // of the client
	Attempts int       // of the outermost balancer, over all tries; a server's own questions are not counted
	Status   int       // 0: the client went away
	// Reason is the balancer's word when it was the one to answer (queue_full,
	// connect_refused, ...), client_timeout when the client went away, "" for a
	// server's own answer.
	Reason string
	OK     bool          // an answer below 500
	Queued time.Duration // spent in balancers' queues
	Size   float64
	Key    uint64
	HasKey bool
}

// Latency returns how long the client waited.
func (r *Record) Latency() time.Duration { return r.Ended - r.Arrived }

// Stats sums up what happened to the clients' requests.
type Stats struct {
	Counts
	// Phases are what Phase has divided the time into, by the requests' arrival.
	// Before the first call there are none.
	Phases []*PhaseStats
	// Servers has the requests whose last attempt was there, by Server.
	Servers map[*Server]*Counts
	// Buckets has the requests by the time of their end, if Step was set: Buckets[i]
	// is about [i x Step, (i+1) x Step).
	Step    time.Duration
	Buckets []Counts
}

// Counts are the figures of some requests.
type Counts struct {
	Requests  uint64 // that have ended
	OK        uint64
	Attempts  uint64
	Tries     uint64
	Latency   Histogram      // of all
	Successes Histogram      // of those that were OK
	Queued    time.Duration  // summed
	Reasons   map[string]int // of those not OK, by Reason, "status_500" and the like without one
}

// PhaseStats are the figures of the requests that arrived in one part of the
// time.
type PhaseStats struct {
	Name  string
	Began time.Duration
	Counts
}

func newStats() Stats { return Stats{Servers: map[*Server]*Counts{}} }

// Phase begins a new part of the time.
func (w *World) Phase(name string) {
	w.stats.Phases = append(w.stats.Phases, &PhaseStats{Name: name, Began: w.Now()})
}

// Phase returns the last phase of that name, nil if there is none.
func (s *Stats) Phase(name string) *PhaseStats {
	for _, p := range slices.Backward(s.Phases) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Of returns the figures of a server, empty ones if it had no request.
func (s *Stats) Of(server *Server) *Counts {
	if c := s.Servers[server]; c != nil {
		return c
	}
	return &Counts{}
}

// Share returns the part of the requests whose last attempt was at the server.
func (s *Stats) Share(server *Server) float64 {
	if s.Requests == 0 {
		return 0
	}
	return float64(s.Of(server).Requests) / float64(s.Requests)
}

// Failed returns how many were not OK.
func (c *Counts) Failed() uint64 { return c.Requests - c.OK }

// ReasonNames returns the reasons of those not OK, sorted.
func (c *Counts) ReasonNames() []string {
	names := make([]string, 0, len(c.Reasons))
	for n := range c.Reasons {
		names = append(names, n)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

func (c *Counts) add(r *Record) {
	c.Requests++
	c.Attempts += uint64(r.Attempts)
	c.Tries += uint64(r.Tries)
	c.Queued += r.Queued
	c.Latency.Add(r.Latency())
	if r.OK {
		c.OK++
		c.Successes.Add(r.Latency())
		return
	}
	if c.Reasons == nil {
		c.Reasons = map[string]int{}
	}
	c.Reasons[r.Why()]++
}

// Why returns the Reason, or the status when a server's own answer was no
// success.
func (r *Record) Why() string {
	switch {
	case r.Reason != "" || r.OK:
		return r.Reason
	case r.Status == 503:
		return "status_503"
	case r.Status == 500:
		return "status_500"
	default:
		return "status_5xx"
	}
}

// record sums up a request that has ended.
func (w *World) record(q *request, r *reply) {
	rec := &w.last
	*rec = Record{
		Source: q.s, Arrived: time.Duration(q.began), Ended: w.Now(), Balancer: q.to, Server: r.server,
		Tries: q.tries, Attempts: q.sum, Status: r.status, Reason: r.reason, Queued: q.queued,
		OK: r.kind == pool.Success && r.status < 500, Size: q.size, Key: q.key, HasKey: q.hasKey,
	}
	s := &w.stats
	s.add(rec)
	if rec.Server != nil {
		c := s.Servers[rec.Server]
		if c == nil {
			c = &Counts{}
			s.Servers[rec.Server] = c
		}
		c.add(rec)
	}
	for _, p := range slices.Backward(s.Phases) {
		if p.Began <= rec.Arrived {
			p.add(rec)
			break
		}
	}
	if s.Step > 0 {
		i := int(rec.Ended / s.Step)
		for len(s.Buckets) <= i {
			s.Buckets = append(s.Buckets, Counts{})
		}
		s.Buckets[i].add(rec)
	}
	if w.OnRecord != nil {
		w.OnRecord(rec)
	}
}

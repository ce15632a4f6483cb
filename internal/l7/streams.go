// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// stream is an answer that may have no end of its own: server-sent events, or what
// a gRPC server goes on sending. Once it has lasted for a moment it stands beside
// tunnels in Tunnels, so that it can be ended as they are: a few at a time when
// somebody drains, the oldest first where load is to be spread anew. Its client is
// one that begins again. Other answers, downloads among them, have an end that a
// drain waits for.
//
// It is not the exchange, which serves others by the time a wave comes to it.
type stream struct {
	// Constant.
	backend *balance.Backend
	since   balance.Instant
	facts   observe.LongLived

	mu  sync.Mutex          // guards the rest
	up  Upstream            // nil: the exchange has let go of it
	why observe.TunnelCause // TunnelByPeer: it goes on
}

// Backend implements LongLived.
func (s *stream) Backend() *balance.Backend { return s.backend }

// Since implements LongLived.
func (s *stream) Since() balance.Instant { return s.since }

// End implements LongLived. Nobody is waited for: there is nothing that a client
// could answer.
func (s *stream) End(why observe.TunnelCause, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up == nil || s.why != observe.TunnelByPeer {
		return
	}
	s.why = why
	s.up.Cut()
}

// cause is why weir has ended the stream.
func (s *stream) cause() observe.TunnelCause {
	if s == nil {
		return observe.TunnelByPeer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// isStream tells streams from tunnels and sessions.
func isStream(t LongLived) bool {
	_, ok := t.(*stream)
	return ok
}

// endless reports that an answer may have no end of its own.
func (e *exchange) endless() bool {
	if e.call.on {
		return true
	}
	if e.res.Body == message.Sized {
		return false
	}
	v, ok := e.res.Fields.Get(message.ContentType)
	const events = "text/event-stream"
	return ok && len(v) >= len(events) && message.EqualFold(v[:len(events)], events)
}

// enroll makes an endless answer that has lasted for a moment known. Most calls
// have ended by then.
func (e *exchange) enroll() {
	if !e.streams || e.stream != nil || e.now.Sub(e.sentAt)-e.rec.FirstByte < watchAfter {
		return
	}
	e.stream = &stream{backend: e.backend, since: e.sentAt, facts: e.facts("stream"), up: e.up}
	e.x.tunnels.Enter(e.stream)
}

// unenrolled reports that enroll will have something to do.
func (e *exchange) unenrolled() bool { return e.streams && e.stream == nil }

// letStreamGo is called before the exchange lets go of what a stream waits for.
func (e *exchange) letStreamGo() {
	s := e.stream
	if s == nil {
		return
	}
	s.mu.Lock()
	there := s.up != nil
	s.up = nil
	s.mu.Unlock()
	if there {
		e.x.tunnels.Leave(s)
	}
}

// streamEnded is how a stream ends that weir has ended.
func (e *exchange) streamEnded(why observe.TunnelCause, err error) Failure {
	e.x.tunnels.countStream(e.backend, why)
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.StreamEnded(why)
	}
	f := Failure{Fault: FaultWeir, Phase: PhaseRelay, Reason: message.DrainCut, Kind: pool.Canceled, Detail: why.String() + ": the stream was ended", Err: err}
	switch why {
	case observe.TunnelByRebalance:
		f.Reason = message.Rebalanced
	case observe.TunnelByShutdown:
		e.x.cuts.Add(1)
	}
	return f
}

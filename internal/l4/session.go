// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// earlyEnd is within which time a backend that ends a session without a byte
// either way has refused it: something in front of a dead server accepted. A
// client that sends nothing cannot bring that about.
const earlyEnd = time.Second

const forgedDetail = "a PROXY header that is not the client's to send"

// Session is one open session. It is known to Sessions while it is open.
type Session struct {
	pair

	// o decides about the session until it is established; then it is nil. It
	// belongs to whoever the session belongs to.
	o *opening

	// Constant once it is established.
	px        *Proxy
	rt        *Route
	cl        Client
	b         *balance.Backend
	bytes     *observe.SessionBytes // nil: not counted
	closed    [2]func()             // by side: gives back what the connection took; nil: nothing
	cut       func() bool           // the backend's drain has reached its deadline
	connected balance.Instant
	queue     time.Duration
	connect   time.Duration
	tried     []observe.Try
	attempts  int

	// Owned by who moves the bytes.
	begun    *upstream.Begun // until it lasts; nil: its options are set
	lease    pool.Lease
	answered bool   // the backend has sent a byte, and the pool knows
	words    string // what TLS says of the end; empty: nothing

	why atomic.Uint32 // observe.TunnelCause: weir ends it
	ask func()        // makes whoever moves the bytes end the session; set before it is known
}

// Backend returns where the session leads.
func (s *Session) Backend() *balance.Backend { return s.b }

// Since returns when it was established.
func (s *Session) Since() balance.Instant { return s.connected }

// End ends the session soon; both peers see a reset. It does not wait, may be
// called from any goroutine and more than once: the first cause is told.
func (s *Session) End(why observe.TunnelCause, _ time.Duration) {
	if s.why.CompareAndSwap(uint32(observe.TunnelByPeer), uint32(why)) {
		s.ask()
	}
}

// moved implements owner.
func (s *Session) moved(from side, n int) {
	if s.bytes != nil {
		if from == client {
			s.bytes.In.Add(uint64(n))
		} else {
			s.bytes.Out.Add(uint64(n))
		}
	}
	if from == backend && !s.answered {
		s.answered = true
		s.lease.Report(s.success())
	}
}

// success is what a pool is told of a backend that works: it can be connected to,
// and says something. What it costs is the time of connecting; everything later
// is the peers' conversation.
func (s *Session) success() pool.Outcome {
	return pool.Outcome{
		Now: clock.Now(), Kind: pool.Success, Sent: true, FirstByte: max(s.connect, 1), Total: max(s.connect, 1),
		Client: clientHash(s.cl.Peer.Addr()),
	}
}

// ended implements owner: it judges, records, and gives everything back.
func (s *Session) ended(e end) {
	if s.o != nil { // told, or the loop has ended
		s.stopped(clock.Now())
		return
	}
	s.over(e, s.half[client].total, s.half[backend].total)
}

// over is the end of an established session, however its bytes were moved.
func (s *Session) over(e end, in, out int64) {
	now := clock.Now()
	reason, detail := s.judge(e)
	refused := s.refusedLate(e, now, in, out)
	switch {
	case refused:
		reason, detail = message.ResetBeforeResponse, cmp.Or(s.words, "closed by the backend at once")
		o := s.success()
		o.Now, o.Kind, o.Total = now, pool.Reset, now.Sub(s.connected)
		s.lease.Done(o)
	case s.answered:
		s.lease.Return(now)
	default:
		s.lease.Done(s.success()) // it can be connected to
	}
	for _, f := range s.closed {
		if f != nil {
			f()
		}
	}
	s.px.opt.Sessions.Leave(s)
	if s.cl.Asked {
		s.px.asked.leave(s)
	}
	if v := s.cl.Via; v != nil {
		v.asked.leave(s)
	}
	r := records.Get().(*observe.Record)
	s.px.fill(r, s.rt, &s.cl)
	r.Backend, r.Sent, r.Linked = s.b.ID(), in > 0, true
	r.Attempts, r.Redispatches, r.Tried = s.attempts, len(s.tried), append(r.Tried, s.tried...)
	r.Queue, r.Connect = s.queue, s.connect
	r.BytesIn, r.BytesOut = in, out
	r.Reason, r.Detail = reason, detail
	s.px.record(r, s.rt, now)
	if s.rt.Limit != nil {
		s.rt.Limit.Release()
	}
	s.px.left()
}

// refusedLate reports that the backend has accepted the connection and then
// ended it before anybody said a word.
func (s *Session) refusedLate(e end, now balance.Instant, in, out int64) bool {
	return (e.how == endDone || e.how == endReset) && e.side == backend && in == 0 && out == 0 &&
		s.half[client].total == 0 && !s.half[client].blocked() && now.Sub(s.connected) < earlyEnd && !s.cut()
}

// judge names how a session ended.
func (s *Session) judge(e end) (reason message.Reason, detail string) {
	switch why := observe.TunnelCause(s.why.Load()); {
	case e.how == endDone:
		return message.OK, s.words
	case why == observe.TunnelByRebalance:
		return message.Rebalanced, ""
	case why != observe.TunnelByPeer:
		if why == observe.TunnelByShutdown {
			s.px.cuts.Add(1)
		}
		return message.DrainCut, why.String()
	case e.how == endTold && s.cut():
		return message.DrainCut, "deadline of the backend's drain"
	case e.how == endTold:
		s.px.cuts.Add(1)
		return message.DrainCut, "shutdown"
	case e.how == endForged:
		if s.px.opt.Forged != nil {
			s.px.opt.Forged(s.cl.Peer)
		}
		return message.BadRequest, forgedDetail
	case e.how == endIdle:
		return message.StreamIdleTimeout, "no byte either way for " + s.rt.Idle.String()
	case e.how == endTotal:
		return message.MaxAge, "open for " + s.rt.Total.String()
	case e.side == client:
		return message.ClientAbort, cmp.Or(s.words, said(e.errno))
	case s.answered:
		return message.ResetMidResponse, cmp.Or(s.words, said(e.errno))
	default:
		return message.ResetBeforeResponse, cmp.Or(s.words, said(e.errno))
	}
}

// said puts an error into a few words.
func said(errno syscall.Errno) string {
	switch errno {
	case 0:
		return ""
	case syscall.ENOTCONN, syscall.EPIPE: // of a side that reset what weir had not read of yet
		return "closed before it had everything"
	}
	return fmt.Sprint(errno)
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// exchange is one request inside a balancer: what the data plane keeps about it.
type exchange struct {
	deadline  timer // of the request, the connection attempt, the answer or the queue
	step      timer // a backoff, or the network
	b         *Balancer
	in        *call // nil when the balancer's own client is gone
	out       call
	lease     pool.Lease
	req       balance.Request
	try       pool.Try
	ticket    *pool.Ticket
	link      *link
	last      reply // of the attempt that failed last
	got       reply // on its way back
	began     balance.Instant
	end       balance.Instant // of the request; 0: none
	asked     balance.Instant // when the attempt began
	enqueued  balance.Instant
	queued    time.Duration
	attempts  int
	onWay     bool   // an attempt is under way
	open      bool   // and the backend has accepted the connection
	due       timer  // of a hedge
	second    *hedge // under way
	failed    reply  // of an attempt that waits for what its hedge brings
	waits     bool   // there is one
	overtaken bool   // the hedge answered first
	reused    bool
	retried   bool // or declined to retry: the caller must not
}

const (
	exchangeDeadline = iota
	exchangeAgain    // the backoff is over
	exchangeArrives  // the request is at the backend
	exchangeReturns  // the answer is back
	exchangeHedge    // a second attempt is due
)

func (w *World) newExchange() *exchange {
	if n := len(w.spareExchanges); n > 0 {
		x := w.spareExchanges[n-1]
		w.spareExchanges = w.spareExchanges[:n-1]
		return x
	}
	x := &exchange{}
	x.reset()
	return x
}

func (x *exchange) reset() {
	*x = exchange{}
	x.deadline.who, x.step.who, x.due.who = x, x, x
	x.deadline.code, x.due.code = exchangeDeadline, exchangeHedge
	x.out.caller = x
}

// serve takes a request.
func (b *Balancer) serve(c *call) {
	x := b.w.newExchange()
	x.b, x.in, x.began = b, c, b.w.now
	c.within, c.sent = x, true
	if a, ok := c.caller.(accepter); ok && !c.hold {
		a.accepted(c)
	}
	b.requests++
	b.pool.BeginRequest(x.began)
	if b.cfg.Request > 0 && !c.hold {
		x.end = x.began.Add(b.cfg.Request)
	}
	x.req.Key, x.req.HasKey, x.req.Priority = c.key, c.hasKey, c.prio
	x.pick()
}

// cancel is the caller's word that it waits no longer.
func (b *Balancer) cancel(c *call) {
	x := c.within
	if x == nil {
		return
	}
	c.within = nil
	x.in = nil
	if x.ticket != nil {
		x.leaveQueue()
	}
	if x.lease.Held() {
		x.giveUp(pool.Canceled)
	}
	x.free()
}

func (x *exchange) free() {
	w := x.b.w
	w.agenda.cancel(&x.deadline)
	w.agenda.cancel(&x.step)
	w.agenda.cancel(&x.due)
	if x.second != nil {
		x.second.cut()
	}
	x.reset()
	w.spareExchanges = append(w.spareExchanges, x)
}

// pick asks the pool for a backend.
func (x *exchange) pick() {
	b := x.b
	x.req.Now = b.w.now
	x.req.Rand = mix(x.in.rnd ^ b.salt + uint64(x.attempts)*gamma + uint64(x.in.try)<<32)
	got := b.pool.Pick(&x.lease, &x.req)
	b.Touch()
	if got == pool.Full && b.cfg.Pool.Limits.Queue > 0 {
		x.ticket, got = b.pool.Enqueue(&x.lease, &x.req)
		if x.ticket != nil {
			b.waiting = append(b.waiting, x)
			x.enqueued = b.w.now
			x.until(b.cfg.Pool.Limits.QueueTimeout)
			return
		}
	}
	x.granted(got)
}

// granted goes on with the pool's answer.
func (x *exchange) granted(got pool.Refusal) {
	if x.ticket != nil {
		x.ticket = nil
		x.queued += x.b.w.now.Sub(x.enqueued)
	}
	if got != pool.Granted {
		x.refuse(got)
		return
	}
	x.attempt()
}

// leaveQueue gives up the place in the queue; a slot that was granted meanwhile is
// held afterwards.
func (x *exchange) leaveQueue() {
	b := x.b
	for i, o := range b.waiting {
		if o == x {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			break
		}
	}
	b.pool.Abandon(x.ticket)
	x.ticket = nil
	x.queued += b.w.now.Sub(x.enqueued)
	b.Touch()
}

// until plans the deadline: after d (0: none) or at the end of the request, what
// comes first.
func (x *exchange) until(d time.Duration) {
	at := x.end
	if d > 0 && (at == 0 || x.b.w.now.Add(d) < at) {
		at = x.b.w.now.Add(d)
	}
	if at == 0 {
		x.b.w.agenda.cancel(&x.deadline)
		return
	}
	x.b.w.agenda.plan(&x.deadline, at)
}

// attempt sends the request to the backend whose slot is held.
func (x *exchange) attempt() {
	b := x.b
	x.link = x.lease.Backend().Attachment().(*link)
	x.attempts++
	b.attempts++
	x.asked, x.onWay, x.open = b.w.now, true, false
	l := x.link
	if s := l.server; s != nil && l.epoch != s.epoch {
		l.idle, l.epoch = 0, s.epoch
	}
	if x.reused = l.idle > 0; x.reused {
		l.idle--
	}
	in := x.in
	x.out = call{
		caller: x, to: l.to, began: b.w.now, rnd: in.rnd, try: in.try<<8 + uint32(x.attempts), key: in.key, hasKey: in.hasKey,
		client: in.client, size: in.size, work: in.work, unsafe: in.unsafe, prio: in.prio, hold: in.hold, weir: b.cfg.Marks,
	}
	if b.w.counts != nil {
		b.w.counts.begin(l)
	}
	if b.w.Trace != nil {
		b.w.trace(b.cfg.Name, "attempt on "+l.back.ID())
	}
	x.until(b.cfg.Connect)
	if b.cfg.Network != nil {
		r := &b.w.tripDice
		r.state = mix(x.out.rnd ^ b.salt ^ uint64(x.out.try))
		x.step.code = exchangeArrives
		trip := b.cfg.Network.Sample(r)
		x.out.trip = trip - trip/2
		b.w.agenda.plan(&x.step, b.w.now.Add(trip/2))
		return
	}
	l.to.serve(&x.out)
}

// accepted is the backend's word that the connection stands.
func (x *exchange) accepted(c *call) {
	x.open = true
	if c.hold {
		x.in.sent = true
		x.b.w.agenda.cancel(&x.deadline)
		if a, ok := x.in.caller.(accepter); ok {
			x.in.server = x.link.server
			if c.server != nil {
				x.in.server = c.server
			}
			a.accepted(x.in)
		}
		return
	}
	x.until(x.b.cfg.Response)
	x.planHedge()
}

// answered is the backend's answer, without its way back.
func (x *exchange) answered(c *call, r reply) {
	if c.trip > 0 {
		x.got = r
		x.step.code = exchangeReturns
		x.b.w.agenda.plan(&x.step, x.b.w.now.Add(c.trip))
		return
	}
	x.over(r)
}

func (x *exchange) fire(code uint8) {
	switch code {
	case exchangeAgain:
		x.pick()
	case exchangeArrives:
		x.link.to.serve(&x.out)
	case exchangeReturns:
		x.over(x.got)
	case exchangeDeadline:
		x.timeUp()
	case exchangeHedge:
		x.startHedge()
	}
}

// timeUp ends what is waited for.
func (x *exchange) timeUp() {
	now := x.b.w.now
	whole := x.end != 0 && now >= x.end
	switch {
	case x.ticket != nil:
		x.leaveQueue()
		if x.lease.Held() {
			x.attempt()
			return
		}
		if whole {
			x.finish(reply{kind: pool.Success, status: 504, reason: "request_timeout"})
			return
		}
		x.refuse(pool.QueueTimeout)
	case x.onWay:
		kind := pool.ResponseTimeout
		if !x.open {
			kind = pool.ConnectTimeout
		}
		if whole {
			// The request's own end says little about the backend's.
			x.giveUp(kind)
			x.finish(reply{kind: pool.Success, status: 504, reason: "request_timeout"})
			return
		}
		x.giveUp(kind)
		x.decide(reply{kind: kind})
	default: // in a backoff
		x.finish(reply{kind: pool.Success, status: 504, reason: "request_timeout"})
	}
}

// giveUp ends the attempt under way from the balancer's side.
func (x *exchange) giveUp(kind pool.OutcomeKind) {
	if x.onWay {
		x.b.w.agenda.cancel(&x.step)
		x.link.to.cancel(&x.out)
	}
	x.done(reply{kind: kind})
}

// done gives the slot back and tells the pool how the attempt went.
func (x *exchange) done(r reply) {
	b := x.b
	x.onWay = false
	b.w.agenda.cancel(&x.due)
	if !x.lease.Held() {
		return
	}
	total := b.w.now.Sub(x.asked)
	if b.w.counts != nil {
		b.w.counts.end(x.link)
	}
	if r.kind == pool.Success {
		x.link.idle++
	}
	x.lease.Done(pool.Outcome{
		Now: b.w.now, Kind: r.kind, Status: r.status, RetryAfter: r.retryAfter, RetryAfterFor: r.retryFor,
		Sent: x.open, Reused: x.reused, FirstByte: total, Total: total, Client: x.client(), Load: r.load, HasLoad: r.hasLoad,
		Tunnel: x.out.hold, Overtaken: x.overtaken,
	})
	b.Touch()
}

func (x *exchange) client() uint64 {
	if x.in == nil {
		return 0
	}
	return x.in.client
}

// over ends the attempt with the backend's answer.
func (x *exchange) over(r reply) {
	r.server = x.serverOf(&r)
	if x.b.w.Trace != nil {
		x.b.w.trace(x.b.cfg.Name, "answer "+r.kind.String())
	}
	x.done(r)
	if r.noRetry {
		x.retried = true
	}
	x.decide(r)
}

func (x *exchange) serverOf(r *reply) *Server {
	if r.server != nil {
		return r.server
	}
	return x.link.server
}

// decide goes on after an attempt: the answer is passed on, or there is another
// one.
func (x *exchange) decide(r reply) {
	b := x.b
	if r.kind == pool.Success && !b.cfg.Retry.OnStatus.Has(r.status) {
		x.finish(r)
		return
	}
	if x.second != nil { // it is the second attempt already
		x.failed, x.waits = r, true
		x.until(0)
		return
	}
	back := x.link.back
	sent := x.open
	if x.out.hold && r.kind == pool.Reset {
		x.finish(r)
		return
	}
	d := b.pool.Next(b.w.now, &b.cfg.Retry, &x.try, pool.Failure{
		Kind: r.kind, Status: r.status, RetryAfter: r.retryAfter, Sent: sent, Replayable: !x.in.unsafe, Backend: back,
		By: x.end, NoRetry: r.noRetry && b.cfg.Marks,
	}, mix(x.in.rnd^b.salt^0xb0ff^uint64(x.attempts)))
	b.Touch()
	if !d.Again {
		x.retried = x.retried || d.Declined
		x.finish(r)
		return
	}
	if !d.Redispatch {
		x.retried = true
	}
	x.last = r
	if !d.SameBackendFresh {
		x.req.Tried.Add(back.Hash())
	}
	x.until(0)
	if d.After <= 0 {
		x.pick()
		return
	}
	x.step.code = exchangeAgain
	b.w.agenda.plan(&x.step, b.w.now.Add(d.After))
}

// refuse answers for the pool, or with what an earlier attempt has brought.
func (x *exchange) refuse(got pool.Refusal) {
	if x.attempts > 0 {
		x.finish(x.last)
		return
	}
	x.b.refused++
	x.finish(reply{kind: pool.Success, status: 503, retryAfter: true, retryFor: time.Second, reason: reasonOf(got)})
}

// reasonOf is the word by which a request that was refused is known.
func reasonOf(got pool.Refusal) string {
	if got == pool.Full {
		return "full"
	}
	return got.String()
}

// finish answers the caller and ends the exchange.
func (x *exchange) finish(r reply) {
	b, in := x.b, x.in
	if r.kind != pool.Success && !(x.out.hold && r.kind == pool.Reset) {
		r.reason = r.kind.String()
		if r.kind == pool.ConnectTimeout || r.kind == pool.ResponseTimeout {
			r.status = 504
		} else {
			r.status = 502
		}
		r.kind, r.load, r.hasLoad = pool.Success, 0, false
	}
	r.attempts = max(r.attempts, x.attempts)
	r.queued += x.queued
	if r.server == nil && x.link != nil {
		r.server = x.link.server
	}
	r.noRetry = b.cfg.Marks && in.weir && x.retried
	in.within = nil
	x.free()
	in.caller.answered(in, r)
}

// cutDrained cuts the held connections to a backend whose time to drain is over.
func (b *Balancer) cutDrained(back *balance.Backend) {
	l, ok := back.Attachment().(*link)
	if !ok || l.server == nil {
		return
	}
	for _, c := range append([]*call(nil), l.server.held...) {
		if x, ok := c.caller.(*exchange); ok && x.b == b {
			l.server.cancel(c)
			x.answered(c, reply{kind: pool.Reset})
		}
	}
}

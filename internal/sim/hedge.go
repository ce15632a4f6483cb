// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// hedge is a second attempt beside one without an answer, as the data plane makes
// it: the first good answer is passed on, the other attempt is cut.
type hedge struct {
	x      *exchange
	lease  pool.Lease
	out    call
	link   *link
	asked  balance.Instant
	late   timer // its answer is due, or back
	got    reply
	reused bool
	open   bool
}

const (
	hedgeLate = iota
	hedgeReturns
)

// planHedge decides when the attempt that has been accepted gets a hedge.
func (x *exchange) planHedge() {
	b := x.b
	if x.in.unsafe || x.in.hold || x.second != nil || !b.cfg.Retry.Hedge.On() {
		return
	}
	if d := b.pool.HedgeAfter(&b.cfg.Retry); d > 0 {
		b.w.agenda.plan(&x.due, b.w.now.Add(d))
	}
}

// startHedge sends the request to a second backend, if there is one that it has not
// been to and the budget has room.
func (x *exchange) startHedge() {
	b := x.b
	h := &hedge{x: x, asked: b.w.now}
	h.late.who = h
	q := x.req
	q.Tried.Add(x.link.back.Hash())
	q.Now, q.Rand = b.w.now, mix(x.in.rnd^b.salt^0x4ed6e+uint64(x.attempts)*gamma)
	if b.pool.Pick(&h.lease, &q) != pool.Granted {
		b.Touch()
		return
	}
	if q.Tried.Has(h.lease.Backend().Hash()) || !b.pool.Hedge(b.w.now, &b.cfg.Retry, &x.try, x.end) {
		h.lease.Return(b.w.now)
		b.Touch()
		return
	}
	h.link = h.lease.Backend().Attachment().(*link)
	l := h.link
	x.req.Tried.Add(l.back.Hash())
	x.second = h
	x.attempts++
	b.attempts++
	x.retried = true
	if s := l.server; s != nil && l.epoch != s.epoch {
		l.idle, l.epoch = 0, s.epoch
	}
	if h.reused = l.idle > 0; h.reused {
		l.idle--
	}
	h.out = x.out
	h.out.caller, h.out.to, h.out.began, h.out.try, h.out.trip = h, l.to, b.w.now, x.in.try<<8+uint32(x.attempts), 0
	h.out.within, h.out.server = nil, nil
	if b.w.counts != nil {
		b.w.counts.begin(l)
	}
	if d := b.cfg.Response; d > 0 {
		b.w.agenda.plan(&h.late, b.w.now.Add(d))
	}
	l.to.serve(&h.out)
}

// accepted is the backend's word that the connection stands.
func (h *hedge) accepted(*call) { h.open = true }

func (h *hedge) answered(c *call, r reply) {
	if c.trip > 0 {
		h.got = r
		h.late.code = hedgeReturns
		h.x.b.w.agenda.plan(&h.late, h.x.b.w.now.Add(c.trip))
		return
	}
	h.over(r)
}

func (h *hedge) fire(code uint8) {
	if code == hedgeReturns {
		h.over(h.got)
		return
	}
	h.link.to.cancel(&h.out)
	h.over(reply{kind: pool.ResponseTimeout})
}

// over ends the hedge by itself: its answer takes the place of the first one's, or
// it is as if it had not been.
func (h *hedge) over(r reply) {
	x := h.x
	x.second = nil
	if r.server == nil {
		r.server = h.link.server
	}
	h.done(r, false)
	if r.kind == pool.Success && !x.b.cfg.Retry.OnStatus.Has(r.status) {
		if x.onWay {
			x.overtaken = true
			x.giveUp(pool.Canceled)
		}
		x.link = h.link
		x.finish(r)
		return
	}
	if x.waits {
		x.waits = false
		x.decide(x.failed)
	}
}

// cut ends the hedge because the first attempt was answered, or nobody waits.
func (h *hedge) cut() {
	h.x.second = nil
	h.link.to.cancel(&h.out)
	h.done(reply{kind: pool.Canceled}, h.open)
}

func (h *hedge) done(r reply, overtaken bool) {
	b := h.x.b
	b.w.agenda.cancel(&h.late)
	total := b.w.now.Sub(h.asked)
	if b.w.counts != nil {
		b.w.counts.end(h.link)
	}
	if r.kind == pool.Success {
		h.link.idle++
	}
	h.lease.Done(pool.Outcome{
		Now: b.w.now, Kind: r.kind, Status: r.status, RetryAfter: r.retryAfter, RetryAfterFor: r.retryFor, Sent: h.open, Reused: h.reused,
		FirstByte: total, Total: max(total, time.Duration(0)), Client: h.x.client(), Load: r.load, HasLoad: r.hasLoad, Overtaken: overtaken,
	})
	b.Touch()
}

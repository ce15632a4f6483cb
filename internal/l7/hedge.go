// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// hedge is a second attempt beside one that is still unanswered (Dean and
// Barroso, The Tail at Scale, CACM 2013): whichever answers first is passed on,
// the other one is cut. Only requests without content whose method is safe are
// hedged: the attempt that is cut may still be carried out, after the answer of
// the other one, and what a client sends next must not be undone by it.
//
// It runs in a goroutine of its own, which ends before the exchange goes on with
// an answer. turn decides who is first; the hedge wakes the exchange, which reads
// from the first attempt's connection, by cutting that.
type hedge struct {
	// Constant once it runs.
	x      *Exchanger
	req    *message.Request
	head   bool
	weir   bool // the backends are weirs
	rules  *pool.RetryRules
	target Target
	by     balance.Instant // when its answer is due; 0: never
	times  *Timeouts
	client uint64
	first  Upstream // the first attempt's

	turn atomic.Int32  // turnX
	stop chan struct{} // closed when it is over for it
	over chan struct{} // closed when its goroutine has ended; then the rest may be read

	mu   sync.Mutex
	conn Upstream // guarded by mu: to be cut
	cut  bool     // guarded by mu: it is over for it

	// Owned by its goroutine until over is closed, then by the exchange.
	lease         pool.Lease
	backend       *balance.Backend
	up            Upstream // held when it won
	res           message.Response
	reused        bool
	sent          bool
	began, sentAt balance.Instant
	connect       time.Duration
	firstByte     time.Duration
	outcome       observe.HedgeOutcome
}

const (
	turnOpen  = iota
	turnFirst // the first attempt's answer is passed on, or nobody's
	turnHedge // the hedge's
)

// hedgeable reports that a request may have a hedge.
func (e *exchange) hedgeable() bool {
	b := &e.body
	if e.sticky.backend != 0 {
		return false // only one backend knows the session, and another would be quick to say that it does not
	}
	if e.req.WebSocket || e.interim || !b.whole || b.pumped || b.waiting || len(b.first) > 0 {
		return false
	}
	switch string(e.req.Method) {
	case "GET", "HEAD", "OPTIONS":
		return true
	}
	return false
}

// planHedge decides when the attempt that is being sent gets a hedge.
func (e *exchange) planHedge() {
	e.hedgeAt = 0
	if d := e.rt.Pool.HedgeAfter(&e.rt.Retry); d > 0 && e.hedgeable() {
		e.hedgeAt = e.now.Add(d)
	}
}

// startHedge sends the request to a second backend, if there is one that it has
// not been to, and the budget has room.
func (e *exchange) startHedge() {
	e.hedgeAt = 0
	if e.interim || e.hedge != nil {
		return
	}
	h := &hedge{
		x: e.x, req: e.req, head: e.head, weir: e.rt.Weir, rules: &e.rt.Retry, times: &e.rt.Timeouts, client: e.clientKey, first: e.up,
		stop: make(chan struct{}), over: make(chan struct{}), began: e.now,
	}
	e.breq.Rand, e.breq.Now = rand.Uint64(), e.now
	if e.rt.Pool.Pick(&h.lease, &e.breq) != pool.Granted {
		e.countHedge(observe.HedgeRefused)
		return
	}
	h.backend = h.lease.Backend()
	t, ok := e.targetOf(h.backend)
	if !ok || e.breq.Tried.Has(h.backend.Hash()) || !e.rt.Pool.Hedge(e.now, &e.rt.Retry, &e.try, e.headBy) {
		h.lease.Return(e.now)
		e.countHedge(observe.HedgeRefused)
		return
	}
	h.target, h.by = t, e.headBy
	e.breq.Tried.Add(h.backend.Hash())
	e.rec.Attempts++
	e.final = true // what comes back was tried twice
	if e.rt.Weir {
		e.attemptMark()
	}
	e.watchClient()
	e.hedge = h
	go h.run()
}

// run is the hedge's goroutine.
func (h *hedge) run() {
	f := Failure{Fault: FaultWeir, Phase: PhaseAwait, Reason: message.BadRequest, Kind: pool.LocalFault}
	defer func() {
		if v := recover(); v != nil {
			h.x.bug("l7_hedge", v)
		}
		h.end(&f)
		close(h.over)
	}()
	f = h.ask()
	if f.failed() || h.rules.OnStatus.Has(h.res.Status) || h.res.Status == 101 {
		return
	}
	if h.turn.CompareAndSwap(turnOpen, turnHedge) {
		h.first.Cut() // wakes the exchange
	}
}

// ask sends the request and reads the head of the answer.
func (h *hedge) ask() Failure {
	up := h.target.Get(h.began, false)
	h.reused = up != nil
	if up == nil {
		if !h.x.mayGrow(dialGrowth) {
			return shortage()
		}
		by := earliest(after(h.began, h.times.Connect), h.by)
		var err error
		up, err = h.target.Dial(h.began, by, h.stop)
		h.connect = clock.Now().Sub(h.began)
		if err != nil {
			return dialFailure(err)
		}
	}
	h.up = up
	if !h.hold(up) {
		return clientGone(PhaseConnect, nil)
	}
	h.sentAt = clock.Now()
	up.SetWriteDeadline(after(h.sentAt, h.times.StreamIdle))
	err := up.WriteHead(h.req, nil, true)
	h.sent = err == nil || up.BytesWritten() > 0
	by := earliest(after(h.sentAt, h.times.ResponseHeader), h.by)
	for err == nil {
		if err = up.ReadHead(&h.res, h.head, by); err == nil && (h.res.Status >= 200 || h.res.Status == 101) {
			h.firstByte = clock.Now().Sub(h.sentAt)
			return Failure{}
		}
	}
	started := up.ResponseStarted()
	f := upstreamFailure(PhaseAwait, err, started)
	f.Stale = h.reused && !started && f.Kind == pool.Reset
	return f
}

// hold makes the connection one that cancel cuts.
func (h *hedge) hold(c Upstream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = c
	return !h.cut
}

// end gives back what a hedge holds that has not won.
func (h *hedge) end(f *Failure) {
	if h.turn.Load() == turnHedge {
		return
	}
	if h.up != nil {
		h.hold(nil) // nobody cuts what is not its own any more
		h.up.Close()
		h.up = nil
	}
	now := clock.Now()
	o := pool.Outcome{Now: now, Kind: f.Kind, Sent: h.sent, Stale: f.Stale, Reused: h.reused, Total: now.Sub(h.began), Client: h.client}
	h.mu.Lock()
	cut := h.cut
	h.mu.Unlock()
	h.outcome = observe.HedgeFailed
	switch {
	case cut:
		h.outcome = observe.HedgeLost
		o.Kind, o.Stale, o.Overtaken = pool.Canceled, false, h.sent
	case !f.failed():
		o.Kind, o.Status, o.FirstByte = pool.Success, h.res.Status, h.firstByte
		o.RetryAfter = o.Status == 503 && h.res.Fields.Has(message.RetryAfter)
		o.Behind = h.weir && o.Status >= 500 && noRetry(&h.res.Fields)
	}
	h.lease.Done(o)
}

// cancel cuts the hedge and waits for its end. When it has won meanwhile, what it
// holds is given back.
func (h *hedge) cancel() {
	won := !h.turn.CompareAndSwap(turnOpen, turnFirst) && h.turn.Load() == turnHedge
	h.mu.Lock()
	if !h.cut {
		h.cut = true
		close(h.stop)
		if h.conn != nil {
			h.conn.Cut()
		}
	}
	h.mu.Unlock()
	<-h.over
	if won {
		h.turn.Store(turnFirst)
		h.end(&Failure{})
	}
}

// settleHedge ends the race between an attempt and its hedge, once the attempt
// has an answer (f is none) or has failed. It reports that the hedge's answer has
// taken the attempt's place.
func (e *exchange) settleHedge(f *Failure) bool {
	h := e.hedge
	e.hedge, e.hedgeAt = nil, 0
	won := e.race(h, f)
	if won {
		h.outcome = observe.HedgeWon
	}
	e.countHedge(h.outcome)
	return won
}

func (e *exchange) countHedge(o observe.HedgeOutcome) {
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.Hedge(o)
	}
}

// race is settleHedge but for the count.
func (e *exchange) race(h *hedge, f *Failure) bool {
	overtaken := h.turn.Load() == turnHedge
	worse := f.failed() && f.retriable() && !e.late(e.headBy) || !f.failed() && e.rt.Retry.OnStatus.Has(e.res.Status)
	switch {
	case e.gone():
		h.cancel()
		*f = clientGone(PhaseAwait, nil)
		return false
	case overtaken:
		<-h.over
	case worse: // the hedge is the second attempt already
		e.watchClient()
		select {
		case <-h.over:
		case <-e.w.aborted():
			h.cancel()
			*f = clientGone(PhaseAwait, nil)
			return false
		}
		if h.turn.Load() != turnHedge {
			return false
		}
	case h.turn.CompareAndSwap(turnOpen, turnFirst):
		h.cancel()
		return false
	default: // it came first after all
		<-h.over
		overtaken = true
	}
	e.adopt(h, f, overtaken)
	return true
}

// adopt goes on with the hedge's answer and ends the first attempt.
func (e *exchange) adopt(h *hedge, f *Failure, overtaken bool) {
	first := observe.Try{Backend: e.rec.Backend, Reason: f.Reason}
	last := *f
	switch {
	case overtaken:
		last = Failure{Phase: PhaseAwait, Kind: pool.Canceled, Reason: message.ClientAbort, Sent: true, overtaken: true}
		first.Reason = message.OK
	case !f.failed():
		first.Status = e.res.Status
	default:
		last.Sent = e.headSent
	}
	e.now = clock.Now()
	e.rec.Tried = append(e.rec.Tried, first)
	e.countConnection()
	e.breakOff(&last)

	*f = Failure{}
	e.lease, e.backend, e.target, e.up, e.reused = &h.lease, h.backend, h.target, h.up, h.reused
	e.res, h.res = h.res, e.res
	e.began, e.sentAt, e.headFor, e.headSent, e.retryAfter, e.signals = h.began, h.sentAt, e.now, true, false, signals{}
	r := &e.rec
	r.Backend, r.Reused, r.Linked, r.Connect, r.FirstByte = h.backend.ID(), h.reused, true, h.connect, h.firstByte
	r.Detail = "answered by a hedge"
	e.w.target(e.up)
}

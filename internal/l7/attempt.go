// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"math/rand/v2"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// retryCount is a retry that was made and whose end is not known yet.
type retryCount struct {
	on     bool
	cause  message.Reason
	status int
}

// nextAttempt is a further attempt that was granted and has no backend yet. It
// counts when it has one.
type nextAttempt struct {
	on, redispatch bool
	after          observe.Try // the attempt that it follows
	cause          int         // the status that it was answered with, as PoolSeries.Retry has it
}

// attempts tries backends until one answers for good or nothing may be tried
// any more (S5). It returns the last attempt's failure.
func (e *exchange) attempts() Failure {
	var last Failure
	for {
		if !e.fresh {
			if f := e.choose(); f.failed() {
				// That no second backend was to be had is less true than why the first
				// one failed.
				e.granted = nextAttempt{}
				if last.failed() && f.Fault != FaultClient {
					return last
				}
				return f
			}
		}
		e.countAttempt()
		f := e.attempt()
		if !f.failed() {
			return f
		}
		if !e.again(&f) {
			return f
		}
		last = f
	}
}

// choose reserves a slot on a backend unless one is reserved, waiting in the
// pool's queue when all are full.
func (e *exchange) choose() Failure {
	if e.reserved {
		e.reserved = false
		return e.settleOn(e.lease.Backend())
	}
	p := e.rt.Pool
	e.breq.Rand, e.breq.Now = rand.Uint64(), e.now
	r := p.Pick(e.lease, &e.breq)
	if r == pool.Full {
		e.watchClient()
		r = p.Wait(e.lease, &e.breq, e.headBy, e.w.aborted())
		waited := e.now
		e.now = clock.Now()
		e.rec.Queue += e.now.Sub(waited)
	}
	if r != pool.Granted {
		if r == pool.QueueTimeout && e.late(e.headBy) {
			return Failure{Fault: FaultWeir, Phase: PhaseQueue, Reason: message.RequestTimeout, Detail: "in the queue"}
		}
		return refused(r)
	}
	if e.granted.redispatch {
		e.preferKept()
	}
	return e.settleOn(e.lease.Backend())
}

// reserve takes the next attempt's slot while this one's is still held: an
// answer in hand is better than none, so it is given up only for another
// backend. It does not wait.
func (e *exchange) reserve() *pool.Lease {
	next := e.spare()
	e.breq.Rand, e.breq.Now = rand.Uint64(), e.now
	if e.rt.Pool.Pick(next, &e.breq) != pool.Granted {
		return nil
	}
	if e.breq.Tried.Has(next.Backend().Hash()) {
		next.Return(e.now)
		return nil
	}
	return next
}

// settleOn makes a backend the one of the next attempt.
func (e *exchange) settleOn(b *balance.Backend) Failure {
	e.backend = b
	e.breq.Tried.Add(b.Hash())
	e.rec.Backend = b.ID()
	t, ok := e.targetOf(b)
	if !ok {
		e.x.bug("l7_target", b.ID())
		return Failure{Fault: FaultWeir, Phase: PhaseQueue, Reason: message.NoBackend, Kind: pool.LocalFault, Detail: "backend without connections"}
	}
	e.target = t
	return Failure{}
}

// attempt is one try on the picked backend, up to and including the answer's
// way to the client.
func (e *exchange) attempt() Failure {
	e.began = e.now
	e.rec.Attempts++
	e.rec.FirstByte, e.rec.Connect, e.retryAfter, e.headSent = 0, 0, false, false
	e.signals, e.res.Status = signals{}, 0
	e.sentBefore = e.rec.Sent
	if e.rt.Weir {
		e.attemptMark()
	}
	if f := e.connect(); f.failed() {
		return f
	}
	var f Failure
	if e.call.on {
		f = e.passDeadline()
	}
	if !f.failed() {
		f = e.send()
	}
	if !f.failed() {
		f = e.await()
	}
	if !f.failed() {
		f = e.relay()
	}
	f.Sent = f.failed() && e.headSent
	return f
}

// connect takes a kept connection, or makes one.
func (e *exchange) connect() Failure {
	if up := e.kept; up != nil {
		e.kept = nil
		e.use(up, true)
		return Failure{}
	}
	if !e.fresh {
		if up := e.target.Get(e.now, e.unsafe()); up != nil {
			e.use(up, true)
			return Failure{}
		}
	}
	e.fresh = false
	if e.x.isShort() || !e.x.mayGrow(dialGrowth) {
		return shortage()
	}
	e.watchClient()
	by := earliest(after(e.now, e.rt.Timeouts.Connect), e.headBy)
	up, err := e.target.Dial(e.now, by, e.w.aborted())
	dialed := e.now
	e.now = clock.Now()
	e.rec.Connect = e.now.Sub(dialed)
	e.rec.Reused = false
	switch {
	case err == nil && e.x.isShort():
		// Many wait for slow backends, and what they would take once connected is more
		// than the last of the memory.
		up.Close()
		return shortage()
	case err == nil:
		e.use(up, up.Reused())
		return Failure{}
	case e.w.gone.Load():
		return clientGone(PhaseConnect, err)
	}
	f := dialFailure(err)
	if f.Reason == message.ConnectTimeout && e.late(e.headBy) {
		// The request's time ran out, perhaps in the queue: no word on the backend.
		f.Reason, f.Kind, f.Fault = message.RequestTimeout, pool.Canceled, FaultWeir
	}
	f.Replayable = e.replayable()
	return f
}

func (e *exchange) use(up Upstream, reused bool) {
	e.up, e.reused, e.rec.Reused, e.rec.Linked = up, reused, reused, true
	e.w.target(up)
}

// send writes the head and what is at hand of the content, in one write.
func (e *exchange) send() Failure {
	b, up := &e.body, e.up
	piece, end := b.opening()
	e.sentAt, e.headFor = e.now, e.now
	up.SetWriteDeadline(after(e.now, e.rt.Timeouts.StreamIdle)) // or none: not what the last exchange has left
	if e.rt.Retry.Hedge.On() {
		e.planHedge()
	}
	trailers := end && b.trailers
	if end && !trailers {
		by, _ := e.answerBy()
		up.AwaitBy(e.slice(by))
	}
	err := up.WriteHead(e.req, piece, end && !trailers)
	if err == nil && trailers {
		err = up.WriteTrailers(e.d.Trailers())
	}
	e.headSent = err == nil || up.BytesWritten() > 0
	e.rec.Sent = e.rec.Sent || e.headSent
	if err != nil {
		// A backend may have answered before it closed, as 413 or 503; whatever
		// it said comes before the error of reading. Without a byte sent there is
		// nothing to have answered.
		if !e.headSent || isTimeout(err) {
			return e.upstreamFailed(PhaseSend, err)
		}
		return Failure{}
	}
	if !end && !b.waiting {
		e.startPump()
	}
	return Failure{}
}

// again decides after a failed attempt whether another one is made, and
// prepares it.
func (e *exchange) again(f *Failure) bool {
	if f.Code != 0 && f.Kind == pool.Success {
		return e.pause(f) // judge has decided already
	}
	if e.answered || e.interim || !f.retriable() || e.late(e.headBy) || f.missed || e.callOver() {
		return false
	}
	if f.Reason == message.UpgradeRefused && !f.Sent {
		return e.elsewhere(f)
	}
	f.Replayable = e.replayable()
	if !f.Sent && (e.body.running() || e.body.lost) {
		return false // nothing was sent, but the content is gone
	}
	d := e.next(f)
	if !d.Again {
		return false
	}
	if d.SameBackendFresh {
		e.granted = nextAttempt{on: true, redispatch: true, after: observe.Try{Backend: e.rec.Backend, Reason: f.Reason}}
		e.countConnection()
		e.dropUpstream()
		e.fresh = true
		return true
	}
	e.letGo(f, d)
	return e.pause(f)
}

// mostElsewhere is how many backends are asked for one WebSocket: as many as a
// request remembers.
const mostElsewhere = 8

// elsewhere goes to another backend with a WebSocket that one cannot take: of a pool
// in which some are spoken to in HTTP/2, others may. It was not asked, so no attempt
// is counted; each is gone to once.
func (e *exchange) elsewhere(f *Failure) bool {
	if e.breq.Tried.Len() >= mostElsewhere {
		return false
	}
	next := e.reserve()
	if next == nil {
		return false
	}
	e.letGo(f, pool.Decision{Again: true, Redispatch: true})
	e.lease, e.reserved = next, true
	return true
}

// next asks the pool, and counts why not.
func (e *exchange) next(f *Failure) pool.Decision {
	pf := f.retry()
	pf.RetryAfter, pf.Backend, pf.By = e.retryAfter, e.backend, e.headBy
	cause := 0
	if f.Kind == pool.Success {
		pf.Status, cause = e.judged(), e.cause()
		if e.call.on && e.call.known {
			pf.GRPC, pf.Pushback = uint8(e.call.status), max(e.call.pushback, 0)
		}
	}
	d := e.rt.Pool.Next(e.now, &e.rt.Retry, &e.try, pf, rand.Uint64())
	e.final = e.final || d.Declined
	if d.Again || !f.Sent || e.rt.Retry.Attempts < 2 {
		return d
	}
	outcome := observe.RetryNotAllowed
	switch d.Why {
	case pool.BudgetEmpty:
		e.rec.Detail, outcome = "retry budget empty", observe.RetryNoBudget
	case pool.NotReplayable:
		e.rec.Detail, outcome = e.unrepeated(f), observe.RetryNotReplayable
	case pool.TooLate:
		e.rec.Detail, outcome = "too little time left for a retry", observe.RetryTooLate
	case pool.RetriedBelow:
		e.rec.Detail, outcome = "a weir behind has retried", observe.RetryRetriedBelow
	case pool.Attempts, pool.Within:
	default:
		return d
	}
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.Retry(f.Reason, cause, outcome)
	}
	return d
}

// unrepeated says in a few words why what was sent is not sent again, behind what
// the failure says itself.
func (e *exchange) unrepeated(f *Failure) string {
	why := "not repeated: its content was not kept, or not complete"
	switch {
	case e.repeatable():
	case e.call.on:
		why = "not repeated: the call may have been carried out"
	case e.rt.IdempotencyKey == nil:
		why = "not repeated: the method may not be sent twice without an Idempotency-Key"
	case e.rt.IdempotencyKey.Name == "":
		why = "not repeated: the method may not be sent twice"
	default:
		why = "not repeated: the method may not be sent twice without " + e.rt.IdempotencyKey.Name
	}
	if f.Detail == "" || f.Kind == pool.Success {
		return why
	}
	return f.Detail + "; " + why
}

// letGo ends the attempt for the sake of another one.
func (e *exchange) letGo(f *Failure, d pool.Decision) {
	e.countRetry(f) // the one that led to this attempt
	e.granted = nextAttempt{on: true, redispatch: d.Redispatch, after: observe.Try{Backend: e.rec.Backend, Reason: f.Reason}}
	if f.Kind == pool.Success {
		e.granted.after, e.granted.cause = e.tried(f.Reason), e.cause()
	}
	e.countConnection()
	e.breakOff(f)
	e.wait = d.After
}

// countAttempt counts a further attempt once it has a backend, and remembers the
// one that it follows.
func (e *exchange) countAttempt() {
	g := e.granted
	if !g.on {
		return
	}
	e.granted = nextAttempt{}
	e.rec.Tried = append(e.rec.Tried, g.after)
	if !g.redispatch {
		e.rec.Retries++
		e.final = true
		e.pending = retryCount{on: true, cause: g.after.Reason, status: g.cause}
		return
	}
	e.rec.Redispatches++
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.Redispatch(g.after.Reason)
	}
}

// countConnection counts the connection of an attempt that is not the last; the
// record tells of the last one's.
func (e *exchange) countConnection() {
	if e.rec.Linked && e.rt.Series != nil {
		e.rt.Series.For(e.rec.Backend).Connection(e.reused)
	}
	e.rec.Linked = false
}

// countRetry counts how the retry ended that led to this attempt. An answer that
// the route would have retried again is passed on, and is a failure all the same.
func (e *exchange) countRetry(f *Failure) {
	p := e.pending
	e.pending = retryCount{}
	if !p.on || e.rt.PoolSeries == nil {
		return
	}
	o := observe.RetrySucceeded
	if f.failed() || e.listed() {
		o = observe.RetryFailed
	}
	e.rt.PoolSeries.Retry(p.cause, p.status, o)
}

// pause waits out the backoff. It reports false when the client left.
func (e *exchange) pause(f *Failure) bool {
	d := e.wait
	e.wait = 0
	if d <= 0 {
		return true
	}
	e.watchClient()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		e.now = clock.Now()
		return true
	case <-e.w.aborted():
		*f = clientGone(PhaseQueue, nil)
		return false
	}
}

// watchClient starts watching for the client's leaving. While content is being
// read from the client, reading notices by itself.
func (e *exchange) watchClient() {
	if !e.body.running() {
		e.w.begin(e.d)
	}
}

// late reports that a deadline has passed.
func (e *exchange) late(by balance.Instant) bool { return by != 0 && e.now >= by }

// upstreamFailed says what an error of the backend's connection means: the
// client's leaving and its bad content end the attempt by cutting it.
func (e *exchange) upstreamFailed(p Phase, err error) Failure {
	e.now = clock.Now()
	if e.w.gone.Load() {
		return clientGone(p, err)
	}
	if f := e.body.clientFault(); f.failed() {
		return f
	}
	if e.body.mayKeep && (e.worthKeeping() || e.up.Unprocessed()) {
		e.haltPump() // only then is it known what can be sent again
	}
	if e.callOver() {
		return callCut(p, err)
	}
	if e.up.CutShort() {
		f := drainCut(p, err)
		f.Replayable = e.replayable()
		return f
	}
	started := e.up.ResponseStarted()
	refused := e.headSent && e.up.Unprocessed()
	if refused { // it counts as never sent
		e.headSent, e.rec.Sent = false, e.sentBefore
	}
	f := upstreamFailure(p, err, started)
	switch {
	case f.Reason == message.UpgradeRefused && !e.headSent: // it was not asked, and another connection is no other
	case refused && started: // this stream: another backend may take it
	case e.reused && !e.headSent:
		// The kept connection was dead, or held bytes that nobody had asked for:
		// nothing of this request concerns the backend.
		f.Reason, f.Kind, f.Stale = message.ResetBeforeResponse, pool.Reset, true
	case f.Kind == pool.Malformed && e.req.WebSocket && e.res.Status == 101:
		f.Reason, f.Detail = message.UpgradeRefused, "101 to another protocol"
	default:
		f.Stale = e.reused && !started && f.Kind == pool.Reset
	}
	f.Replayable = e.replayable()
	return f
}

// settle gives the lease back with what became of the attempt, and the
// connection if it is good for another one.
func (e *exchange) settle(f *Failure) {
	if e.lease.Backend() == nil {
		return
	}
	if !f.failed() {
		e.settlePump()
		e.readTrailers()
	}
	if e.up != nil && !f.failed() && !e.body.pumping && e.up.Reusable() {
		e.delist()
		e.w.target(nil)
		e.up.Release()
		e.target.Put(e.up, e.now)
		e.up = nil
	}
	e.breakOff(f)
}

// breakOff cuts the connection, if there is one, and gives the lease back.
func (e *exchange) breakOff(f *Failure) {
	e.dropUpstream()
	o := pool.Outcome{
		Now: e.now, Kind: f.Kind, Sent: f.Sent || !f.failed(), Stale: f.Stale, Reused: e.reused,
		FirstByte: e.rec.FirstByte, Total: e.now.Sub(e.began), Client: e.clientKey, Overtaken: f.overtaken,
	}
	if f.Kind == pool.Success {
		o.Status, o.Tunnel = e.judged(), e.rec.Tunnel
		e.signals.tell(&o)
		if f.missed {
			o.Status, o.RetryAfter = 500, false
		}
	}
	e.lease.Done(o)
}

// dropUpstream closes the backend's connection; under a pump that still uses it
// it is only cut, and closed when the pump is joined.
func (e *exchange) dropUpstream() {
	if e.up == nil {
		return
	}
	e.delist()
	e.w.target(nil)
	if e.body.over.Load() {
		e.body.join() // what it says must not be taken for a word of the next attempt's
	}
	if e.body.pumping {
		e.up.Cut()
		e.body.orphan = e.up
	} else {
		e.up.Close()
	}
	e.up = nil
}

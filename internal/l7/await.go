// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// await waits for the head of the final answer and judges it.
func (e *exchange) await() Failure {
	f := e.awaitHead()
	if e.hedge != nil && e.settleHedge(&f) {
		e.readSignals()
		return Failure{}
	}
	if f.failed() {
		return f
	}
	return e.judge()
}

// awaitHead waits for the head of the final answer and passes interim ones on.
func (e *exchange) awaitHead() Failure {
	for {
		e.setHeadFor()
		by, _ := e.answerBy()
		err := e.up.ReadHead(&e.res, e.head, e.slice(by))
		if err == nil {
			e.now = clock.Now()
			if e.res.Status >= 200 || e.res.Status == 101 {
				e.rec.FirstByte = e.now.Sub(e.sentAt)
				return Failure{}
			}
			if f := e.passInterim(); f.failed() {
				return f
			}
			continue
		}
		if !isTimeout(err) {
			return e.upstreamFailed(PhaseAwait, err)
		}
		e.now = clock.Now()
		e.setHeadFor()
		if due, reason := e.answerBy(); e.late(due) {
			return e.answerLate(reason, err)
		}
		if e.hedgeAt != 0 && e.now >= e.hedgeAt {
			e.startHedge()
		}
		if e.vanished() {
			f := e.upstreamFailed(PhaseAwait, errVanished)
			if f.Kind == pool.Reset {
				f.Reason, f.Detail = message.Unreachable, errVanished.Error()
			}
			return f
		}
		if e.body.waiting && e.now.Sub(e.sentAt) >= expectWait {
			e.proceed()
		}
		if !e.body.running() {
			e.watchClient()
		}
		e.enlist()
	}
}

// answerBy returns when the answer's head is due, 0 for never, and the reason
// that names the deadline.
func (e *exchange) answerBy() (balance.Instant, message.Reason) {
	if e.call.on {
		return e.callBy()
	}
	if e.body.running() {
		return e.headBy, message.RequestTimeout // response_header runs from the last request byte
	}
	by := after(e.headFor, e.rt.Timeouts.ResponseHeader)
	if by == 0 || e.headBy != 0 && e.headBy <= by {
		return e.headBy, message.RequestTimeout
	}
	return by, message.ResponseTimeout
}

// setHeadFor moves the start of response_header to the last request byte.
func (e *exchange) setHeadFor() {
	if t := balance.Instant(e.body.last.Load()); t > e.headFor {
		e.headFor = t
	}
}

// errVanished ends an attempt on a connection whose other end is gone without a
// word, as a host that lost its power is. Only the kernel would notice, and not
// before its own timeout.
var errVanished = errors.New("the backend's host acknowledges nothing")

// vanished looks, once a connection attempt would have been given up, whether
// the request has arrived at all: a kept connection must not cost more than a
// fresh one.
func (e *exchange) vanished() bool {
	d := e.rt.Timeouts.Unacked
	if d <= 0 || e.now.Sub(e.sentAt) < d || e.body.running() || e.up.ResponseStarted() {
		return false
	}
	return e.up.Unacked()
}

// pumpGlance is how often a wait for an answer looks at what became of the
// content that is still being sent.
const pumpGlance = 100 * time.Millisecond

// slice is the next deadline of waiting: the real one, or an earlier one to look
// around at.
func (e *exchange) slice(by balance.Instant) balance.Instant {
	switch {
	case e.body.running():
		return earliest(by, e.now.Add(pumpGlance))
	case e.body.waiting:
		by = earliest(by, e.sentAt.Add(expectWait))
	}
	by = earliest(by, e.hedgeAt)
	if d := e.rt.Timeouts.Unacked; d > 0 && e.now.Sub(e.sentAt) < d {
		by = earliest(by, e.sentAt.Add(d))
	}
	if !e.w.armed || e.unlisted() {
		return earliest(by, e.now.Add(watchAfter))
	}
	return by
}

func (e *exchange) answerLate(reason message.Reason, err error) Failure {
	if e.call.on && (reason == message.StreamIdleTimeout || e.late(e.endBy)) {
		return e.callLate(reason, err)
	}
	f := Failure{Fault: FaultBackend, Phase: PhaseAwait, Reason: reason, Kind: pool.ResponseTimeout, Err: err, Replayable: e.replayable()}
	if e.body.running() {
		// The request had not even been sent: the client's pace may be to blame.
		f.Kind = pool.Canceled
		f.Detail = "request not complete"
	}
	return f
}

// judge looks at a final head: a status that the route retries is a failed
// attempt, as long as another one is granted.
func (e *exchange) judge() Failure {
	r := &e.res
	if r.Status == 101 {
		return Failure{} // relay sees to it
	}
	e.readSignals()
	e.retryAfter = e.judged() == 503 && e.signals.asked
	if e.interim || !e.listed() {
		return Failure{}
	}
	f := Failure{Fault: FaultBackend, Phase: PhaseAwait, Kind: pool.Success, Sent: true, Replayable: e.resendable(), Code: r.Status, Detail: "the answer was to be retried"}
	f.noRetry = noRetry(&r.Fields) || e.call.pushed && e.call.pushback < 0
	d := e.next(&f)
	if !d.Again {
		return Failure{} // the answer passes
	}
	next := e.reserve()
	if next == nil {
		e.final = true // somebody to ask there is, yet not now
		return Failure{}
	}
	f.Reason = message.BadResponse
	if e.judged() == 503 {
		f.Reason = message.BackendOverloaded
	}
	e.letGo(&f, d)
	e.lease, e.reserved = next, true
	return f
}

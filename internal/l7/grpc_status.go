// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
)

// readStatus takes a call's status from an answer's fields: of the head, where an
// answer is nothing but trailers, or of the trailers.
func (e *exchange) readStatus(f *message.Fields) {
	c := &e.call
	for i := range f.Len() {
		id := f.ID(i)
		if id != message.GRPCStatusOf && id != message.GRPCPushback || f.Removed(i) {
			continue
		}
		if id == message.GRPCPushback {
			c.pushed, c.pushback = true, pushback(f.Value(i))
			continue
		}
		if !c.known {
			c.known, c.status = true, message.ParseGRPCStatus(f.Value(i))
		}
	}
}

// forgetStatus is for the next attempt.
func (c *call) forgetStatus() {
	c.known, c.status, c.pushed, c.pushback = false, message.GRPCOK, false, 0
}

// pushback reads grpc-retry-pushback-ms (gRFC A6): how long to wait before a retry.
// A negative number, and what is none, say that there is to be none.
func pushback(v []byte) time.Duration {
	const never = -1
	if len(v) == 0 || len(v) > 9 {
		return never
	}
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return never
		}
		n = n*10 + int(c-'0')
	}
	return min(time.Duration(n)*time.Millisecond, maxRetryDelay)
}

// standing is the HTTP status that a call's status stands for where the answers of
// backends are judged; 0: the answer's own.
//
//	UNAVAILABLE                          503  in a row they eject, but not with a pushback
//	INTERNAL, UNKNOWN, DATA_LOSS,
//	DEADLINE_EXCEEDED                    500  eject who has far more of them than its peers
//	RESOURCE_EXHAUSTED                   429  overload: a share, never an ejection
//	all others                           200  the application's answer to this call
//
// Envoy's outlier detection counts the same as 5xx, and UNIMPLEMENTED (501): a
// client can ask every backend for a method that is not there, so it is left out.
// DEADLINE_EXCEEDED is a gateway failure (504) there, which counts in a row; but the
// deadline is the client's, and one that sets it too short would empty the pool.
func standing(s message.GRPCStatus) int {
	switch s {
	case message.GRPCUnavailable:
		return 503
	case message.GRPCInternal, message.GRPCUnknown, message.GRPCDataLoss, message.GRPCDeadlineExceeded:
		return 500
	case message.GRPCResourceExhausted:
		return 429
	default:
		return 200
	}
}

// judged is the status by which the attempt's answer is judged.
func (e *exchange) judged() int {
	c := &e.call
	switch {
	case !c.on || e.res.Status != 200:
		return e.res.Status
	case c.known:
		return standing(c.status)
	default:
		return 200
	}
}

// listed reports that the answer is one that the route retries.
func (e *exchange) listed() bool {
	if e.rt.Retry.OnStatus.Has(e.res.Status) {
		return true
	}
	return e.call.on && e.call.known && e.rt.Retry.OnGRPC.Has(uint8(e.call.status))
}

// readCall looks at a call's head, and takes what it says of overload: a pushback
// is what Retry-After is to HTTP.
func (e *exchange) readCall() {
	e.readStatus(&e.res.Fields)
	e.heedCall()
}

func (e *exchange) heedCall() {
	c, s := &e.call, &e.signals
	if !c.known {
		return
	}
	s.exhausted = s.exhausted || c.status == message.GRPCResourceExhausted && e.rt.GRPCExhausted
	if c.pushed && c.pushback >= 0 && (c.status == message.GRPCUnavailable || c.status == message.GRPCResourceExhausted) {
		s.asked, s.after = true, c.pushback
	}
}

// ended is the call's status for the record.
func (e *exchange) ended(f *Failure) observe.CallStatus {
	c := &e.call
	switch {
	case c.known && !(f.failed() && f.Reason == message.ClientAbort):
		return observe.CallEnded(c.status)
	case !f.failed() && e.rec.Status != 200:
		return observe.CallEnded(message.GRPCFromHTTP(e.rec.Status)) // as the client has it
	default:
		return observe.CallWithout
	}
}

// cause is the status for which an answer is to be retried, as PoolSeries.Retry
// has it.
func (e *exchange) cause() int {
	if e.call.on && e.call.known && e.res.Status == 200 {
		return observe.GRPCCause + int(e.call.status)
	}
	return e.res.Status
}

// tried describes the attempt's answer, which is to be retried.
func (e *exchange) tried(reason message.Reason) observe.Try {
	t := observe.Try{Backend: e.rec.Backend, Reason: reason, Status: e.res.Status}
	if e.cause() >= observe.GRPCCause {
		t.Status, t.GRPC = 0, observe.CallEnded(e.call.status)
	}
	return t
}

// resendable reports that the answer in hand may be followed by another attempt.
// That of a call may be for its status, if the route lists that: whoever does so
// vouches for the calls, as with the retry policy of a gRPC client.
func (e *exchange) resendable() bool {
	if e.call.on && e.call.known && e.res.Status == 200 {
		e.settlePump() // the backend may have answered before its last write returned
		return !e.body.running() && !e.body.lost
	}
	return e.replayable()
}

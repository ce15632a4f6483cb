// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strconv"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// call is what an exchange knows of its being a gRPC call. The zero value is none,
// and costs an exchange nothing.
//
// Files: grpc.go, what is a call and when it must have ended; grpc_status.go, what
// its status says; grpc_answer.go, weir's own answers; grpc_calls.go, ending calls
// that are under way.
type call struct {
	on    bool
	asked time.Duration   // what grpc-timeout asked for; 0: nothing
	due   balance.Instant // when that is over; 0: never
	timed bool            // grpc-timeout is in the request,
	line  int             // at this line

	known    bool // the answer's status has been read,
	status   message.GRPCStatus
	pushed   bool          // and a pushback,
	pushback time.Duration // of so long; negative: do not retry

	listed   bool // it is known to calls
	trailers message.Fields
}

// reset forgets the call and keeps what it grew.
func (c *call) reset() {
	c.trailers.Reset(nil)
	*c = call{trailers: c.trailers}
}

// isGRPC reports that a request is a gRPC call: a POST whose content is
// application/grpc, with a subtype behind a plus sign or parameters or not
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). gRPC-Web, whose
// content begins likewise, is a protocol of its own over any HTTP; to weir it is
// content as any other.
func isGRPC(r *message.Request) bool {
	if string(r.Method) != "POST" {
		return false
	}
	v, ok := r.Fields.Get(message.ContentType)
	return ok && grpcContent(v)
}

func grpcContent(v []byte) bool {
	const kind = "application/grpc"
	if len(v) < len(kind) || !message.EqualFold(v[:len(kind)], kind) {
		return false
	}
	if len(v) == len(kind) {
		return true
	}
	switch v[len(kind)] {
	case '+', ';', ' ', '\t':
		return true
	}
	return false
}

// maxGRPCTimeout bounds what a call can ask for; more is as good as no deadline.
const maxGRPCTimeout = 100 * 365 * 24 * time.Hour

// parseGRPCTimeout reads a value of grpc-timeout: one to eight digits and a unit.
//
// Example: 100m is a tenth of a second, 1S a second; 1s, 1.5S, -1S, S and
// 123456789m are none.
func parseGRPCTimeout(v []byte) (time.Duration, bool) {
	if len(v) < 2 || len(v) > 9 {
		return 0, false
	}
	n := int64(0)
	for _, c := range v[:len(v)-1] {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	var unit time.Duration
	switch v[len(v)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	if n > int64(maxGRPCTimeout/unit) {
		return maxGRPCTimeout, true
	}
	return time.Duration(n) * unit, true
}

// grpcUnits are the units of grpc-timeout, the finest first.
var grpcUnits = [...]struct {
	unit time.Duration
	name byte
}{{time.Nanosecond, 'n'}, {time.Microsecond, 'u'}, {time.Millisecond, 'm'}, {time.Second, 'S'}, {time.Minute, 'M'}, {time.Hour, 'H'}}

// appendGRPCTimeout writes a time in the finest unit that eight digits are enough
// for, rounded up: who is asked had better not give up before who asks.
//
// Example: 99.9999991 s are 99999999.1 us, one digit too many when rounded up, and
// become 100000m.
func appendGRPCTimeout(b []byte, d time.Duration) []byte {
	const most = 99999999
	d = max(d, time.Nanosecond)
	for _, u := range grpcUnits {
		n := int64(d / u.unit)
		if d%u.unit != 0 {
			n++
		}
		if n <= most {
			return append(strconv.AppendInt(b, n, 10), u.name)
		}
	}
	return append(strconv.AppendInt(b, most, 10), 'H')
}

// errGRPCTimeout refuses a deadline that cannot be read: who sets one counts on
// it.
func errGRPCTimeout(detail string) Failure {
	return Failure{Fault: FaultClient, Phase: PhaseAdmit, Reason: message.BadRequest, Detail: detail}
}

// readDeadline reads grpc-timeout.
func (e *exchange) readDeadline() Failure {
	f, c := &e.req.Fields, &e.call
	for i := range f.Len() {
		if f.ID(i) != message.GRPCTimeout || f.Removed(i) {
			continue
		}
		if c.timed {
			return errGRPCTimeout("repeated grpc-timeout")
		}
		d, ok := parseGRPCTimeout(f.Value(i))
		if !ok {
			return errGRPCTimeout("grpc-timeout that is none")
		}
		c.timed, c.line = true, i
		if d < maxGRPCTimeout {
			c.asked, c.due = d, e.start.Add(d)
		}
	}
	return Failure{}
}

// beginCall sets a call's times. Its own deadline holds for all of it, as the
// route's total does. The route's request and the pool's response_header bound the
// wait for the head of an answer and are not for calls (S7): streams may have a
// long while nothing to say, and a server sends the head with its first message.
func (e *exchange) beginCall() Failure {
	if f := e.readDeadline(); f.failed() {
		return f
	}
	t := &e.rt.Timeouts
	e.endBy = earliest(e.call.due, after(e.start, t.Total))
	e.headBy = e.endBy
	if p, ok := e.d.(pacer); ok {
		p.Unpace()
	}
	return Failure{}
}

// pacer is a Downstream whose client need not send content at a least rate, once
// told so.
type pacer interface{ Unpace() }

// passDeadline tells the backend how long the call has left. With nothing left no
// attempt is made.
func (e *exchange) passDeadline() Failure {
	e.call.forgetStatus()
	if e.endBy == 0 {
		return Failure{}
	}
	if e.late(e.endBy) {
		return e.outOfTime(PhaseQueue, nil)
	}
	f, c := &e.req.Fields, &e.call
	if c.timed {
		f.Remove(c.line)
	}
	c.timed, c.line = true, f.Len()
	f.AddFunc(message.GRPCTimeout, "grpc-timeout", func(b []byte) []byte { return appendGRPCTimeout(b, e.endBy.Sub(e.now)) })
	return Failure{}
}

// outOfTime is the end of a call at endBy. A backend that had the whole request by
// then is charged as for an answer of 500: a client may set any deadline, so that
// one alone says nothing, but a backend that misses far more of them than its
// peers is ill.
func (e *exchange) outOfTime(p Phase, err error) Failure {
	f := Failure{Fault: FaultBackend, Phase: p, Reason: message.DeadlineExceeded, Kind: pool.Canceled, Err: err}
	if e.call.due == 0 || e.endBy < e.call.due {
		f.Reason, f.Detail = message.RequestTimeout, "total"
	}
	switch {
	case p < PhaseAwait:
		f.Fault = FaultWeir
	case !e.body.running():
		f.Kind, f.missed = pool.Success, true
	}
	return f
}

// callBy is answerBy for calls: what bounds the wait is when it must have ended,
// and the longest time in which nothing moves.
func (e *exchange) callBy() (balance.Instant, message.Reason) {
	idle := after(e.headFor, e.rt.Timeouts.StreamIdle)
	if idle == 0 || e.headBy != 0 && e.headBy <= idle {
		return e.headBy, message.RequestTimeout
	}
	return idle, message.StreamIdleTimeout
}

// callLate is the end of a call that had no answer when callBy had passed.
func (e *exchange) callLate(reason message.Reason, err error) Failure {
	if reason == message.RequestTimeout && e.late(e.endBy) {
		return e.outOfTime(PhaseAwait, err)
	}
	f := Failure{Fault: FaultBackend, Phase: PhaseAwait, Reason: reason, Kind: pool.Canceled, Err: err}
	if !e.body.running() {
		f.Kind, f.missed = pool.Success, true
	}
	return f
}

// grace is how far apart the ends of a deadline may be: it begins to run when the
// client sends the call, and ends wherever somebody's timer fires first.
//
// Example: 10 ms of 1 s or less, 50 ms of 5 s, and 100 ms at most.
func (c *call) grace() time.Duration {
	return min(max(c.asked/100, 10*time.Millisecond), 100*time.Millisecond)
}

// met reports that a call that has ended did so because of its deadline, whoever's
// timer fired.
func (c *call) met(now balance.Instant) bool {
	return c.due != 0 && now.Add(c.grace()) >= c.due
}

// atDeadline turns what ended a call about when its deadline passed into just that:
// clients and servers cancel at theirs, and look like the client's leaving or the
// backend's reset.
func (e *exchange) atDeadline(f *Failure) {
	if !e.call.on || !f.failed() || !e.call.met(clock.Now()) {
		return
	}
	switch f.Reason {
	case message.RequestTimeout:
		f.Reason = message.DeadlineExceeded
	case message.ClientAbort, message.ResetBeforeResponse, message.ResetMidResponse:
		if f.Phase < PhaseQueue {
			return
		}
		sent := f.Sent
		*f = e.outOfTime(f.Phase, f.Err)
		f.Reason, f.Detail, f.Sent = message.DeadlineExceeded, "", sent
	}
}

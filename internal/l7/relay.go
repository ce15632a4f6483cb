// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"strconv"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// passInterim deals with a 1xx answer: 100 asks for the content, others go to
// the client at once. Either restarts response_header.
func (e *exchange) passInterim() Failure {
	e.headFor = e.now
	if e.res.Status == 100 {
		if e.body.waiting {
			e.proceed()
		}
		return Failure{}
	}
	hopResponse(&e.res)
	e.interim = true // bytes of an answer have left: no further attempt
	if err := e.d.WriteInterim(&e.res); err != nil {
		return writeFailure(PhaseAwait, err)
	}
	return Failure{}
}

// relay passes the final answer on: the head with what is there of the content
// in one write, then every piece as it comes.
func (e *exchange) relay() Failure {
	if e.res.Status == 101 {
		return e.switchProtocols()
	}
	if e.res.Body == message.Sized && e.res.Major >= 2 {
		e.settleTrailers()
	}
	e.prepareAnswer()
	if !e.body.taken() {
		// An answer before the content was complete. The backend may go on reading
		// or not; the client learns that this connection ends.
		e.d.MarkClose()
	}
	up := e.up
	var piece []byte
	end := e.head || e.res.Body == message.NoBody
	trailed := e.res.Trailers()
	if !end && up.Buffered() {
		p, err := up.ReadBody()
		switch {
		case isEnd(err):
			end = !trailed || up.Trailers().Len() == 0
		case err != nil:
			// Nothing has left yet, and no second attempt may be made: an honest 502
			// is better than a torn answer.
			return e.relayFailed(err)
		default:
			piece = p
			end = up.BodyDone() && (!trailed || up.Trailers().Len() == 0)
		}
	}
	e.answered = true
	e.rec.Status = e.res.Status
	if err := e.d.WriteHead(&e.res, piece, end); err != nil {
		return writeFailure(PhaseRelay, err)
	}
	e.rec.BytesOut = int64(len(piece))
	if !end {
		e.streams = e.endless()
		if f := e.relayBody(); f.failed() {
			return f
		}
	}
	if e.retryAfter {
		const asked = "backend answered 503 with Retry-After"
		if e.rec.Detail == "" {
			e.rec.Detail = asked
		} else { // why it was not asked for elsewhere
			e.rec.Detail = asked + "; " + e.rec.Detail
		}
	}
	return Failure{}
}

// settleTrailers decides what becomes of the length of an answer that has one and,
// since it came over HTTP/2, perhaps trailers. HTTP/2 has a place for both. Over
// HTTP/1.1 only content without a length has trailers, and ones that are announced
// count for more. A call's length is no loss, and in its way when weir has to end
// the call.
func (e *exchange) settleTrailers() {
	r := &e.res
	switch {
	case e.call.on:
		r.Body = message.Streamed
	case e.req.Major >= 2:
		r.Trailing = true
	case r.Fields.Has(message.Trailer):
		r.Body = message.Streamed
		r.Fields.RemoveID(message.ContentLength)
	}
}

// prepareAnswer turns the backend's fields into the client's.
func (e *exchange) prepareAnswer() {
	r := &e.res
	f := &r.Fields
	dated, final := hopResponse(r)
	e.final = e.final || final
	if !dated {
		// RFC 9110 section 6.6.1: whoever forwards a message without Date adds it.
		f.AddFunc(message.Date, "Date", appendDate)
	}
	f.AddBytes(message.XRequestID, "X-Request-Id", e.requestID)
	e.passMark(f, final)
	if e.h.HSTS != "" {
		f.RemoveName("Strict-Transport-Security") // of two, browsers take the first
		f.Add(message.Other, "Strict-Transport-Security", e.h.HSTS)
	}
	if s := e.rt.Sticky; s != nil {
		e.settleCookie(s)
	}
	e.rt.ResponseHeaders.apply(f)
	r.Close = false // the backend's connection is not the client's
	if e.h.DebugHeaders {
		f.Add(message.Other, "X-Served-By", e.backend.ID())
		f.AddFunc(message.Other, "Server-Timing", e.appendTiming)
	}
}

// appendTiming writes this hop's entry of Server-Timing.
func (e *exchange) appendTiming(b []byte) []byte {
	b = append(b, `weir;dur=`...)
	b = appendMillis(b, e.now.Sub(e.start))
	b = append(b, `;desc="queue=`...)
	b = appendMillis(b, e.rec.Queue)
	b = append(b, ` connect=`...)
	b = appendMillis(b, e.rec.Connect)
	b = append(b, ` backend=`...)
	b = appendMillis(b, e.rec.FirstByte)
	return append(b, '"')
}

func appendMillis(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d)/float64(time.Millisecond), 'f', 2, 64)
}

// relayBody passes content on, piece by piece, until its end.
func (e *exchange) relayBody() Failure {
	up, d := e.up, e.d
	for {
		if f, moved := e.spliceAnswer(); f.failed() {
			return f
		} else if moved && up.BodyDone() {
			return Failure{}
		}
		p, f := e.nextPiece()
		if f.failed() {
			return f
		}
		end := up.BodyDone()
		trailers := end && e.res.Trailers() && up.Trailers().Len() > 0
		var err error
		if len(p) > 0 || !trailers {
			err = d.WriteBody(p, end && !trailers)
		}
		if err == nil && trailers {
			err = d.WriteTrailers(up.Trailers())
		}
		if err != nil {
			return writeFailure(PhaseRelay, err)
		}
		e.rec.BytesOut += int64(len(p))
		if end {
			return Failure{}
		}
	}
}

// nextPiece waits for the next piece of content; nil at its end.
func (e *exchange) nextPiece() ([]byte, Failure) {
	up := e.up
	for first := true; ; first = false {
		if !up.Buffered() {
			if first {
				e.now = clock.Now()
				e.headFor = e.now // stream_idle runs from here
				e.enroll()
			}
			e.armRead()
		}
		p, err := up.ReadBody()
		switch {
		case err == nil && e.callOver():
			return nil, callCut(PhaseRelay, nil)
		case err == nil:
			return p, Failure{}
		case isEnd(err):
			return nil, Failure{}
		case !isTimeout(err):
			return nil, e.relayFailed(err)
		}
		e.now = clock.Now()
		e.setHeadFor() // content that still goes out counts as well
		switch {
		case e.late(e.endBy) && e.call.on:
			return nil, e.outOfTime(PhaseRelay, err)
		case e.late(e.endBy):
			return nil, Failure{Fault: FaultBackend, Phase: PhaseRelay, Reason: message.RequestTimeout, Kind: pool.Canceled, Detail: "total", Err: err}
		case e.late(after(e.headFor, e.rt.Timeouts.StreamIdle)) && e.call.on: // a subscription to what is rare, perhaps
			return nil, Failure{Fault: FaultBackend, Phase: PhaseRelay, Reason: message.StreamIdleTimeout, Kind: pool.Canceled, Err: err}
		case e.late(after(e.headFor, e.rt.Timeouts.StreamIdle)):
			return nil, Failure{Fault: FaultBackend, Phase: PhaseRelay, Reason: message.StreamIdleTimeout, Kind: pool.ResponseTimeout, Err: err}
		}
		e.watchClient()
		e.enlist()
		e.enroll()
	}
}

// armRead bounds the next wait for content: by stream_idle and total, and, as
// long as nobody watches the client, by watchAfter.
func (e *exchange) armRead() {
	by := earliest(after(e.headFor, e.rt.Timeouts.StreamIdle), e.endBy)
	switch {
	case e.body.running(): // look again whether the client is to be watched
		by = earliest(by, e.now.Add(time.Second))
	case !e.w.armed || e.unlisted() || e.unenrolled():
		by = earliest(by, e.now.Add(watchAfter))
	}
	e.up.SetReadDeadline(by)
}

// relayFailed says what an error in the midst of an answer means.
func (e *exchange) relayFailed(err error) Failure {
	e.now = clock.Now()
	if e.w.gone.Load() {
		return clientGone(PhaseRelay, err)
	}
	if f := e.body.clientFault(); f.failed() {
		return f
	}
	if why := e.stream.cause(); why != observe.TunnelByPeer {
		return e.streamEnded(why, err)
	}
	if e.callOver() {
		return callCut(PhaseRelay, err)
	}
	if e.up.CutShort() {
		return drainCut(PhaseRelay, err)
	}
	return upstreamFailure(PhaseRelay, err, true)
}

// spliceAnswer moves a large rest of the content inside the kernel. moved is
// false when that is not possible.
func (e *exchange) spliceAnswer() (f Failure, moved bool) {
	n, ok := e.up.Spliceable()
	if !ok || n < spliceMin { // content that ends with the connection (-1) is copied
		return Failure{}, false
	}
	room, ok := e.d.AnswerSpace()
	if !ok || room != n {
		return Failure{}, false
	}
	src, dst := e.up.Conn(), e.d.Conn()
	arm := func() {
		e.now = clock.Now()
		e.headFor = e.now
		src.SetReadDeadline(earliest(after(e.now, e.rt.Timeouts.StreamIdle), e.endBy))
	}
	e.watchClient()
	arm()
	e.d.AnswerMoved(0)
	_, err := netconn.Splice(dst, src, n, func(k int64) error {
		e.rec.BytesOut += k
		e.up.Spliced(k)
		e.d.AnswerMoved(k)
		arm()
		if e.late(e.endBy) {
			return errTotal
		}
		return nil
	})
	var c *netconn.CopyError
	switch {
	case err == nil:
		return Failure{}, true
	case errors.Is(err, netconn.ErrNoSplice):
		return Failure{}, false
	case errors.Is(err, errTotal):
		return Failure{Fault: FaultBackend, Phase: PhaseRelay, Reason: message.RequestTimeout, Kind: pool.Canceled, Detail: "total"}, true
	case errors.As(err, &c) && c.Side == netconn.Destination:
		return writeFailure(PhaseRelay, c.Err), true
	}
	e.now = clock.Now()
	if isTimeout(err) && e.late(e.endBy) {
		return Failure{Fault: FaultBackend, Phase: PhaseRelay, Reason: message.RequestTimeout, Kind: pool.Canceled, Detail: "total", Err: err}, true
	}
	return e.relayFailed(err), true
}

var errTotal = errors.New("total time is up")

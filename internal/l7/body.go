// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// expectWait is how long weir waits for a backend's word on Expect:
// 100-continue. Until then the content is not read, so that a backend that
// refuses the request costs the client nothing. RFC 9110 section 10.1.1 lets
// the sender go ahead after a while and forbids it to wait for ever, because
// servers that do not know the expectation wait for the content in turn; a
// second is what curl waits.
const expectWait = time.Second

// spliceMin is the content above which moving it inside the kernel pays for the
// extra system calls.
const spliceMin = 64 << 10

// body is the request's content on its way.
//
// What fits the codec's buffer is one borrowed piece: it stays valid until the
// next ReadBody, so it can be sent to a second backend without a copy. More is
// pumped by a goroutine of its own, and kept for a replay only if a replay may
// be wanted and as long as it is small.
type body struct {
	// Owned by the exchange's goroutine.
	first   []byte        // the piece that ReadBody returned, valid until the next call
	whole   bool          // first is all there is
	pumped  bool          // a pump was started: first is no longer valid
	mayKeep bool          // keeping was tried
	waiting bool          // Expect: 100-continue, and the backend has not asked yet
	pumping bool          // the pump was started and not joined
	orphan  Upstream      // the connection that a running pump was left with
	done    chan struct{} // holds one element when the pump has ended

	// Owned by the pump while pumping, by the exchange otherwise.
	keep     []byte  // the content so far, while keeping
	keeping  bool    // everything read is in keep
	kept     bool    // keep holds all content
	trailers bool    // all content was read, and trailers came with it
	lost     bool    // content was read that can not be sent again
	read     int64   // content read
	charged  int64   // of keep, to Exchanger.budget
	failure  Failure // how the pump ended

	// Atomic.
	over    atomic.Bool  // the pump has ended, well or badly
	drained atomic.Bool  // all content has been read from the client
	quit    atomic.Bool  // the pump shall end
	last    atomic.Int64 // balance.Instant when the pump last sent something
}

func (b *body) reset() {
	b.first, b.whole, b.pumped, b.mayKeep, b.waiting, b.trailers = nil, false, false, false, false, false
	b.pumping, b.orphan = false, nil
	b.keep, b.keeping, b.kept, b.lost, b.read, b.charged, b.failure = b.keep[:0], false, false, false, 0, 0, Failure{}
	b.over.Store(false)
	b.drained.Store(false)
	b.quit.Store(false)
	b.last.Store(0)
	if cap(b.keep) > keepRetained {
		b.keep = nil
	}
}

// keepRetained is the largest replay buffer that a pooled exchange holds on to.
const keepRetained = 64 << 10

// firstPiece is how long content of unknown length is awaited before the backend is
// asked without any. Nearly all requests bring some along; a stream whose client
// listens first must not wait for ever, and one whose client is slow is not to
// take a backend's slot earlier than it has to.
const firstPiece = 5 * time.Millisecond

// awaiter is a Downstream that knows whether ReadBody would wait.
type awaiter interface {
	// AwaitBody waits until ReadBody would not, no longer than d, and reports that.
	AwaitBody(d time.Duration) bool
}

// running reports that content is still being sent.
func (b *body) running() bool { return b.pumping && !b.over.Load() }

// openBody reads the first piece of the content, unless the backend is to be
// asked first. It waits for the client before a backend's slot is taken.
func (e *exchange) openBody() Failure {
	b := &e.body
	if e.d.BodyDone() {
		b.whole = true
		b.trailers = e.req.Trailers() && e.d.Trailers().Len() > 0
		return Failure{}
	}
	if e.req.ExpectContinue {
		b.waiting = true
		return Failure{}
	}
	if a, ok := e.d.(awaiter); ok && e.req.Body == message.Streamed && !a.AwaitBody(firstPiece) {
		e.now = clock.Now()
		return Failure{} // it may be the backend that speaks first
	}
	p, err := e.d.ReadBody()
	e.now = clock.Now() // it may have taken a while, and kept connections age meanwhile
	if err != nil && !isEnd(err) {
		return readFailure(err)
	}
	if isEnd(err) {
		p = nil
	}
	b.first, b.read = p, int64(len(p))
	if e.tooLarge() {
		return Failure{Fault: FaultClient, Phase: PhaseBody, Reason: message.BodyTooLarge, Kind: pool.ClientFault}
	}
	b.whole = err != nil || e.d.BodyDone()
	if !b.whole {
		return Failure{}
	}
	b.trailers = e.req.Trailers() && e.d.Trailers().Len() > 0
	return Failure{}
}

func (e *exchange) tooLarge() bool {
	return e.h.MaxBody > 0 && e.body.read > e.h.MaxBody
}

// worthKeeping reports that a copy of the content may be of use: the request
// may be sent twice, a second attempt is allowed, and the content is not known
// to be too large.
func (e *exchange) worthKeeping() bool {
	if e.rt.Retry.Attempts < 2 || !e.repeatable() && !(e.call.on && e.rt.Retry.OnGRPC != 0) {
		return false
	}
	return e.req.Body != message.Sized || e.req.ContentLength <= e.rt.RetryBody
}

// mayBeRefused reports that the content is worth keeping whatever the method,
// because the backend may say that it has not looked at the request.
func (e *exchange) mayBeRefused() bool {
	return e.up.Refusable() && e.rt.Retry.Attempts > 1 && (e.req.Body != message.Sized || e.req.ContentLength <= e.rt.RetryBody)
}

// repeatable reports that the method allows the request to be sent again after
// bytes of it were sent (RFC 9110 section 9.2.2, or an idempotency key). An
// upgrade is never repeated.
func (e *exchange) repeatable() bool {
	if e.req.WebSocket {
		return false
	}
	switch string(e.req.Method) {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return e.keyed
}

// replayable reports that the request may and can be sent again after bytes of
// it were sent. While content is still being sent it is not.
func (e *exchange) replayable() bool {
	return e.repeatable() && !e.body.running() && !e.body.lost
}

// unsafe reports that the request could not be sent again once its first bytes
// have left, so that it must not meet a connection which the backend may be
// closing (S8).
func (e *exchange) unsafe() bool {
	b := &e.body
	switch {
	case !e.repeatable():
		return true
	case b.pumped:
		return b.lost
	default:
		return !b.whole && !b.waiting && !e.worthKeeping()
	}
}

// opening is the content that goes out with the head, and whether it is all.
func (b *body) opening() (piece []byte, end bool) {
	switch {
	case b.pumped:
		return b.keep, b.kept
	case b.waiting:
		return nil, false
	default:
		return b.first, b.whole
	}
}

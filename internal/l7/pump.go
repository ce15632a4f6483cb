// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/pool"
)

// proceed starts sending the content that was held back for the backend's word.
func (e *exchange) proceed() {
	e.body.waiting = false
	e.w.end() // reading notices by itself when the client leaves
	e.startPump()
}

// startPump starts the goroutine that sends what is left of the content.
func (e *exchange) startPump() {
	b := &e.body
	if b.done == nil {
		b.done = make(chan struct{}, 1)
	}
	if !b.pumped {
		b.pumped = true
		b.mayKeep = e.worthKeeping() || e.mayBeRefused()
		b.keeping = b.mayKeep
		b.retain(b.first, e.mayRetain(len(b.first)))
		b.first = nil
	}
	e.w.end()
	b.over.Store(false)
	b.quit.Store(false)
	b.failure = Failure{}
	b.pumping = true
	e.x.mayGrow(pumpGrowth) // the head has left: it is others who are refused
	go e.pump(e.up)
}

// mayRetain is how much content may be kept when n bytes more are: none that is not
// kept already where memory is short.
func (e *exchange) mayRetain(n int) int64 {
	b := &e.body
	if !b.keeping {
		return 0
	}
	if n > 0 && (int64(len(b.keep)+n) > e.rt.RetryBody || e.x.isShort() || !e.x.budget.Take(int64(n))) {
		// What was kept is of no use without this piece.
		e.x.budget.Give(b.charged)
		b.charged, b.keep, b.keeping = 0, nil, false
		return 0
	}
	b.charged += int64(n)
	return e.rt.RetryBody
}

// retain keeps a copy of a piece while that is of use.
func (b *body) retain(p []byte, limit int64) {
	if b.keeping && int64(len(b.keep)+len(p)) <= limit {
		b.keep = append(b.keep, p...)
		return
	}
	b.keeping = false
	b.lost = true
}

// pump is the second goroutine of an exchange: it sends the client's content to
// the backend while the first one awaits and passes on the answer.
func (e *exchange) pump(up Upstream) {
	b := &e.body
	f := Failure{Fault: FaultWeir, Phase: PhaseBody, Reason: message.BadRequest, Code: 500, Kind: pool.LocalFault, Detail: "internal fault"}
	defer func() {
		if v := recover(); v != nil {
			e.x.bug("l7_pump", v)
		}
		b.failure = f
		b.over.Store(true)
		if f.Fault == FaultClient || f.Fault == FaultWeir {
			up.Cut() // wakes the first goroutine
		}
		b.done <- struct{}{}
	}()
	f = e.pumpBody(up)
}

func (e *exchange) pumpBody(up Upstream) Failure {
	b := &e.body
	for {
		if f, moved := e.spliceBody(up); f.failed() || moved && e.d.BodyDone() {
			return f
		}
		p, err := e.d.ReadBody()
		end := isEnd(err) || err == nil && e.d.BodyDone()
		if err != nil && !end {
			if b.quit.Load() {
				return Failure{} // the answer is complete: nobody waits for the rest
			}
			return readFailure(err)
		}
		if isEnd(err) {
			p = nil
		}
		b.read += int64(len(p))
		if e.tooLarge() {
			return Failure{Fault: FaultClient, Phase: PhaseBody, Reason: message.BodyTooLarge, Kind: pool.ClientFault}
		}
		b.retain(p, e.mayRetain(len(p)))
		if end {
			b.drained.Store(true)
			b.kept = b.keeping
			b.trailers = e.req.Trailers() && e.d.Trailers().Len() > 0
		}
		if b.quit.Load() {
			return Failure{}
		}
		e.armWrite(up)
		switch {
		case end && b.trailers:
			if err = up.WriteBody(p, false); err == nil {
				err = up.WriteTrailers(e.d.Trailers())
			}
		default:
			err = up.WriteBody(p, end)
		}
		if err != nil {
			return upstreamFailure(PhaseSend, err, false)
		}
		b.last.Store(int64(clock.Now()))
		if end {
			return Failure{}
		}
	}
}

func (e *exchange) armWrite(up Upstream) {
	if d := e.rt.Timeouts.StreamIdle; d > 0 {
		up.SetWriteDeadline(clock.Now().Add(d))
	}
}

// spliceBody moves a large rest of the content inside the kernel. moved is
// false when that is not possible.
func (e *exchange) spliceBody(up Upstream) (f Failure, moved bool) {
	b := &e.body
	n, ok := e.d.Spliceable()
	if !ok || n < spliceMin || b.keeping || e.h.MaxBody > 0 && b.read+n > e.h.MaxBody {
		return Failure{}, false
	}
	room, ok := up.BodySpace()
	if !ok || room != n {
		return Failure{}, false
	}
	b.lost = true
	src, dst := e.d.Conn(), up.Conn()
	e.armWrite(up)
	_, err := netconn.Splice(dst, src, n, func(k int64) error {
		b.read += k
		e.d.Spliced(k)
		up.BodyMoved(k)
		now := clock.Now()
		b.last.Store(int64(now))
		e.armWrite(up)
		if b.quit.Load() {
			return errQuit
		}
		return nil
	})
	switch {
	case err == nil:
		b.drained.Store(true)
		return Failure{}, true
	case errors.Is(err, netconn.ErrNoSplice):
		return Failure{}, false
	case errors.Is(err, errQuit):
		return Failure{}, true
	}
	var c *netconn.CopyError
	if errors.As(err, &c) && c.Side == netconn.Destination {
		return upstreamFailure(PhaseSend, c.Err, false), true
	}
	if b.quit.Load() {
		return Failure{}, true // reading was interrupted, as ReadBody will say
	}
	return readFailure(err), true
}

var errQuit = errors.New("exchange over")

// clientFault returns the pump's failure when the client is to blame for it.
func (b *body) clientFault() Failure {
	if b.pumping && b.over.Load() && (b.failure.Fault == FaultClient || b.failure.Fault == FaultWeir) {
		return b.failure
	}
	return Failure{}
}

// haltPump ends the pump of a failed attempt and keeps what it read. It does not
// wait for the client, who may have stopped in the midst.
func (e *exchange) haltPump() {
	b := &e.body
	if !b.pumping {
		return
	}
	b.quit.Store(true)
	if e.up != nil {
		e.up.Cut()
	}
	e.d.PauseRead()
	b.join()
	e.d.ResumeRead()
}

// stopPump ends the pump for good at the end of an exchange.
func (e *exchange) stopPump() {
	b := &e.body
	if !b.pumping {
		return
	}
	if !b.over.Load() {
		b.quit.Store(true)
		e.d.MarkClose()
		e.d.CancelRead()
		if b.orphan != nil {
			b.orphan.Cut()
		}
	}
	b.join()
}

// join waits for the pump and closes the connection that it was left with.
func (b *body) join() {
	if b.pumping {
		<-b.done
		b.pumping = false
	}
	if b.orphan != nil {
		b.orphan.Close()
		b.orphan = nil
	}
}

// taken reports that the client has nothing more to send: its connection may
// carry a further request, whatever becomes of this one's content.
func (b *body) taken() bool {
	if b.pumping {
		return b.drained.Load()
	}
	return b.whole || b.pumped && b.drained.Load()
}

// lastWrite is how long the end of an exchange waits for the pump to finish its
// last write. The backend has answered in full: it has either read that write,
// and the pump need only be scheduled, or it never will.
const lastWrite = 50 * time.Millisecond

// settlePump joins a pump that has only its last write to finish.
func (e *exchange) settlePump() {
	b := &e.body
	if !b.pumping || !b.drained.Load() && !b.over.Load() {
		return
	}
	if e.up != nil && !b.over.Load() {
		e.up.SetWriteDeadline(e.now.Add(lastWrite))
	}
	b.join()
}

// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
)

// A small answer that is written whole, on a plain connection that goes on, is
// not sent at once but when the handler has returned and the next request is
// awaited, a microsecond or two later: netconn.SendInto then sends it and waits
// in one step, which saves looking for a request that cannot have come yet. A
// client that reset in that moment shows at the next read, not in the answer's
// record; one that does not read is still cut by the write timeout.
//
// A client that sends a request before it has the answer to the last one breaks
// the premise: its request may have come, and the runtime have taken notice and
// forgotten, before the wait begins; the wait then lasts until the hold is over.
// That costs it holdFor once: from then on nothing is held for it.

// mayHold reports whether an answer may wait for that.
func (c *ServerConn) mayHold(kind message.Body, length int64, body []byte, end bool) bool {
	if c.in.done.Load() && !c.in.empty() {
		c.link.early = true
	}
	return !c.link.early && !c.mustClose.Load() && len(body) <= smallRead && c.in.done.Load() && c.nc.Spliceable() &&
		(kind == message.NoBody || kind == message.Sized && end && int64(len(body)) == length)
}

// hold keeps a whole answer for the next wait.
func (c *ServerConn) hold(h *message.Response, kind message.Body, length int64, body []byte) error {
	buf := takeHeadBuffer()
	if kind == message.NoBody {
		body = nil
	}
	b := append(c.appendHead(buf[:0], h, kind, length), body...)
	o := &c.out
	o.started, o.ended, o.kind, o.left = true, true, kind, 0
	if len(b) > len(buf) || h.Status < 200 {
		err := c.judge(o.write(b, nil))
		giveBuffer(buf)
		return err
	}
	c.held, o.sent = b, int64(len(b))
	return nil
}

// flush sends what is held in the ordinary way.
func (c *ServerConn) flush() bool {
	_, err := writeAll(c.nc, c.out.stall, c.held, nil)
	c.dropHeld()
	return err == nil
}

func (c *ServerConn) dropHeld() {
	if c.held != nil {
		giveBuffer(c.held)
		c.held = nil
	}
}

// becameIdle is called when the held answer has left. It reports whether to wait
// for a further request without looking for one first.
func (c *ServerConn) becameIdle() bool {
	c.link.state.Store(stateIdle)
	return !c.link.srv.drained.Load()
}

// heldResult is what sendHeld came to.
type heldResult uint8

const (
	heldSent  heldResult = iota // the answer has left; go on as without one
	heldBytes                   // it has, and bytes of a request have come
	heldOver                    // the connection is over
)

// sendHeld sends the held answer and waits until then for a request.
func (c *ServerConn) sendHeld(until balance.Instant) heldResult {
	size := len(c.held)
	buf := c.held[:cap(c.held)]
	c.nc.SetReadDeadline(until)
	sent, n, err := c.nc.SendInto(buf, size, c.nowIdle)
	if sent == size && n > 0 {
		c.held = nil
		c.in.buf, c.in.r, c.in.w, c.in.tried = buf, 0, n, n
		return heldBytes
	}
	timeout := isTimeout(err)
	if timeout && sent == size && c.nc.Pending() {
		c.link.early = true // it came unnoticed; a request of this very moment is taken for one, too
	}
	ok := (timeout || err == nil) && sent == size
	if sent < size && (err == nil || timeout) {
		_, err = writeAll(c.nc, c.out.stall, c.held[sent:], nil)
		ok = err == nil
	}
	c.dropHeld()
	if ok {
		return heldSent
	}
	return heldOver
}

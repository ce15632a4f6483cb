// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/websocket"
)

// How weir ends a WebSocket, so that neither peer takes it for a failure and no
// message is torn:
//
//	client          weir          backend
//	  │◀─ Close 1012 ─│              │    at once, or where the message under way ends
//	  │── messages ──▶│── messages ─▶│    what the client had sent meanwhile
//	  │── Close ─────▶│─ Close 1001 ▶│    its answer, or half of the time later
//	  │               │◀───── Close ─│    or the end of the time: cut
//
// What the backend sends after 1012 went out is dropped, as nothing may follow a
// Close frame. A peer that has begun to close by itself is left to it.

// Backend implements LongLived.
func (t *tunnel) Backend() *balance.Backend { return t.backend }

// Since implements LongLived.
func (t *tunnel) Since() balance.Instant { return t.since }

// End implements LongLived.
func (t *tunnel) End(why observe.TunnelCause, wait time.Duration) { t.end(why, wait) }

// end asks the tunnel to end, and allows its peers so long to answer. Another
// end may shorten that and changes nothing else. It may be called from any
// goroutine and does not wait.
func (t *tunnel) end(why observe.TunnelCause, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := clock.Now()
	cut := now.Add(max(wait, 1))
	if t.ending() {
		if int64(cut) >= t.cut.Load() {
			return
		}
	}
	t.middle.Store(int64(now.Add(max(wait/2, 1))))
	t.cut.Store(int64(cut))
	t.why.CompareAndSwap(uint32(observe.TunnelByPeer), uint32(why))
	for _, side := range []*netconn.Conn{t.client, t.server} {
		side.SetWriteDeadline(cut)
		side.SetReadDeadline(1) // whoever waits looks again
	}
}

// late is a read that waited until its deadline.
func (h *half) late(now balance.Instant) error {
	t := h.t
	if t.ending() {
		return h.last(now)
	}
	switch {
	case t.ends != 0 && now >= t.ends:
		t.claimed()
		t.end(observe.TunnelByAge, TunnelWait)
	case t.idleFor() <= 0 || now.Sub(balance.Instant(t.last.Load())) < t.idleFor():
	case t.left.Load():
		return errLeft
	default:
		t.claimed()
		t.end(observe.TunnelByIdle, TunnelWait)
	}
	return nil
}

// last does what is due while the tunnel ends.
func (h *half) last(now balance.Instant) error {
	switch {
	case h.frames.Broken():
		return errOver // nobody knows where a frame might stand
	case h.closedBefore():
		return h.farewell()
	case h.mayPlace(now):
		if err := h.place(); err != nil {
			return err
		}
	}
	if int64(now) >= h.t.cut.Load() || h.heard && now >= h.linger {
		return errOver
	}
	return nil
}

// closedBefore reports that a Close frame of src's has been passed on that was
// not looked at then.
func (h *half) closedBefore() bool { return !h.said && h.frames.Closed() && h.frames.Boundary() }

// mayPlace reports that a Close frame may go to dst now.
func (h *half) mayPlace(now balance.Instant) bool {
	t := h.t
	if !h.frames.Boundary() || h.said {
		return false
	}
	if int64(now) >= t.middle.Load() {
		return true
	}
	return !h.up && h.frames.Between() && !t.closing.Load()
}

// place puts weir's Close frame in.
func (h *half) place() error {
	h.said = true
	code, m := uint16(websocket.ServiceRestart), (*[4]byte)(nil)
	if h.up {
		code, m = websocket.GoingAway, mask()
	} else {
		h.t.told.Store(true)
	}
	why := observe.TunnelCause(h.t.why.Load()).String()
	var b [websocket.CloseMost]byte
	if _, err := h.dst.Write(websocket.AppendClose(b[:0], code, why, m)); err != nil {
		return &tunnelError{client: !h.up, write: true, err: err}
	}
	return nil
}

// passLast passes on of p what may still be, frame by frame.
func (h *half) passLast(p []byte) error {
	for len(p) > 0 {
		if h.frames.Broken() {
			return errOver
		}
		if h.closedBefore() {
			return h.farewell()
		}
		if h.frames.Boundary() && !h.said {
			switch {
			case websocket.CloseNext(p) && h.up && h.t.told.Load():
				h.heard = true // the client's answer: the backend gets its own word
				if err := h.place(); err != nil {
					return err
				}
				return errOver
			case websocket.CloseNext(p):
				// src closes by itself, and what it says of that is better than what
				// weir would say.
			case h.mayPlace(clock.Now()):
				if err := h.place(); err != nil {
					return err
				}
			}
		}
		n := h.frames.Step(p)
		if !h.said {
			if err := h.write(p[:n]); err != nil {
				return err
			}
		}
		p = p[n:]
		if h.frames.Closed() && h.frames.Boundary() {
			return h.farewell()
		}
	}
	if !h.said && h.mayPlace(clock.Now()) {
		return h.place()
	}
	return nil
}

// lingerMost is how long a backend that has answered may take to close its
// connection. Who closes first keeps the port for a minute (TIME_WAIT), and
// RFC 6455 section 7.1.1 wants that to be the server.
const lingerMost = 250 * time.Millisecond

// farewell is what comes after a Close frame of src's.
func (h *half) farewell() error {
	h.heard, h.said = true, true
	if h.up {
		h.t.closing.Store(true)
		return errOver
	}
	if h.linger == 0 {
		h.linger = clock.Now().Add(lingerMost)
	}
	return nil
}

// outcome is how a tunnel ended that weir ended.
func (t *tunnel) outcome() observe.TunnelOutcome {
	switch {
	case !t.up.said && !t.down.said:
		return observe.TunnelCut
	case t.up.heard && t.down.heard:
		return observe.TunnelClosed
	default:
		return observe.TunnelUnanswered
	}
}

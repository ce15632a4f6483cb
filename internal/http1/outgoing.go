// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// Misuse by the caller, or content that does not fit what the head announced.
var (
	errOrder    = errors.New("http1: message written out of order")
	errMismatch = errors.New("http1: content does not match the announced length")
)

// outgoing writes one message: head and first piece in one write, then each
// piece in one write, in the framing that the head announced.
type outgoing struct {
	nc    *netconn.Conn
	stall time.Duration // longest wait without progress; 0: the caller's deadlines count

	kind    message.Body // NoBody, Sized, Chunked or UntilClose
	left    int64        // of a Sized body
	started bool
	ended   bool
	torn    bool  // a write failed: not all of what was given has left
	sent    int64 // bytes of this message that left
}

func (o *outgoing) reset() {
	o.kind, o.left, o.started, o.ended, o.torn, o.sent = message.NoBody, 0, false, false, false, 0
}

// begin writes the head, which lies in buf and has been framed as kind says,
// and the first piece.
func (o *outgoing) begin(buf []byte, kind message.Body, length int64, body []byte, end bool) error {
	o.started, o.kind, o.left = true, kind, length
	if kind == message.NoBody {
		body, end = nil, true
	}
	return o.put(buf, body, end)
}

// piece writes a further piece.
func (o *outgoing) piece(p []byte, end bool) error {
	if !o.started || o.ended {
		if o.started && len(p) == 0 {
			return nil
		}
		return errOrder
	}
	if len(p) == 0 && !end {
		return nil
	}
	if o.kind != message.Chunked {
		return o.put(nil, p, end)
	}
	buf := writeBuffers.Get().(*[writeSize]byte)
	err := o.put(buf[:0], p, end)
	writeBuffers.Put(buf)
	return err
}

// put writes what lies in buf and then p, framed. buf is of a pooled write
// buffer when the body is chunked.
func (o *outgoing) put(buf, p []byte, end bool) error {
	switch o.kind {
	case message.Sized:
		if o.left -= int64(len(p)); o.left < 0 || end && o.left != 0 {
			return errMismatch
		}
		end = o.left == 0
	case message.Chunked:
		return o.putChunks(buf, p, end)
	}
	o.ended = end
	if len(buf)+len(p) == 0 {
		return nil
	}
	if len(buf) > 0 && len(p) <= smallRead {
		return o.write(append(buf, p...), nil) // copying is cheaper than writev
	}
	return o.write(buf, p)
}

func (o *outgoing) putChunks(buf, p []byte, end bool) error {
	const framing = 32 // size line, CRLF and last chunk
	for len(p) > bodySize || len(p) > cap(buf)-len(buf)-framing {
		n := min(len(p), bodySize, cap(buf)-len(buf)-framing)
		if n <= 0 { // a head that fills the buffer
			n = 0
		}
		if err := o.write(appendChunk(buf, p[:n]), nil); err != nil {
			return err
		}
		buf, p = buf[:0], p[n:]
	}
	buf = appendChunk(buf, p)
	if end {
		buf = append(buf, lastChunk...)
		o.ended = true
	}
	return o.write(buf, nil)
}

// trailers ends a chunked message with trailers; in other framings they cannot
// be sent and only the end counts.
func (o *outgoing) trailers(t *message.Fields) error {
	if o.kind != message.Chunked || t == nil || t.Len() == 0 {
		return o.piece(nil, true)
	}
	if !o.started || o.ended {
		return errOrder
	}
	buf := writeBuffers.Get().(*[writeSize]byte)
	b := append(buf[:0], "0\r\n"...)
	b = append(t.AppendWire(b), '\r', '\n')
	o.ended = true
	err := o.write(b, nil)
	writeBuffers.Put(buf)
	return err
}

// moved notes that n bytes of content were put on the connection by somebody
// else.
func (o *outgoing) moved(n int64) {
	o.sent += n
	if o.kind == message.Sized {
		if o.left -= n; o.left == 0 {
			o.ended = true
		}
	}
}

// space reports how many bytes of content may be put on the connection
// directly: what a Sized body lacks, -1 when it ends with the connection.
func (o *outgoing) space() (int64, bool) {
	if !o.started || o.ended || !o.nc.Spliceable() {
		return 0, false
	}
	switch o.kind {
	case message.Sized:
		return o.left, true
	case message.UntilClose:
		return -1, true
	}
	return 0, false
}

// write writes a and b.
func (o *outgoing) write(a, b []byte) error {
	n, err := writeAll(o.nc, o.stall, a, b)
	o.sent += n
	o.torn = o.torn || err != nil
	return err
}

// writeAll writes a and b. Every write that progresses enough may go on for another
// stall (0: the connection's deadline counts); under TLS it is one write.
func writeAll(nc *netconn.Conn, stall time.Duration, a, b []byte) (sent int64, _ error) {
	slow := netconn.Arrears{Least: nc.Least()}
	for {
		if stall > 0 {
			nc.SetWriteDeadline(clock.Now().Add(stall))
		}
		n, err := nc.WriteBuffers(a, b)
		sent += int64(n)
		if err == nil {
			return sent, nil
		}
		if stall == 0 || !isTimeout(err) {
			return sent, err
		}
		if nc.TLS() != nil || slow.Passed(int64(n)) {
			return sent, &Error{Reason: message.WriteTimeout, Detail: "the client does not read", Err: err}
		}
		k := min(n, len(a))
		a, b = a[k:], b[n-k:]
	}
}

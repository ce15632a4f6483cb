// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 section 4.2.2 asks for it
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// A WebSocket over a stream (RFC 8441) is shown to the exchange as what it is
// over HTTP/1.1: a GET that asks for an upgrade. The key that HTTP/1.1 wants is
// made here, and the answer to it looked at here; the backend's 101 is the
// client's 200, and what is tunnelled is the stream's content.

var errAccept = errors.New("http2: the backend's Sec-WebSocket-Accept is wrong")

// askTunnel turns an extended CONNECT into that request.
func (s *ServerStream) askTunnel() {
	r := &s.req
	s.tunnel, r.WebSocket = true, true
	r.Method = methodGet
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	r.Fields.RemoveName("sec-websocket-key")
	r.Fields.Add(message.Upgrade, "Upgrade", "websocket")
	r.Fields.Add(message.Other, "Sec-WebSocket-Key", key)
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	s.accept = base64.StdEncoding.EncodeToString(sum[:])
}

var methodGet = []byte("GET")

// openTunnel answers it.
func (s *ServerStream) openTunnel(h *message.Response) error {
	if !s.tunnel {
		return errOrder
	}
	if v, ok := h.Fields.Lookup("Sec-WebSocket-Accept"); !ok || string(v) != s.accept {
		s.Abort()
		return errAccept
	}
	h.Fields.RemoveName("Sec-WebSocket-Accept")
	s.started, s.left = true, -1
	s.block = appendFields(appendStatus(s.block[:0], 200), &h.Fields, message.Streamed, -1)
	return s.put(s.block, nil, false)
}

// Takeover makes a connection of the stream.
func (s *ServerStream) Takeover() (nc *netconn.Conn, buffered []byte) {
	return netconn.New(&streamConn{s: s}), nil
}

// streamConn is a stream as a connection. One goroutine reads, one writes.
type streamConn struct {
	s *ServerStream
	// Guarded by the connection's mutex.
	readBy, writeBy time.Time
}

// Read returns what has arrived.
func (t *streamConn) Read(p []byte) (int, error) {
	s := t.s
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.dead != nil:
			return 0, s.dead
		case s.content.first != nil:
			n := s.content.read(p)
			c.srv.Budget.Give(int64(n))
			c.giveBack(s, n)
			if len(c.out) > 0 {
				c.kickLocked()
			}
			return n, nil
		case s.remote:
			return 0, io.EOF
		}
		if err := t.wait(&t.readBy, s.readWake, &s.readTimer); err != nil {
			return 0, err
		}
	}
}

// Write writes content.
func (t *streamConn) Write(p []byte) (int, error) {
	s := t.s
	c := s.conn
	c.mu.Lock()
	total := 0
	for {
		if s.dead != nil {
			err := s.dead
			c.mu.Unlock()
			return total, err
		}
		if s.local {
			c.mu.Unlock()
			return total, net.ErrClosed
		}
		if n := c.allowed(&s.sender, len(p)); n > 0 {
			c.spend(&s.sender, n)
			c.out = appendData(c.room(), s.id, p[:n], false)
			c.calm.sent(n, len(p))
			total += n
			p = p[n:]
		}
		if len(p) == 0 {
			c.mu.Unlock()
			c.flush(1)
			return total, nil
		}
		c.enqueue(&s.sender)
		c.kickLocked()
		if err := t.wait(&t.writeBy, s.writeWake, &s.writeTimer); err != nil {
			c.mu.Unlock()
			return total, err
		}
	}
}

// wait waits for a wake-up or a deadline. Called under mu, which it gives up
// meanwhile.
func (t *streamConn) wait(by *time.Time, wake <-chan struct{}, timer **time.Timer) error {
	c := t.s.conn
	until := *by
	var late <-chan time.Time
	if !until.IsZero() {
		d := time.Until(until)
		if d <= 0 {
			return os.ErrDeadlineExceeded
		}
		late = t.s.timer(timer, d)
	}
	c.mu.Unlock()
	select {
	case <-wake:
	case <-late:
	}
	if late != nil {
		(*timer).Stop()
	}
	c.mu.Lock()
	return nil
}

// CloseWrite ends the answer.
func (t *streamConn) CloseWrite() error {
	s := t.s
	c := s.conn
	c.mu.Lock()
	if s.dead == nil && !s.local {
		s.local = true
		c.out = appendData(c.room(), s.id, nil, true)
		c.kickLocked()
	}
	c.mu.Unlock()
	return nil
}

// Close ends the stream; unless both halves have ended, by a reset.
func (t *streamConn) Close() error {
	s := t.s
	c := s.conn
	c.mu.Lock()
	if s.dead == nil && s.id != 0 && !(s.local && s.remote) {
		s.resetLocked(CodeCancel)
		c.kickLocked()
	}
	s.local = true
	s.wakeReader()
	s.wakeWriter()
	c.mu.Unlock()
	return nil
}

// LocalAddr is the connection's.
func (t *streamConn) LocalAddr() net.Addr { return t.s.conn.nc.LocalAddr() }

// RemoteAddr is the connection's.
func (t *streamConn) RemoteAddr() net.Addr { return t.s.conn.nc.RemoteAddr() }

// SetDeadline sets both.
func (t *streamConn) SetDeadline(at time.Time) error {
	_ = t.SetReadDeadline(at)
	return t.SetWriteDeadline(at)
}

// SetReadDeadline bounds reading.
func (t *streamConn) SetReadDeadline(at time.Time) error {
	t.s.conn.mu.Lock()
	t.readBy = at
	t.s.conn.mu.Unlock()
	t.s.wakeReader()
	return nil
}

// SetWriteDeadline bounds writing.
func (t *streamConn) SetWriteDeadline(at time.Time) error {
	t.s.conn.mu.Lock()
	t.writeBy = at
	t.s.conn.mu.Unlock()
	t.s.wakeWriter()
	return nil
}

// NotifyAbort lets netconn watch the stream.
func (t *streamConn) NotifyAbort(fn func()) (stop func() bool) {
	w := t.s.OnAbort(fn)
	return w.Stop
}

// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 section 4.2.2 asks for it
	"encoding/base64"
	"errors"

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
	s.accept = acceptOf([]byte(key))
}

// acceptOf is the Sec-WebSocket-Accept that belongs to a key.
func acceptOf(key []byte) string {
	sum := sha1.Sum(append(key[:len(key):len(key)], "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...)) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
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
	c := s.conn
	return netconn.New(&streamConn{
		o: &c.output, send: &s.sender, recv: &s.receiver, calm: &c.calm, budget: c.srv.Budget,
		unreadable: func() error { return s.dead },
		unwritable: func() error { return s.dead },
		given:      func(n int) { c.giveBack(&s.stream, n) },
		end: func() {
			c.mu.Lock()
			if s.dead == nil && s.id != 0 && !(s.local && s.remote) {
				s.resetLocked(CodeCancel)
				c.kickLocked()
			}
			s.local = true
			c.mu.Unlock()
		},
		watch: s.OnAbort,
	}), nil
}

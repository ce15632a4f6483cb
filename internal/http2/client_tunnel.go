// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// A WebSocket goes to a backend over a stream (RFC 8441) where it has said that it
// takes them so. The exchange sees what it would see over HTTP/1.1: the client's
// request for an upgrade becomes a CONNECT, and the answer of 200 to that one of 101,
// with what belongs to the key that the client has sent.

// errUpgrade refuses what would become a tunnel.
var errUpgrade = &http1.Error{Reason: message.UpgradeRefused, Detail: "the backend is spoken to in HTTP/2 and does not take WebSockets so (RFC 8441)"}

// Connects reports that the backend takes WebSockets over a stream.
func (c *ClientConn) Connects() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connects
}

// Connects is ClientConn.Connects of the stream's connection.
func (s *ClientStream) Connects() bool { return s.conn.Connects() }

const keyName = "Sec-WebSocket-Key"

// askTunnel prepares for a request that is to become a tunnel.
func (s *ClientStream) askTunnel(r *message.Request) error {
	if !s.Connects() {
		return errUpgrade
	}
	key, _ := r.Fields.Lookup(keyName)
	s.tunnel, s.accept = true, acceptOf(key)
	return nil
}

// gotTunnel takes a head that opens it.
func (s *ClientStream) gotTunnel(r *message.Response, end bool) {
	s.final, s.remote, s.sized = true, end, false
	r.Status, r.WebSocket = 101, true
	r.Body, r.ContentLength = message.NoBody, -1
	r.Fields.RemoveID(message.ContentLength)
	r.Fields.RemoveName("Sec-WebSocket-Accept")
	r.Fields.Add(message.Other, "Sec-WebSocket-Accept", s.accept)
	s.keep(r)
}

// Takeover makes a connection of the stream, which ends with it.
func (s *ClientStream) Takeover() (nc *netconn.Conn, buffered []byte) {
	c := s.conn
	return netconn.New(&streamConn{
		o: &c.output, send: &s.sender, recv: &s.receiver, calm: &c.calm, budget: c.k.Budget,
		unreadable: func() error { return s.dead },
		unwritable: func() error {
			if s.local {
				return nil // which is no fault
			}
			return s.unwritable()
		},
		given: func(n int) { c.giveBack(&s.stream, n) },
		end:   s.Close,
	}), nil
}

// SPDX-License-Identifier: Apache-2.0

// Package l4 carries sessions: connections of any protocol between a client and
// one backend, byte by byte as they come.
//
// A session has two lives. First an ordinary goroutine decides: who the client
// is (a PROXY header and a ClientHello may have been read before), which
// backend, a connection to it, and another backend when that fails. Nothing has
// been sent to anybody until then, so trying again is free. Then the pair of
// descriptors is handed to a relay loop and the goroutine ends. There is one
// loop per processor, each with an epoll instance of its own; it moves bytes,
// keeps the counters and the times, and knows nothing of pools. An idle session
// is one small struct and two descriptors: no goroutine, no buffer, no pipe.
//
//	accept ─▶ (PROXY) ─▶ (SNI) ─▶ Proxy.Serve ─▶ pool.Pick ─▶ upstream ─▶ loop
//	          goroutine                         ◀── another backend ──┘      │
//	                              record, lease.Done ◀── end of the session ─┘
//
// The call that everything meets in is
//
//	func (p *Proxy) Serve(c *netconn.Conn, ci *Client, rt *Route, prefix []byte)
//
// c is the Proxy's from then on: whoever calls does not read, write, or close it
// any more. prefix is what was read from the client already and belongs to its
// backend (a ClientHello that was looked at, bytes behind a PROXY header); it is
// copied if it has to be kept, and sent before anything else, after the PROXY
// header that the pool may ask for. Serve returns when the session is with a
// loop, or has ended before; a connection that TLS was ended on has no
// descriptor to give away, so its bytes are moved by goroutines, and Serve
// returns at the end of the session. Whoever finds no route, or refuses the
// client for another reason, calls Refuse instead, so that it is counted and
// logged as any session is.
package l4

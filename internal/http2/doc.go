// SPDX-License-Identifier: Apache-2.0

// Package http2 is stage 1 of 5 for connections that speak HTTP/2 (RFC 9113):
// listen hands it a connection, it hands each request to l7 as a Downstream of
// its own, as http1 does for a connection. It reads frames with x/net's Framer
// and shares messages and rules of syntax with HTTP/1.1; connections, streams,
// flow control and header blocks are its own, because x/net's cost a multiple.
//
//	frame.go         frames as they are written; how they are read
//	hpack_*.go       header blocks (RFC 7541)
//	fault.go         what is wrong, and what that costs: a stream, or the connection
//	flow.go          windows, which grow by use and shrink under the process's budget
//	content.go       content that has arrived and was not yet taken
//	output.go        what many streams write leaves in one write
//	calm.go          what a peer may do that costs it nothing and weir something
//	tunnel.go        a stream as a connection
//	workers.go       goroutines that are used again
//	core.go          what a connection and a stream of either side are made of
//
// All of these serve either side. The serving half is
//
//	server.go        its settings, and the life of a connection
//	server_registry.go   all connections: drain, end, counts
//	server_conn.go   a connection: reading frames
//	server_head.go   a request's head out of a header block
//	server_stream.go a stream as a Downstream: the request
//	server_answer.go the same: the answer
//	server_tunnel.go WebSocket over a stream (RFC 8441)
//
// The calling half is
//
//	client.go         a connection: its start, and reading frames
//	client_life.go    how long it is idle, asked, and how it ends
//	client_frames.go  what frames of a backend do
//	client_head.go    heads and trailers of answers
//	client_request.go a stream as an Upstream: the request
//	client_stream.go  the same: the answer
//	client_tunnel.go  WebSocket over a stream (RFC 8441)
//
// and input.go, output.go are what the connections of both read and write with.
//
// # Goroutines
//
// One per connection reads frames, one per stream, of a reused set, serves the
// request; writing is done by whoever of them finds nobody writing, when it has
// nothing else to do, or by one of the reused set. None of them ever waits for
// another stream: the reader for nobody at all, a stream only for its own
// windows, the connection's, and room among what is to be written.
//
// # Locks
//
// Each connection has one mutex. It guards the table of streams, windows, content
// that has arrived and what is to be written. No system call is made under it, and no other
// lock is taken but a registry's never before it.
package http2

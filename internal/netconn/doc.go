// SPDX-License-Identifier: Apache-2.0

// Package netconn is one stream connection as the data plane uses it: TCP,
// unix or TLS over either, with deadlines that cost nothing to move, reads
// that hold no buffer while they wait, a peek that consumes nothing, a watch
// for a peer that leaves, and splice(2) between two plain sockets.
//
// Who may call what: one goroutine reads (Read, ReadInto, Peek), one writes
// (Write, WriteBuffers); they may be the same. SetReadDeadline,
// SetWriteDeadline, Abort and Close may be called from anywhere at any time.
//
// Deadlines are lazily armed: setting one stores it, and touches the runtime's
// timer only when the armed one would fire later than wanted. A timer that
// fires early is absorbed inside Read or Write and re-armed. Below TLS the same
// is done on the socket, because crypto/tls cannot resume a write that timed
// out; so TLS connections are made with Server and Client here, not wrapped
// afterwards.
package netconn

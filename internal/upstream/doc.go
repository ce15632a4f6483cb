// SPDX-License-Identifier: Apache-2.0

// Package upstream holds the connections to backends. Stage 5 of 5; receives a
// chosen backend from l7; hands it a connection, kept or fresh.
//
// A Target is one backend. Get gives the most recently used idle connection
// that may be used (semantics.md S8), Dial makes a fresh one, Put takes one
// back. Idle connections are closed before the backend closes them: after the
// configured time, 80 % of what the backend announces (Keep-Alive: timeout=N),
// or 80 % of what it was seen to do. A connection that has been idle for a
// quarter of a second is watched, so that the backend's closes are seen when
// they happen; a busy one costs no system call beyond its own.
//
// A connection may begin with a PROXY header, which names the client that it is
// made for. Then it is kept for requests with the same header and no others.
//
// A backend given by name is one backend (S18): it is resolved again when the
// answer's time to live is over, addresses are tried in turn, and the last good
// answer is kept while the name servers fail. The standard library's resolver
// asks (with /etc/hosts, search and ndots); its messages are read in passing
// for the time to live, which it does not tell.
package upstream

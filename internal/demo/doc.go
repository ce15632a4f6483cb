// SPDX-License-Identifier: Apache-2.0

// Package demo is the demonstration backend behind `weir backend` and
// `weir demo`: a small HTTP server that does what every backend behind a
// balancer should do when it is told to stop.
//
// The order matters, and is the whole point:
//
//  1. /readyz says 503 at once, so that balancers stop sending new work;
//  2. everything else keeps answering 200 on kept and on new connections,
//     because balancers need their detection time to notice;
//  3. toward the end of the wait answers carry Connection: close, so that no
//     client is left holding a connection that is about to vanish;
//  4. only then the listener closes, what is in flight finishes, and the
//     process exits 0.
//
// It is built on net/http on purpose: it stands for the servers that people
// run behind weir, not for weir.
package demo

// SPDX-License-Identifier: Apache-2.0

// Package listen accepts connections. Stage 1 of 5; receives sockets from the
// kernel; hands connections (TLS already terminated) to the listener's codec.
//
// Listen binds and loads everything that can fail; Serve accepts until Stop;
// Wait returns when the last connection is closed. A connection counts from
// accept to its Close, whoever holds it: a parked one has no goroutine here.
//
// At a ceiling (process, listener, client) a plain connection is answered 503
// and closed, a TLS one closed without a handshake, and accepting pauses. An
// accept that fails for want of descriptors or memory backs off, is counted and
// logged at most once per period. The last 64 descriptors are left to the
// admin API, status, and probes.
package listen

// SPDX-License-Identifier: Apache-2.0

// Package l7 is stage 3 of 5: it receives a parsed request head from a codec
// (listen and http1 before it), asks route for the way, carries the request to
// one backend or, where that is safe, to a second one, and hands the answer
// back; stage 4 is pool.Pick, stage 5 is upstream. It ends with lease.Done and
// one observe.Record.
//
// Files are named for what a request meets, in order:
//
//	exchange.go  one exchange from head to record; the shared state
//	trust.go     whose forwarding headers are believed, and who the client is
//	hop.go       fields that concern one hop only
//	forward.go   fields that weir adds toward the backend; ids.go: request ids, traces
//	rewrite.go   path and Host as the route wants them
//	body.go      the request's content: small, replayable or streamed; pump.go: streaming it
//	attempt.go   one try on one backend; redispatch and retry around it
//	await.go     waiting for the answer's head
//	hedge.go     a second attempt beside one without an answer
//	marks.go     what weirs in a row tell each other about retries
//	relay.go     the answer's head and content on their way to the client
//	watch.go     noticing that the client left
//	tunnel.go    WebSocket after its 101
//	failure.go   the one type for what went wrong
//	answer.go    answers that weir gives itself
//
// handler.go holds what the engine builds, codec.go what codecs and connections
// must offer, target.go the bridge to upstream.
//
// # Goroutines
//
// One goroutine, the caller of Serve, does everything for a request whose
// content is small or absent. A second one exists only while more content is
// still arriving (so that a backend's early answer gets through), or once an
// answer has been awaited for about 50 ms (to notice that the client left). A
// hedge has one, too. Serve returns after all have ended.
package l7

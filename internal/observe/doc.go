// SPDX-License-Identifier: Apache-2.0

// Package observe turns what happened into what operators read: metrics and
// the access log are two views of one Record per request.
//
// The data plane fills a Record, hands it to Series.Observe (counters and
// histograms: no lock, no allocation) and to AccessLog.Write (one line, never
// blocks) and reuses it. What mirrors state rather than counts events (requests
// in flight, shares, queues) is not pushed: the engine registers functions that
// return plain snapshots, and they are called when somebody scrapes.
//
// The counters are our own because they sit on the path of every request; the
// exposition is client_golang's, through a Collector that yields constant
// metrics.
package observe

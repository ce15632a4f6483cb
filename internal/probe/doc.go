// SPDX-License-Identifier: Apache-2.0

// Package probe is the network half of active health checks: it connects, asks
// and says in the words of package health what came back. When to probe and
// what to conclude is decided in health and pool.
//
// A probe has a connection of its own and never shares the traffic's: what it
// measures is whether a new connection gets an answer. HTTP is spoken by hand
// and read by the parser of the traffic, so that an answer which weir would
// refuse from a backend fails its probe too.
package probe

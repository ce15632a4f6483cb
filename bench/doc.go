// SPDX-License-Identifier: Apache-2.0

// Command bench measures weir beside nginx, HAProxy and Caddy: the same
// backend, the same load, the same policy and added fields, in alternation,
// so that what the machine does to one it does to all. Only ratios taken in
// one run mean anything; they are printed with the interval of the medians.
//
//	make bench                                # 9 rounds of everything
//	go run ./bench -rounds 3 -cases plain,tls # a quick look
//	go run ./bench -cases l4-many,l4-idle -proxies weir # root beside an ordinary user
//
// The configurations under config/ are committed with their reasons. Figures:
// CPU (user and system, from /proc/PID/stat, children included) per request or
// per GiB, requests per second, latency closed loop (wrk) and at a fixed rate
// (measured from the instant a request was due, so that a stall is not
// hidden), and resident memory with and without idle clients.
package main

// SPDX-License-Identifier: Apache-2.0

// Package test drives the built binary from outside, as an operator and a
// client would: real processes, real sockets, real peers. Everything stays on
// loopback or in network namespaces that a test makes.
//
// The environment variable WEIR names the binary; `make e2e` builds it and
// sets it. Without it the tests build one themselves. Long cases carry the
// build tag long and run by `make test-long`.
package test

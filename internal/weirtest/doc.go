// SPDX-License-Identifier: Apache-2.0

// Package weirtest holds what tests of the data plane share: backends that
// follow a script and clients that write raw bytes, both over real loopback
// sockets, so that resets, half-closes and split writes are what the kernel
// makes of them; bounded waits, a log that is read while it is written, and
// golden files.
//
// Nothing here understands more of HTTP than it must to find the end of a
// message: a test that wants to see what weir sends looks at the bytes.
package weirtest

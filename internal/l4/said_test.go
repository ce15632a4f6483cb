// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"syscall"
	"testing"
)

// What is in the log of a side that has gone is about that side, not about weir's
// own calls.
func TestSaid(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		0:                  "",
		syscall.ECONNRESET: "connection reset by peer",
		syscall.ENOTCONN:   "closed before it had everything",
		syscall.EPIPE:      "closed before it had everything",
		syscall.ETIMEDOUT:  "connection timed out",
	} {
		if got := said(errno); got != want {
			t.Errorf("%d: %q, want %q", errno, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/pool"
)

func retryOf(attempts int) pool.RetryRules { return pool.NewRetryRules(attempts, false, nil, 0) }

// segmented sends many datagrams with one call, as a client that uses UDP_SEGMENT
// does, the last one shorter, and wants them all back.
func segmented(t *testing.T, c *net.UDPConn, size, n int) {
	t.Helper()
	var all []byte
	for i := range n {
		part := bytes.Repeat([]byte{byte(i)}, size)
		if i == n-1 {
			part = part[:size/2]
		}
		all = append(all, part...)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctl := appendSegment(make([]byte, 0, controlMost), size)
	cerr := raw.Write(func(fd uintptr) bool {
		_, err = unix.SendmsgN(int(fd), all, ctl, nil, 0)
		return !errors.Is(err, syscall.EAGAIN)
	})
	if err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	b := make([]byte, 70000)
	for i := range n {
		k, err := c.Read(b)
		if err != nil {
			t.Fatalf("answer %d of %d: %v", i, n, err)
		}
		want := size
		if i == n-1 {
			want /= 2
		}
		if k != want+2 || b[2] != byte(i) || b[k-1] != byte(i) {
			t.Fatalf("answer %d has %d bytes of %d", i, k, b[2])
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"time"

	"golang.org/x/sys/unix"
)

// Unacked reports whether bytes that were written are on their way and the peer
// has acknowledged nothing for at least d: its host, or the way to it, is gone.
// A peer that only does not read, or does not answer, still acknowledges. It
// costs one system call and is false where nothing is known.
func (c *Conn) Unacked(d time.Duration) bool {
	if c.raw == nil {
		return false
	}
	var info *unix.TCPInfo
	var err error
	cerr := c.raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return cerr == nil && err == nil && info.Unacked > 0 &&
		time.Duration(info.Last_ack_recv)*time.Millisecond >= d
}

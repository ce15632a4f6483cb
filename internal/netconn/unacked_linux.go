// SPDX-License-Identifier: Apache-2.0

package netconn

import "golang.org/x/sys/unix"

// Unacked reports whether bytes that were written have had to be sent again and
// are still not acknowledged: seconds after a write, the peer's host, or the way
// to it, is gone. A peer that only does not read, or does not answer, still
// acknowledges. When the last acknowledgement came says nothing: a host that
// cannot be reached may still be heard, repeating its last answer. It costs one
// system call and is false where nothing is known.
func (c *Conn) Unacked() bool {
	if c.raw == nil {
		return false
	}
	var info *unix.TCPInfo
	var err error
	cerr := c.raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return cerr == nil && err == nil && info.Unacked > 0 && info.Retransmits > 0
}

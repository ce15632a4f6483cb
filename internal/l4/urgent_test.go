// SPDX-License-Identifier: Apache-2.0

package l4

import "golang.org/x/sys/unix"

// sendUrgent sends a byte of urgent data, and reports false when there is no
// room.
func sendUrgent(fd int) bool { return unix.Sendto(fd, []byte("!"), unix.MSG_OOB, nil) != unix.EAGAIN }

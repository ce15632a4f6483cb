// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of this package. All act on non-blocking descriptors and
// none allocates; each returns an errno of 0 for success and never EINTR.
//
// Sockets are read and written by recvfrom, sendto and sendmsg: read, write and
// writev come to the same through the file layer, which costs 4 % of a small
// message on loopback. A call that moves no more than rawMost bytes is made
// without telling the scheduler: it cannot wait, and takes microseconds, and
// the notice costs another 2 %.
const rawMost = 32 << 10

func sysRecv(fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	return sysMove(unix.SYS_RECVFROM, fd, p, flags)
}

func sysSend(fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	return sysMove(unix.SYS_SENDTO, fd, p, flags|unix.MSG_NOSIGNAL)
}

func sysMove(call, fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	at := unsafe.Pointer(unsafe.SliceData(p))
	for {
		var n uintptr
		var errno syscall.Errno
		if len(p) <= rawMost {
			n, _, errno = unix.RawSyscall6(call, fd, uintptr(at), uintptr(len(p)), uintptr(flags), 0, 0)
		} else {
			n, _, errno = unix.Syscall6(call, fd, uintptr(at), uintptr(len(p)), uintptr(flags), 0, 0)
		}
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func sysSendmsg(fd uintptr, m *syscall.Msghdr) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), unix.MSG_NOSIGNAL)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func sysSplice(from, to uintptr, n int) (int, syscall.Errno) {
	for {
		m, _, errno := unix.Syscall6(unix.SYS_SPLICE, from, 0, to, 0, uintptr(n), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errno != unix.EINTR {
			return int(m), errno
		}
	}
}

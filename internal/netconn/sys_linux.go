// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of this package. All act on non-blocking descriptors and
// none allocates; each returns an errno of 0 for success and never EINTR.
// unix.Recvfrom would build a socket address, unix.Writev a list of vectors.

func sysRead(fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func sysRecv(fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func sysSend(fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func sysWritev(fd uintptr, iov []syscall.Iovec) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
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

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"

	"golang.org/x/sys/unix"
)

// noNew is a classic BPF program that drops a segment with SYN and without ACK,
// as sockets see it, from the TCP header on: the 14th byte holds the flags.
// A filter on a listening socket sees the SYN and the ACK of each handshake.
// tcp(7) and Documentation/networking/filter.rst of Linux.
var noNew = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},               // SYN and ACK
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02, Jt: 0, Jf: 1}, // SYN alone
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0x40000},
}

// deafen keeps new clients out of a socket that is about to be closed, while
// what is queued can still be accepted: otherwise those who come between the
// last accept and the close would be reset. A TCP client is not refused but
// finds nobody, and asks again after a second; by then the socket is closed, or
// another one has the address. A unix socket says that it is closed.
func deafen(ln acceptor) error {
	if _, ok := ln.(*net.UnixListener); ok {
		return control(ln, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) })
	}
	return control(ln, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(noNew)), Filter: &noNew[0]})
	})
}

// hear takes deafen back. It is not asked for unix sockets.
func hear(ln acceptor) error {
	return control(ln, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
}

// acceptNow takes a connection out of the queue, or says at once that there is
// none (EAGAIN). The net package cannot ask without waiting.
func acceptNow(ln acceptor) (net.Conn, error) {
	nfd := -1
	err := control(ln, func(fd int) (err error) {
		nfd, _, err = unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, err
	}
	return adopt(nfd)
}

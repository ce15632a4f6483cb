// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MostQuiet is how many connections AreQuiet looks at.
const MostQuiet = 16

// AreQuiet is Peek for several connections at once, with one system call that does
// not wait: quiet[i] says whether the Conn i is Quiet. Connections with TLS or without
// a descriptor, and those behind the first MostQuiet, are not looked at and reported as
// not quiet. The connections need not be the caller's; of one that is closed meanwhile
// it may say either.
func AreQuiet(conns []*Conn, quiet []bool) {
	o := quietOps.Get().(*quietOp)
	defer quietOps.Put(o)
	n := min(len(conns), MostQuiet)
	clear(quiet)
	for i, c := range conns[:n] {
		o.fds[i].Fd = -1 // is not looked at
		if c.raw != nil && c.tls == nil && !c.gone() {
			o.i = i
			_ = c.raw.Control(o.fn) // fails on a connection that is closed
		}
	}
	var at syscall.Timespec // at once
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&o.fds[0])), uintptr(n), uintptr(unsafe.Pointer(&at)), 0, 0, 0)
	for i := range n {
		quiet[i] = errno == 0 && o.fds[i].Fd >= 0 && o.fds[i].Revents == 0
	}
}

// quietOp holds what AreQuiet asks.
type quietOp struct {
	fds [MostQuiet]unix.PollFd
	i   int
	fn  func(uintptr) // ask, bound once
}

func (o *quietOp) ask(fd uintptr) {
	o.fds[o.i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
}

var quietOps = sync.Pool{New: func() any {
	o := &quietOp{}
	o.fn = o.ask
	return o
}}

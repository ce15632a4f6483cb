// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Detach takes the socket of a plain connection out of Go's poller and returns a
// descriptor of it that is the caller's: every byte that arrives would otherwise
// wake that poller, too, for nobody. The connection is closed with that, as far
// as its methods are concerned, but what SetOnClose was given is not called: it is
// returned (nil: there is none), to be called by whoever closes the descriptor.
// aborted, if it is not nil, is called once when Abort is, from within the call;
// it may be called although Detach failed. A connection with TLS, or without a
// descriptor, is errNoDescriptor, and stays as it was, as it does after any error.
func (c *Conn) Detach(aborted func()) (fd int, closed func(), err error) {
	if !c.Spliceable() {
		return -1, nil, errNoDescriptor
	}
	fd = -1
	cerr := c.raw.Control(func(own uintptr) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	})
	switch {
	case cerr != nil:
		return -1, nil, cerr
	case err != nil:
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	if aborted != nil {
		// Before the flag: Abort sets its own before it looks for a hook.
		c.hook.Store(&aborted)
	}
	if c.flags.Or(flagClosed)&(flagClosed|flagAborted) != 0 {
		_ = unix.Close(fd) // it was closed, or is to be: nothing to take over
		return -1, nil, net.ErrClosed
	}
	_ = c.nc.Close() // of the runtime's descriptor; the socket lives on in the other
	closed, c.onClose = c.onClose, nil
	return fd, closed, nil
}

// RawRecv receives what is there into p, without waiting and, when p is of 32 KiB
// or less, without telling the scheduler. 0 and no error is the end of the
// peer's half. The descriptor must be a non-blocking socket's.
func RawRecv(fd int, p []byte) (int, syscall.Errno) { return sysRecv(uintptr(fd), p, 0) }

// RawSend sends what the socket takes of p, as RawRecv receives.
func RawSend(fd int, p []byte) (int, syscall.Errno) { return sysSend(uintptr(fd), p, 0) }

// RawSendLast is RawSend of bytes that the end of this half, or the close, is to
// follow at once: they leave in one packet with it.
func RawSendLast(fd int, p []byte) (int, syscall.Errno) {
	return sysSend(uintptr(fd), p, unix.MSG_MORE)
}

// RawReset closes a socket so that the peer sees a reset and cannot take what it
// got for whole. Unsent bytes are dropped.
func RawReset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // fails on unix sockets, which have no reset
	RawClose(fd)
}

// RawClose closes a descriptor without telling the scheduler: a socket that does
// not linger does not wait.
func RawClose(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// RawUnsent returns how many bytes the peer of a socket has not acknowledged.
func RawUnsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// TakePipe returns an empty pipe for a splice of one's own, or nil when there is
// none to be had: no descriptor is left, or the user's share of pipe memory is
// used up, so that a pipe would hold too little to be worth it. It is to be given
// back while it is empty, and closed else.
func TakePipe() *Pipe {
	p := takePipe()
	if p != nil && p.size < pipeLeast {
		p.close()
		return nil
	}
	return p
}

// pipeLeast is the smallest pipe that splices faster than bytes are copied.
const pipeLeast = 32 << 10

// Size is how many bytes fit in, at most.
func (p *Pipe) Size() int { return p.size }

// Fill takes up to n bytes from a socket, without waiting; 0 and no error is the
// end of the peer's half.
func (p *Pipe) Fill(from, n int) (int, syscall.Errno) {
	return sysSplice(uintptr(from), uintptr(p.w), n)
}

// Drain gives up to n bytes to a socket, without waiting.
func (p *Pipe) Drain(to, n int) (int, syscall.Errno) { return sysSplice(uintptr(p.r), uintptr(to), n) }

// Give gives the pipe back, which must be empty.
func (p *Pipe) Give() { givePipe(p) }

// Close closes the pipe, and drops what is in it.
func (p *Pipe) Close() { p.close() }

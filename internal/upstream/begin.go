// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
)

// Begun is a socket that connects, see Begin. It belongs to one goroutine at a
// time; Cut may be asked by any.
type Begun struct {
	FD int             // the caller's, to be closed by it before it calls Closed
	By balance.Instant // when it has to be connected; 0: whenever

	t    *Target
	addr netip.AddrPort
	conn Conn // as the Target knows it
	// itself says that the socket was connected to itself, see toItself.
	itself bool
}

// Begin starts to connect for a session as Open does, and does not wait: the
// socket is the caller's, who waits until it is writable, or its time is over, and
// then calls Reached.
// end is called, from any goroutine, when Cut wants the session to end; it must
// not wait. It reports false when only Open can say why there is no connection,
// or make it: a name has to be asked for, there is TLS, something is scarce.
func (t *Target) Begin(now, deadline balance.Instant, end func()) (*Begun, bool) {
	o := t.set.Load()
	if t.network != "tcp" || len(t.fixed) != 1 || o.tls != nil || len(o.Bind) > 0 || t.fixed[0].Zone() != "" {
		return nil, false
	}
	if n := t.open.Add(1); o.MaxConns > 0 && n > int64(o.MaxConns) {
		t.open.Add(-1)
		return nil, false
	}
	b := &Begun{FD: -1, By: earlier(deadline, now, o.ConnectTimeout), t: t, addr: netip.AddrPortFrom(t.fixed[0], t.port), conn: Conn{bare: end}}
	if !b.connect(o) || !t.joined(&b.conn) {
		if b.FD >= 0 {
			_ = unix.Close(b.FD)
		}
		t.open.Add(-1)
		return nil, false
	}
	return b, true
}

// connect makes the socket and starts.
func (b *Begun) connect(o *settings) bool {
	family := unix.AF_INET6
	if b.addr.Addr().Is4() {
		family = unix.AF_INET
	}
	// None of these waits, but connecting to a neighbour takes longer than the
	// scheduler leaves a processor to who is in a call that it was told of: it would
	// be taken away and had to be found again, for most sessions.
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if errno != 0 {
		return false
	}
	b.FD = int(fd)
	if b.t.files.Reserved(b.FD) {
		return false
	}
	on := int32(1)
	_, _, errno = unix.RawSyscall6(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, uintptr(unsafe.Pointer(&on)), unsafe.Sizeof(on), 0)
	if errno != 0 {
		return false
	}
	if family == unix.AF_INET {
		to := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: networkOrder(b.addr.Port()), Addr: b.addr.Addr().As4()}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unix.SizeofSockaddrInet4)
	} else {
		to := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: networkOrder(b.addr.Port()), Addr: b.addr.Addr().As16()}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unix.SizeofSockaddrInet6)
	}
	return errno == 0 || errno == unix.EINPROGRESS
}

// networkOrder returns a port as it is to be in memory.
func networkOrder(port uint16) (out uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&out))[:], port)
	return out
}

// Reached notes what came of connecting: 0, or the error that the socket has.
// late says that there was no answer in time. It returns the *DialError that
// Open would return, and nil when the backend is reached.
func (b *Begun) Reached(errno syscall.Errno, late bool) error {
	switch {
	case b.conn.CutShort():
		b.t.failed.Add(1)
		return &DialError{Kind: DrainOver, Addr: b.addr.String(), Err: errDrainOver}
	case late:
		b.t.failed.Add(1)
		return &DialError{Kind: Timeout, Addr: b.addr.String(), Err: os.ErrDeadlineExceeded}
	case errno != 0:
		b.t.failed.Add(1)
		return &DialError{Kind: kindOf(errno), Addr: b.addr.String(), Err: os.NewSyscallError("connect", errno)}
	case b.itself || b.toItself():
		b.itself = true // may be asked again when the socket is closed
		b.t.failed.Add(1)
		return &DialError{Kind: kindOf(syscall.ECONNREFUSED), Addr: b.addr.String(), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	b.t.fresh.Add(1)
	return nil
}

// toItself reports that the socket is connected to itself: on this machine the kernel may
// choose the very port that nobody listens on as the other end, and the attempt then meets
// its own SYN (RFC 9293, section 3.5). A net.Dialer looks for that, too.
func (b *Begun) toItself() bool {
	if b.addr.Port() < firstLocalPort() {
		return false
	}
	// A call that the scheduler is told of would cost a tenth of a short session.
	return netconn.RawLocal(b.FD) == netip.AddrPortFrom(b.addr.Addr().Unmap(), b.addr.Port())
}

// firstLocalPort is the first of those that the kernel chooses from; 0: not known.
var firstLocalPort = sync.OnceValue(func() (first uint16) {
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first) // 0 has every port looked at
	}
	return first
})

// Lasting sets what tells a peer that is gone from one that is silent
// (Options.UserTimeout, Options.Probe): options that matter after seconds, and that
// most sessions end before. It is to be called within some.
func (b *Begun) Lasting() {
	_ = b.t.set.Load().socket(b.FD) // an option less is no reason to end a session
}

// Cut reports that Target.Cut has asked the session to end.
func (b *Begun) Cut() bool { return b.conn.CutShort() }

// Closed gives back what the connection took, once its socket is closed. Call it
// once.
func (b *Begun) Closed() { b.t.left(&b.conn) }

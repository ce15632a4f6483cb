// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
)

// Begun is a socket that connects, see Begin. It belongs to one goroutine at a
// time; Cut may be asked by any.
type Begun struct {
	FD int             // the caller's, to be closed by it before it calls Closed
	By balance.Instant // when it has to be connected; 0: whenever

	t    *Target
	addr netip.AddrPort
	conn Conn // as the Target knows it
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
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return false
	}
	b.FD = fd
	if b.t.files.Reserved(fd) || unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) != nil {
		return false
	}
	var to unix.Sockaddr
	if family == unix.AF_INET {
		to = &unix.SockaddrInet4{Port: int(b.addr.Port()), Addr: b.addr.Addr().As4()}
	} else {
		to = &unix.SockaddrInet6{Port: int(b.addr.Port()), Addr: b.addr.Addr().As16()}
	}
	err = unix.Connect(fd, to)
	return err == nil || errors.Is(err, unix.EINPROGRESS)
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
	}
	b.t.fresh.Add(1)
	return nil
}

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

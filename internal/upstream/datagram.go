// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// unresolvedError is a name of which no address is known yet; it is closed when that
// has changed, or will not.
type unresolvedError <-chan struct{}

// Error implements error.
func (unresolvedError) Error() string { return "no name server has answered yet" }

// Unresolved returns what is closed when the name is answered for, or is not, that an
// error of OpenDatagrams is about; nil: it is about something else.
func Unresolved(err error) <-chan struct{} {
	var u unresolvedError
	if errors.As(err, &u) {
		return u
	}
	return nil
}

// OpenDatagrams is Open for datagrams: it returns the descriptor of a non-blocking
// socket of UDP that is connected to the backend, so that what others send to it is
// not received and what the network says of the backend is. It does not wait; a name
// whose first answer has not come is a DialError of the kind DNS, and is asked for
// meanwhile. Nothing is sent: that the backend is there is known with its first
// datagram. The socket is closed by CloseDatagrams.
func (t *Target) OpenDatagrams() (fd int, err error) {
	o := t.set.Load()
	fail := func(k DialErrorKind, err error) (int, error) {
		t.open.Add(-1)
		t.failed.Add(1)
		return -1, &DialError{Kind: k, Addr: o.Address, Err: err}
	}
	if n := t.open.Add(1); o.MaxConns > 0 && n > int64(o.MaxConns) {
		return fail(Limit, errMaxConns)
	}
	if t.cutOff() {
		return fail(DrainOver, errDrainOver)
	}
	to, err := t.nearest()
	if err != nil {
		return fail(DNS, err)
	}
	fd, err = t.datagramSocket(o, to)
	if errors.Is(err, syscall.EMFILE) && t.relieved(o) {
		fd, err = t.datagramSocket(o, to)
	}
	switch {
	case errors.Is(err, errNoSource), errors.Is(err, syscall.EAGAIN): // no port is left to be bound
		return fail(LocalPorts, err)
	case err != nil:
		return fail(kindOf(err), err)
	case t.files.Reserved(fd) && !t.relieved(o):
		netconn.RawClose(fd)
		return fail(LocalFiles, errReserved)
	}
	t.fresh.Add(1)
	return fd, nil
}

// CloseDatagrams closes a descriptor that OpenDatagrams returned.
func (t *Target) CloseDatagrams(fd int) {
	netconn.RawClose(fd)
	t.open.Add(-1)
}

// AdoptDatagrams counts a descriptor that another process opened and that this one
// closes by CloseDatagrams.
func (t *Target) AdoptDatagrams() { t.open.Add(1) }

// cutOff reports that the backend's drain is over.
func (t *Target) cutOff() bool {
	if !t.unkept.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// nearest returns the address to send to, without waiting.
func (t *Target) nearest() (netip.Addr, error) {
	if t.host == "" {
		if len(t.fixed) == 0 {
			return netip.Addr{}, fmt.Errorf("%q is no address", t.set.Load().Address)
		}
		return t.fixed[0], nil
	}
	if addrs := t.names.known(t.host, clock.Now); len(addrs) > 0 {
		return addrs[0], nil
	}
	now := make(chan struct{})
	close(now)
	if addrs, err := t.names.lookup(t.host, 0, now); err == nil {
		return addrs[0], nil
	} else if !errors.Is(err, errAborted) {
		return netip.Addr{}, err
	}
	return netip.Addr{}, unresolvedError(t.names.pending(t.host))
}

// datagramSocket makes a socket that is connected to an address.
func (t *Target) datagramSocket(o *settings, to netip.Addr) (int, error) {
	family := unix.AF_INET6
	if to.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = t.bindSource(fd, o.Bind, to); err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, sockaddr(to, t.port)))
	}
	if err != nil {
		netconn.RawClose(fd)
		return -1, err
	}
	return fd, nil
}

func (t *Target) bindSource(fd int, from []netip.Addr, to netip.Addr) error {
	if len(from) == 0 {
		return nil
	}
	src, ok := t.source(from, to)
	if !ok {
		return errNoSource
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(src, 0)))
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	out := &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
	if z := a.Zone(); z != "" {
		out.ZoneId = zoneIndex(z)
	}
	return out
}

// zoneIndex is the interface that a scoped address is behind; 0: there is none.
func zoneIndex(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was sent on it
	ifr, err := unix.NewIfreq(zone)
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr) != nil {
		return 0
	}
	return ifr.Uint32()
}

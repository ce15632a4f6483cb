// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bindPackets opens n sockets of one address. That nobody else has it is found out
// without SO_REUSEPORT first: with it the kernel would let another process of the
// same user share the address, and its clients. Called under mu, or on a set of
// one's own.
func (s *Sockets) bindPackets(bind string, n int) (fds []int, err error) {
	a, err := net.ResolveUDPAddr(packetNetwork(bind), bind)
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", bind, err)
	}
	fail := func(err error) ([]int, error) {
		closeAll(fds)
		return nil, fmt.Errorf("bind %s: %w", bind, &net.OpError{Op: "listen", Net: packetNetwork(bind), Addr: a, Err: err})
	}
	first, err := bindPacket(a, false)
	shared := errors.Is(err, syscall.EADDRINUSE) && s.ownPort(a.Port)
	if err != nil && !shared {
		return fail(err)
	}
	if err == nil && n <= 1 {
		return []int{first}, nil
	}
	if err == nil {
		sa, serr := unix.Getsockname(first)
		if got, ok := packetAddr(sa); serr == nil && ok {
			a.Port = int(got.Port()) // it may have been 0
		}
		closeAll([]int{first})
	}
	for range max(n, 1) {
		fd, err := bindPacket(a, true)
		if err != nil {
			return fail(err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// ownPort reports that sockets of this set have a port, at another address, as they
// do when a bind becomes wider or narrower.
func (s *Sockets) ownPort(port int) bool {
	own := false
	for _, o := range s.packets {
		if o.addr.Port != port {
			continue
		}
		own = true
		for _, fd := range o.group.fds {
			_ = reusePort(fd, true) // where it cannot be set the bind says so
		}
	}
	return own
}

func bindPacket(a *net.UDPAddr, shared bool) (int, error) {
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	any := a.IP == nil || a.IP.Equal(net.IPv6unspecified)
	if ip := a.IP.To4(); ip != nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}
	} else {
		six := &unix.SockaddrInet6{Port: a.Port}
		copy(six.Addr[:], a.IP)
		if i, err := net.InterfaceByName(a.Zone); err == nil {
			six.ZoneId = uint32(i.Index)
		}
		to = six
	}
	kind := unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(family, kind, 0)
	if errors.Is(err, syscall.EAFNOSUPPORT) && a.IP == nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port} // all addresses are those of IPv4 here
		fd, err = unix.Socket(family, kind, 0)
	}
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET6 {
		only := 1
		if any {
			only = 0
		}
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only))
	}
	if shared && err == nil {
		err = os.NewSyscallError("setsockopt", reusePort(fd, true))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err != nil {
		closeAll([]int{fd})
		return -1, err
	}
	return fd, nil
}

// packetSocket returns a duplicate of a socket for datagrams; ok is false for
// others.
func packetSocket(f *os.File) (fd int, ok bool) {
	err := control(f, func(raw int) error {
		kind, err := unix.GetsockoptInt(raw, unix.SOL_SOCKET, unix.SO_TYPE)
		domain, derr := unix.GetsockoptInt(raw, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || derr != nil || kind != unix.SOCK_DGRAM || domain == unix.AF_UNIX {
			return errors.Join(err, derr)
		}
		fd, err = unix.FcntlInt(uintptr(raw), unix.F_DUPFD_CLOEXEC, 0)
		ok = err == nil
		return err
	})
	return fd, ok && err == nil
}

// socketDrops is what sk_drops of a socket is: field 8 of SO_MEMINFO (Linux 4.12).
func socketDrops(fd int) uint32 {
	var info [9]uint32
	n := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0
	}
	return info[8]
}

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Check says why Take (private: TakePrivate; of a PacketsBind: TakePackets) would fail
// for a bind, in the same words, and leaves everything as it is: no client finds a socket that is gone
// the next moment, as nothing listens.
func (s *Sockets) Check(bind string, private bool) error {
	if where, ok := strings.CutPrefix(bind, packetsPrefix); ok {
		return s.checkPackets(where)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(bind) != nil {
		return nil
	}
	if name, ok := strings.CutPrefix(bind, systemdPrefix); ok {
		return notPassed(name)
	}
	path, isUnix := strings.CutPrefix(bind, "unix:")
	var err error
	switch {
	case isUnix && strings.HasPrefix(path, "@"):
		return nil
	case isUnix && private:
		err = checkPrivate(path)
	case isUnix:
		return checkUnix(path)
	default:
		if err = tryBind(bind, false); errors.Is(err, syscall.EADDRINUSE) {
			s.overlapping(bind, func() { err = tryBind(bind, true) })
		}
	}
	if err != nil {
		return fmt.Errorf("bind %s: %w", bind, err)
	}
	return nil
}

func notPassed(name string) error {
	return fmt.Errorf("bind %s%s: systemd passed no socket of that name: the socket unit needs FileDescriptorName=%s, "+
		"its service must have started this process, and the unit must be active", systemdPrefix, name, name)
}

func checkUnix(path string) error {
	if path == "" {
		return errors.New("bind unix: the path is empty")
	}
	if err := free(path); err != nil {
		return err
	}
	var no error
	if _, err := os.Lstat(path); err == nil && !abandoned(path) {
		no = syscall.EADDRINUSE
	} else if err := unix.Access(filepath.Dir(path), unix.W_OK|unix.X_OK); err != nil {
		no = err
	}
	if no == nil {
		return nil
	}
	return fmt.Errorf("bind unix:%s: %w", path, notListening("unix", &net.UnixAddr{Name: path, Net: "unix"}, no))
}

func checkPrivate(path string) error {
	if path == "" {
		return errors.New("the path is empty")
	}
	if err := free(path); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil && !abandoned(path) {
		return syscall.EADDRINUSE
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir-")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

// tryBind binds a TCP address for a moment without listening.
func tryBind(where string, shared bool) error {
	a, err := net.ResolveTCPAddr(network(where), where)
	if err != nil {
		return &net.OpError{Op: "listen", Net: network(where), Err: err}
	}
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
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
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, syscall.EAFNOSUPPORT) && a.IP == nil {
		return nil // all addresses are those of IPv4 here, and something has bound them before
	}
	if err != nil {
		return notListening(network(where), a, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is held by it
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if family == unix.AF_INET6 && err == nil {
		v6only := 1
		if a.IP == nil || a.IP.IsUnspecified() {
			v6only = 0
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only)
	}
	if shared && err == nil {
		err = reusePort(fd, true)
	}
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err != nil {
		return notListening(network(where), a, err)
	}
	return nil
}

// notListening is the error that net.Listen returns.
func notListening(network string, a net.Addr, err error) error {
	return &net.OpError{Op: "listen", Net: network, Addr: a, Err: os.NewSyscallError("bind", err)}
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SetUserTimeout bounds how long sent bytes may stay unacknowledged before the
// kernel gives the connection up (TCP_USER_TIMEOUT); 0 is the kernel's default.
// It does nothing on sockets other than TCP.
func (c *Conn) SetUserTimeout(d time.Duration) error {
	if _, ok := c.nc.(*net.TCPConn); !ok {
		return nil
	}
	var set error
	err := c.raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d/time.Millisecond))
	})
	if err == nil {
		err = set
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}

// SetKeepAlive sets the probes for a silent peer. It does nothing on sockets
// other than TCP.
func (c *Conn) SetKeepAlive(cfg net.KeepAliveConfig) error {
	t, ok := c.nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := t.SetKeepAliveConfig(cfg); err != nil {
		return fmt.Errorf("set keepalive: %w", err)
	}
	return nil
}

// Descriptor returns the number of a socket's descriptor, -1 when it has none.
// It is the lowest that was free, so a fresh one tells how many are taken.
func Descriptor(c syscall.Conn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1
	}
	n := -1
	_ = raw.Control(func(fd uintptr) { n = int(fd) }) // on a closed socket it stays -1
	return n
}

// FileLimit returns how many descriptors the process may have (RLIMIT_NOFILE);
// 0 when that is unknown or not bounded.
func FileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 0
	}
	return int(l.Cur)
}

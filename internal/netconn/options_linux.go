// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"fmt"
	"net"
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

// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// portRange is the ports that the kernel chooses from for a connection's own
// end, both ends included.
type portRange struct{ from, to uint16 }

func (r portRange) has(port uint16) bool { return port >= r.from && port <= r.to }

// localPorts returns the machine's range; when it cannot be read, all ports.
func localPorts() portRange {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	var r portRange
	if err == nil {
		_, err = fmt.Sscan(string(text), &r.from, &r.to)
	}
	if err != nil {
		return portRange{0, 65535}
	}
	return r
}

// toItself reports whether a socket is connected to itself: on this machine
// the kernel may choose the very port that nobody listens on as the other end,
// and the attempt then meets its own SYN (RFC 9293 section 3.5, simultaneous
// open).
func toItself(fd int, to netip.AddrPort) bool {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) == to
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)) == to
	}
	return false
}

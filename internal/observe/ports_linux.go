// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// usedPorts counts, for each destination, the local ports in [low, high] that
// TCP sockets towards it hold in this network namespace, those in TIME_WAIT
// included: a new connection there cannot have them. It asks the kernel over
// sock_diag, because /proc/net/tcp costs a line of text per socket.
func usedPorts(wanted map[netip.AddrPort]bool, low, high uint16) (map[netip.AddrPort]int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only read from
	// A scrape must not hang on it.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	type socket struct {
		local uint16
		to    netip.AddrPort
	}
	seen := make(map[socket]bool) // a port held from two source addresses counts once
	used := make(map[netip.AddrPort]int)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := diagDump(fd, family, func(local uint16, to netip.AddrPort) {
			if wanted[to] && local >= low && local <= high && !seen[socket{local, to}] {
				seen[socket{local, to}] = true
				used[to]++
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return used, nil
}

// The layout of linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	diagRequestLen   = 56
	diagMessageLen   = 72
	tcpListen        = 10
)

// diagDump calls f for every TCP socket of the family that has a peer.
func diagDump(fd int, family uint8, f func(local uint16, to netip.AddrPort)) error {
	req := make([]byte, unix.NLMSG_HDRLEN+diagRequestLen)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := req[unix.NLMSG_HDRLEN:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 0xfff&^(1<<tcpListen|1)) // states: all but LISTEN
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("sock_diag: %w", err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(m.Data) >= 4 {
					if e := int32(binary.NativeEndian.Uint32(m.Data)); e != 0 {
						return fmt.Errorf("sock_diag: %w", syscall.Errno(-e))
					}
				}
				return errors.New("sock_diag: unexpected answer")
			default:
				if local, to, ok := diagPeer(m.Data); ok {
					f(local, to)
				}
			}
		}
	}
}

// diagPeer reads a struct inet_diag_msg: family, state, timer, retrans, then
// struct inet_diag_sockid: ports and addresses in network order.
func diagPeer(d []byte) (local uint16, to netip.AddrPort, ok bool) {
	if len(d) < diagMessageLen {
		return 0, to, false
	}
	local = binary.BigEndian.Uint16(d[4:])
	port := binary.BigEndian.Uint16(d[6:])
	var addr netip.Addr
	if d[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(d[24:28]))
	} else {
		addr = netip.AddrFrom16([16]byte(d[24:40])).Unmap()
	}
	return local, netip.AddrPortFrom(addr, port), port != 0
}

// portRange reads which local ports connections may get, and how many of them
// are reserved.
func portRange() (low, high uint16, reserved int, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, 0, err
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil || high < low {
		return 0, 0, 0, fmt.Errorf("ip_local_port_range: %q", text)
	}
	// Missing in old kernels and some sandboxes: then nothing is reserved.
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports"); err == nil {
		reserved = reservedWithin(string(text), low, high)
	}
	return low, high, reserved, nil
}

// reservedWithin counts the ports of a list like "8080,9000-9010" in a range.
func reservedWithin(list string, low, high uint16) int {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.ParseUint(to, 10, 16); err != nil {
				continue
			}
		}
		a, b = max(a, uint64(low)), min(b, uint64(high))
		if a <= b {
			n += int(b - a + 1)
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RawLocal returns the own address of a socket, without telling the scheduler; the zero
// AddrPort where it has none of the internet.
func RawLocal(fd int) netip.AddrPort {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	if _, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return RawAddrPort(&sa)
}

// RawAddrPort reads an address that the kernel wrote; one of version 4 in version 6 is
// one of version 4. The zero AddrPort is one of another family.
func RawAddrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), hostOrder(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		a := netip.AddrFrom16(in.Addr).Unmap()
		if in.Scope_id != 0 && a.Is6() {
			a = a.WithZone(zoneOf(int(in.Scope_id)))
		}
		return netip.AddrPortFrom(a, hostOrder(in.Port))
	default:
		return netip.AddrPort{}
	}
}

// hostOrder turns a port as it is in memory into a number.
func hostOrder(port uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&port))[:])
}

// zoneOf names an interface, which only link-local addresses need.
func zoneOf(index int) string {
	ifi, err := net.InterfaceByIndex(index)
	if err != nil {
		return ""
	}
	return ifi.Name
}

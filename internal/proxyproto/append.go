// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// Append appends the header in version 1 or 2 and returns the extended slice. It
// allocates nothing beyond it. Addresses of two families are both written as
// IPv6. Version 1 leaves out what it has no words for: transports other than
// TCP are UNKNOWN, TLVs are dropped. TLVs that would make a header of version 2
// longer than MaxV2 are dropped, too; a checksum among them is made anew.
func (h *Header) Append(dst []byte, version int) []byte {
	src, dest := h.Source, h.Destination
	six := !src.Addr().Unmap().Is4() || !dest.Addr().Unmap().Is4()
	known := src.IsValid() && dest.IsValid()
	if version == 1 {
		if !known || h.Transport == Datagram {
			return append(dst, "PROXY UNKNOWN\r\n"...)
		}
		return appendV1(dst, src, dest, six)
	}
	return h.appendV2(dst, known, six)
}

// appendV1 writes the line of two known addresses.
func appendV1(dst []byte, src, dest netip.AddrPort, six bool) []byte {
	if six {
		dst = append(dst, "PROXY TCP6 "...)
	} else {
		dst = append(dst, "PROXY TCP4 "...)
	}
	for _, a := range [...]netip.Addr{src.Addr(), dest.Addr()} {
		if a = a.Unmap().WithZone(""); six {
			a = netip.AddrFrom16(a.As16()) // the form ::ffff:192.0.2.1 of one that is IPv4
		}
		dst = append(a.AppendTo(dst), ' ')
	}
	dst = append(strconv.AppendUint(dst, uint64(src.Port()), 10), ' ')
	return append(strconv.AppendUint(dst, uint64(dest.Port()), 10), "\r\n"...)
}

func (h *Header) appendV2(dst []byte, known, six bool) []byte {
	begin := len(dst)
	dst = append(dst, signature...)
	if h.Local {
		return append(dst, 0x20, 0, 0, 0)
	}
	dst = append(dst, 0x21, 0, 0, 0)
	if known {
		transport := max(h.Transport, Stream)
		src, dest := h.Source.Addr().Unmap(), h.Destination.Addr().Unmap()
		if six {
			a, b := src.As16(), dest.As16()
			dst[begin+13] = 0x20 | byte(transport)
			dst = append(append(dst, a[:]...), b[:]...)
		} else {
			a, b := src.As4(), dest.As4()
			dst[begin+13] = 0x10 | byte(transport)
			dst = append(append(dst, a[:]...), b[:]...)
		}
		dst = binary.BigEndian.AppendUint16(dst, h.Source.Port())
		dst = binary.BigEndian.AppendUint16(dst, h.Destination.Port())
	}
	bare := len(dst)
	for rest := h.TLVs; ; {
		kind, value, next, ok := nextTLV(rest)
		if !ok {
			break
		}
		if kind != TypeCRC32C {
			dst = append(dst, rest[:tlvHead+len(value)]...)
		}
		rest = next
	}
	sum := 0
	if h.Checksum {
		dst = append(dst, TypeCRC32C, 0, 4, 0, 0, 0, 0)
		sum = len(dst) - begin - 4
	}
	if len(dst)-begin > MaxV2 {
		dst, sum = dst[:bare], 0
	}
	all := dst[begin:]
	binary.BigEndian.PutUint16(all[14:], uint16(len(all)-headV2))
	if sum != 0 {
		binary.BigEndian.PutUint32(all[sum:], checksum(all, sum))
	}
	return dst
}

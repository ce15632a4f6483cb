// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// signature begins version 2. It was chosen to be the beginning of nothing else.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// word begins version 1.
const word = "PROXY "

const (
	headV2    = 16 // signature, version and command, family and transport, length
	maxUnique = 128
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      = make([]byte, 4) // never written: one on the stack would escape into crc32
)

// Parse reads the header that b begins with and returns its length, and OK. Else
// it says why not: Short where more bytes can make one of it, None where b is
// something else, the sender's mistake otherwise. The answer never depends on how many
// bytes follow the header. It allocates nothing but to read IPv6 of version 1.
func Parse(b []byte) (h Header, n int, why Fault) {
	switch {
	case begins(b, signature):
		return parseV2(b)
	case begins(b, word):
		return parseV1(b)
	}
	return Header{}, 0, None
}

// begins reports whether b begins with s, or is itself a beginning of s.
func begins(b []byte, s string) bool {
	n := min(len(b), len(s))
	return string(b[:n]) == s[:n]
}

// parseV1 reads PROXY SP protocol SP source SP destination SP port SP port CR LF.
func parseV1(b []byte) (h Header, n int, why Fault) {
	line := b[:min(len(b), MaxV1)]
	end := bytes.IndexAny(line, "\r\n")
	switch {
	case end >= 0 && line[end] == '\n', end >= 0 && end+1 < len(line) && line[end+1] != '\n':
		return Header{}, 0, Malformed // one of the two without the other
	case end < 0 || end+1 == len(line):
		switch {
		case len(line) > len(word) && !couldBe(line[len(word):], end >= 0):
			return Header{}, 0, Malformed
		case len(b) >= MaxV1:
			return Header{}, 0, TooLong
		}
		return Header{}, 0, Short
	}
	h, ok := fieldsV1(line[len(word):end])
	if !ok {
		return Header{}, 0, Malformed
	}
	return h, end + 2, OK
}

// couldBe reports whether what is behind the first word may still become right.
// A line whose CR is there has its protocol complete.
func couldBe(b []byte, whole bool) bool {
	if whole {
		b = b[:len(b)-1]
		if string(b) == "UNKNOWN" {
			return true
		}
	}
	for _, p := range [...]string{"TCP4 ", "TCP6 ", "UNKNOWN "} {
		if begins(b, p) && (!whole || len(b) >= len(p)) {
			return true
		}
	}
	return false
}

// fieldsV1 reads the line between the first word and CR LF.
func fieldsV1(b []byte) (h Header, ok bool) {
	proto, rest, more := bytes.Cut(b, space)
	h.Version = 1
	parse := parseIPv4
	switch string(proto) {
	case "UNKNOWN":
		return h, true // whatever follows is ignored
	case "TCP4":
	case "TCP6":
		parse = parseIPv6
	default:
		return Header{}, false
	}
	var f [4][]byte
	for i := range f {
		if !more {
			return Header{}, false
		}
		f[i], rest, more = bytes.Cut(rest, space)
	}
	src, ok1 := parse(f[0])
	dst, ok2 := parse(f[1])
	from, ok3 := decimal(f[2], 1<<16-1)
	to, ok4 := decimal(f[3], 1<<16-1)
	if more || !ok1 || !ok2 || !ok3 || !ok4 {
		return Header{}, false
	}
	h.Transport = Stream
	h.Source, h.Destination = netip.AddrPortFrom(src, uint16(from)), netip.AddrPortFrom(dst, uint16(to))
	return h, true
}

var space = []byte{' '}

// decimal reads a number up to most without sign or leading zeros.
func decimal(b []byte, most int) (n int, ok bool) {
	if len(b) == 0 || len(b) > 5 || len(b) > 1 && b[0] == '0' {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= most
}

func parseIPv4(b []byte) (netip.Addr, bool) {
	var a [4]byte
	for i := range a {
		part, rest, more := bytes.Cut(b, dot)
		n, ok := decimal(part, 255)
		if !ok || more != (i < len(a)-1) {
			return netip.Addr{}, false
		}
		a[i], b = byte(n), rest
	}
	return netip.AddrFrom4(a), true
}

var dot = []byte{'.'}

func parseIPv6(b []byte) (netip.Addr, bool) {
	if bytes.IndexByte(b, ':') < 0 || bytes.IndexByte(b, '%') >= 0 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(string(b))
	return a.Unmap(), err == nil
}

// parseV2 reads the binary header.
func parseV2(b []byte) (h Header, n int, why Fault) {
	h.Version = 2
	if len(b) > 12 && b[12]>>4 != 2 {
		return Header{}, 0, Version
	}
	if len(b) > 12 && b[12]&15 > 1 || len(b) > 13 && b[12]&15 == 1 && (b[13]>>4 > 3 || b[13]&15 > 2) {
		return Header{}, 0, Malformed
	}
	if len(b) < headV2 {
		return Header{}, 0, Short
	}
	n = headV2 + int(binary.BigEndian.Uint16(b[14:]))
	h.Local = b[12]&15 == 0
	size := blockSize(b[13])
	switch {
	case n > MaxV2:
		return Header{}, 0, TooLong
	case !h.Local && n-headV2 < size:
		return Header{}, 0, Malformed
	case len(b) < n:
		return Header{}, 0, Short
	case h.Local:
		return h, n, OK // the block is discarded, whatever family it names
	}
	if b[13]>>4 != 0 && b[13]&15 != 0 {
		h.Transport = Transport(b[13] & 15)
		h.endpoints(b[headV2:], size)
	}
	if why := h.readTLVs(b[:n], headV2+size, h.Transport != Unspec); why != OK {
		return Header{}, 0, why
	}
	return h, n, OK
}

// blockSize is how many bytes the addresses of a family have over a transport.
// Where either is not said nothing is known of them.
func blockSize(family byte) int {
	if family&15 == 0 {
		return 0
	}
	switch family >> 4 {
	case 1:
		return 2*4 + 2*2
	case 2:
		return 2*16 + 2*2
	case 3:
		return 2 * 108
	}
	return 0
}

// endpoints reads the addresses; paths of UNIX sockets name nobody.
func (h *Header) endpoints(b []byte, size int) {
	var src, dst netip.Addr
	switch size {
	case 12:
		src, dst = netip.AddrFrom4([4]byte(b[:4])), netip.AddrFrom4([4]byte(b[4:8]))
	case 36:
		src, dst = netip.AddrFrom16([16]byte(b[:16])).Unmap(), netip.AddrFrom16([16]byte(b[16:32])).Unmap()
	default:
		return
	}
	h.Source = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b[size-4:]))
	h.Destination = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[size-2:]))
}

// readTLVs holds what follows the addresses to its form, and the checksum to the
// whole header. Where no addresses are known they may be what follows, so that
// bytes that are no TLVs are ignored there.
func (h *Header) readTLVs(b []byte, at int, strict bool) Fault {
	sum := 0 // where the checksum's value is
	for rest := b[at:]; len(rest) > 0; {
		kind, value, next, ok := nextTLV(rest)
		switch {
		case !ok && strict:
			return Malformed
		case !ok:
			return OK
		case kind == TypeCRC32C && (len(value) != 4 || sum != 0), kind == TypeUniqueID && len(value) > maxUnique:
			if strict {
				return Malformed
			}
			return OK
		case kind == TypeCRC32C:
			sum = len(b) - len(rest) + tlvHead
		}
		rest = next
	}
	if sum != 0 {
		h.Checksum = true
		if binary.BigEndian.Uint32(b[sum:]) != checksum(b, sum) {
			return Checksum
		}
	}
	if at < len(b) {
		h.TLVs = b[at:]
	}
	return OK
}

// checksum is the CRC32C of a header whose checksum, at a place, counts as zero.
func checksum(b []byte, at int) uint32 {
	c := crc32.Update(0, castagnoli, b[:at])
	c = crc32.Update(c, castagnoli, zeros)
	return crc32.Update(c, castagnoli, b[at+4:])
}

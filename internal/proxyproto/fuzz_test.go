// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"bytes"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// FuzzParse holds Parse to properties that do not depend on its code: a header
// is decided upon with its last byte and stays the same with more, version 1 is
// what a regular expression says, what is read can be written and is read as the
// same, and Guard refuses whatever is a header.
func FuzzParse(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h, n, why := Parse(in)
		if n < 0 || n > len(in) || n > MaxV2 || (why == OK) != (n >= MinLen) {
			t.Fatalf("%q: %d, %v", in, n, why)
		}
		checkPrefixes(t, in, n, why)
		if oracle, length := naiveV1(in); bytes.HasPrefix(in, []byte(word)) {
			if (why == OK) != (length > 0) {
				t.Fatalf("%q: %v, and the oracle says %d bytes", in, why, length)
			}
			if why == OK && (n != length || h.Source != oracle.Source || h.Destination != oracle.Destination) {
				t.Fatalf("%q: %+v %d, and the oracle %+v %d", in, h, n, oracle, length)
			}
		}
		if why != OK {
			return
		}
		var g Guard
		if !g.Forged(in) {
			t.Fatalf("%q is a header, and passes", in)
		}
		out := h.Append(nil, int(h.Version))
		again, m, why := Parse(out)
		if why != OK || m != len(out) || again.Source != h.Source || again.Destination != h.Destination || again.Local != h.Local {
			t.Fatalf("%q: %+v is written as %q, which is %+v, %d, %v", in, h, out, again, m, why)
		}
	})
}

var lineV1 = regexp.MustCompile(`^PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP([46]) ([0-9a-fA-F.:]+) ([0-9a-fA-F.:]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4}))\r\n`)

// naiveV1 reads version 1 by a regular expression.
func naiveV1(in []byte) (h Header, length int) {
	m := lineV1.FindStringSubmatch(string(in))
	if m == nil || len(m[0]) > MaxV1 {
		return h, 0
	}
	if m[1] == "" {
		return h, len(m[0])
	}
	var ends [2]netip.AddrPort
	for i := range ends {
		a, err := netip.ParseAddr(m[2+i])
		port, err2 := strconv.ParseUint(m[4+i], 10, 16)
		if err != nil || err2 != nil || strings.Contains(m[2+i], ":") != (m[1] == "6") {
			return h, 0
		}
		ends[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	h.Source, h.Destination = ends[0], ends[1]
	return h, len(m[0])
}

// FuzzAppend: whatever endpoints are written are read again.
func FuzzAppend(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}, uint16(1), uint16(65535), []byte{4, 0, 0}, true)
	f.Add(bytes.Repeat([]byte{0xfe}, 16), []byte{192, 0, 2, 2}, uint16(0), uint16(1), []byte{5, 0, 200}, false)
	f.Fuzz(func(t *testing.T, src, dst []byte, from, to uint16, tlvs []byte, sum bool) {
		a, ok1 := netip.AddrFromSlice(src)
		b, ok2 := netip.AddrFromSlice(dst)
		if !ok1 || !ok2 {
			return
		}
		h := Header{Source: netip.AddrPortFrom(a, from), Destination: netip.AddrPortFrom(b, to), Transport: Stream, TLVs: tlvs, Checksum: sum}
		for version := 1; version <= 2; version++ {
			out := h.Append(nil, version)
			got, n, why := Parse(out)
			if why == Malformed && version == 2 && len(tlvs) >= tlvHead {
				continue // a unique id that is too long
			}
			if why != OK || n != len(out) || got.Source != netip.AddrPortFrom(a.Unmap(), from) || got.Destination != netip.AddrPortFrom(b.Unmap(), to) {
				t.Fatalf("%+v: %q, which is %+v, %d, %v", h, out, got, n, why)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	h := Header{Source: ap("192.0.2.1:56324"), Destination: ap("198.51.100.7:443"), Transport: Stream}
	for version := 1; version <= 2; version++ {
		in := h.Append(nil, version)
		b.Run("v"+strconv.Itoa(version), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = Parse(in)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// TestAppend has the bytes of every kind of header, in both versions.
func TestAppend(t *testing.T) {
	four := Header{Source: ap("192.0.2.1:56324"), Destination: ap("198.51.100.7:443"), Transport: Stream}
	six := Header{Source: ap("[2001:db8::1]:65535"), Destination: ap("[2001:db8::2]:1"), Transport: Stream}
	mixed := Header{Source: ap("192.0.2.1:1"), Destination: ap("[2001:db8::2]:2"), Transport: Stream}
	mapped := Header{Source: ap("[::ffff:192.0.2.1]:56324"), Destination: ap("198.51.100.7:443"), Transport: Stream}
	udp, local, tlvs := four, four, four
	udp.Transport, local.Local = Datagram, true
	tlvs.TLVs = []byte{TypeUniqueID, 0, 2, 'i', 'd', TypeCRC32C, 0, 4, 9, 9, 9, 9, 0xea, 0, 0}
	for _, c := range []struct {
		name   string
		h      Header
		v1, v2 string
	}{
		{"IPv4", four, "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", "21 11 000c c0000201 c6336407 dc04 01bb"},
		{"IPv4 mapped", mapped, "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", "21 11 000c c0000201 c6336407 dc04 01bb"},
		{"IPv6", six, "PROXY TCP6 2001:db8::1 2001:db8::2 65535 1\r\n", "21 21 0024 20010db8 00*11 01 20010db8 00*11 02 ffff 0001"},
		{"two families", mixed, "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n", "21 21 0024 00*10 ffff c0000201 20010db8 00*11 02 0001 0002"},
		{"UDP", udp, "PROXY UNKNOWN\r\n", "21 12 000c c0000201 c6336407 dc04 01bb"},
		{"local", local, "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", "20 00 0000"},
		{"nobody", Header{}, "PROXY UNKNOWN\r\n", "21 00 0000"},
		{"one address", Header{Source: four.Source}, "PROXY UNKNOWN\r\n", "21 00 0000"},
		{"TLVs without the other's checksum", tlvs, "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", "21 11 0014 c0000201 c6336407 dc04 01bb 05 0002 6964 ea 0000"},
	} {
		v2, err := expand("SIG " + c.v2)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.h.Append([]byte("before "), 1); string(got) != "before "+c.v1 {
			t.Errorf("%s: %q, want %q", c.name, got, c.v1)
		}
		if got := c.h.Append(nil, 2); !bytes.Equal(got, v2) {
			t.Errorf("%s: %x, want %x", c.name, got, v2)
		}
		for version := range 2 {
			b := c.h.Append(nil, version+1)
			if h, n, why := Parse(b); why != OK || n != len(b) || int(h.Version) != version+1 {
				t.Errorf("%s: version %d is read as %+v, %d, %v", c.name, version+1, h, n, why)
			}
		}
	}
}

// TestAppendChecksum: it is right wherever the header lies, and too much is
// left out as a whole.
func TestAppendChecksum(t *testing.T) {
	h := Header{Source: ap("192.0.2.1:1"), Destination: ap("192.0.2.2:2"), Transport: Stream, Checksum: true, TLVs: []byte{TypeNoop, 0, 1, 7}}
	b := h.Append([]byte("xyz"), 2)[3:]
	got, n, why := Parse(b)
	if why != OK || n != len(b) || !got.Checksum || !bytes.Equal(got.TLVs[:4], h.TLVs) {
		t.Errorf("%x: %+v, %d, %v", b, got, n, why)
	}
	b[20] ^= 1
	if _, _, why := Parse(b); why != Checksum {
		t.Errorf("with one bit changed: %v", why)
	}
	h.TLVs = append([]byte{0xea, 0x0f, 0xf8}, make([]byte, 0xff8)...)
	if got := h.Append(nil, 2); len(got) != 28 {
		t.Errorf("%d bytes, and all are in a header of at most 4 KiB", len(got))
	}
}

func TestHeaderNamed(t *testing.T) {
	for _, c := range []struct {
		in             string
		stream, packet bool
	}{
		{"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", true, false},
		{"PROXY UNKNOWN\r\n", false, false},
		{signature + "\x21\x12\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02", false, true},
		{signature + "\x20\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02", false, false},
	} {
		h, _, why := Parse([]byte(c.in))
		if why != OK || h.Named(Stream) != c.stream || h.Named(Datagram) != c.packet {
			t.Errorf("%q: %+v, %v", c.in, h, why)
		}
	}
}

func TestTLV(t *testing.T) {
	h := Header{TLVs: []byte{TypeNoop, 0, 0, TypeAuthority, 0, 3, 'a', '.', 'b', TypeUniqueID, 0, 1, 'x'}}
	for kind, want := range map[byte]string{TypeAuthority: "a.b", TypeUniqueID: "x", TypeNoop: ""} {
		if got, ok := h.TLV(kind); !ok || string(got) != want {
			t.Errorf("%#x: %q %v, want %q", kind, got, ok, want)
		}
	}
	if v, ok := h.TLV(TypeSSL); ok {
		t.Errorf("%q, and there is none", v)
	}
}

// TestGuard: beginnings of headers are refused however they are cut, and nothing
// else is.
func TestGuard(t *testing.T) {
	for _, c := range []struct {
		in     string
		forged bool
	}{
		{"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\n", true},
		{"PROXY UNKNOWN\r\n", true},
		{"PROXY ", true},
		{signature + "\x21", true},
		{signature, true},
		{"PROXY", false},
		{"PROXYX ", false},
		{"POST / HTTP/1.1\r\n", false},
		{"", false},
		{"\r\n\r\n", false},
		{"\r\n\r\nPROXY TCP4 ", false},
		{" PROXY TCP4 ", false},
		{"PPROXY ", false},
		{signature[:11] + "\r", false},
		{"\x16\x03\x01", false},
	} {
		for size := 1; size <= max(len(c.in), 1); size++ {
			var g Guard
			forged, passed := false, 0
			for b := []byte(c.in); len(b) > 0 && !forged; {
				n := min(size, len(b))
				if forged = g.Forged(b[:n]); !forged {
					passed += n
				}
				b = b[n:]
			}
			if forged != c.forged {
				t.Errorf("%q in pieces of %d: forged %v", c.in, size, forged)
			}
			if _, _, why := Parse([]byte(c.in[:passed])); c.forged && why != Short {
				t.Errorf("%q in pieces of %d: %d bytes passed, which are %v", c.in, size, passed, why)
			}
		}
	}
	var g Guard
	if g.Forged([]byte("GET / HTTP/1.1")); !g.Over() {
		t.Error("not over, and nothing can come any more")
	}
	if g.Forged([]byte("PROXY TCP4 ")) {
		t.Error("refused in the middle of a connection")
	}
}

func TestFaultTexts(t *testing.T) {
	seen := map[string]bool{}
	for f := OK; f < faults; f++ {
		if f.Word() == "" || f.Error() == "" || seen[f.Word()] || strings.Contains(f.Word(), " ") {
			t.Errorf("%d: %q %q", f, f.Word(), f.Error())
		}
		seen[f.Word()] = true
	}
}

// TestAllocations: what is on the way of connections allocates nothing.
func TestAllocations(t *testing.T) {
	h := Header{Source: ap("192.0.2.1:56324"), Destination: ap("198.51.100.7:443"), Transport: Stream, Checksum: true, TLVs: []byte{TypeUniqueID, 0, 1, 'x'}}
	six := Header{Source: ap("[2001:db8::1]:1"), Destination: ap("[2001:db8::2]:2"), Transport: Stream}
	buf := make([]byte, 0, 256)
	v1, v2, g := h.Append(nil, 1), h.Append(nil, 2), Guard{}
	for name, f := range map[string]func(){
		"append 1": func() { buf = h.Append(buf[:0], 1) }, "append 2": func() { buf = h.Append(buf[:0], 2) },
		"append IPv6": func() { buf = six.Append(buf[:0], 1) },
		"parse 1":     func() { _, _, _ = Parse(v1) }, "parse 2": func() { _, _, _ = Parse(v2) },
		"short": func() { _, _, _ = Parse(v2[:20]) }, "guard": func() { g.Forged(v1[:3]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

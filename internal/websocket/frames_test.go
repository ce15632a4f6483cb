// SPDX-License-Identifier: Apache-2.0

package websocket

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestExamplesOfTheRFC follows the frames that RFC 6455 section 5.7 shows, and
// others, and checks where a frame may be put in.
func TestExamplesOfTheRFC(t *testing.T) {
	for _, c := range []struct {
		name, bytes               string
		boundary, between, closed bool
	}{
		{"nothing", "", true, true, false},
		{"unmasked text", "81 05 48 65 6c 6c 6f", true, true, false},
		{"masked text", "81 85 37 fa 21 3d 7f 9f 4d 51 58", true, true, false},
		{"first fragment", "01 03 48 65 6c", true, false, false},
		{"ping within a message", "01 03 48 65 6c 89 00", true, false, false},
		{"both fragments", "01 03 48 65 6c 80 02 6c 6f", true, true, false},
		{"256 bytes", "82 7e 01 00" + strings.Repeat("00", 256), true, true, false},
		{"64 KiB", "82 7f 00 00 00 00 00 01 00 00" + strings.Repeat("00", 65536), true, true, false},
		{"half a header", "81", false, false, false},
		{"a header without its mask", "81 85 37 fa 21", false, false, false},
		{"half a frame", "81 05 48", false, false, false},
		{"empty frame", "81 00", true, true, false},
		{"close", "88 02 03 e8", true, true, true},
		{"half a close", "88 02 03", false, false, true},
		{"half a close's header", "88", false, false, false},
		{"reserved bits and an unknown opcode", "f3 01 00", true, true, false},
		{"a control frame without FIN", "09 00", true, true, false},
		{"a length in more bytes than needed", "82 7f 00 00 00 00 00 00 00 01 aa", true, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f Frames
			f.Feed(unhex(t, c.bytes))
			if f.Boundary() != c.boundary || f.Between() != c.between || f.Closed() != c.closed || f.Broken() {
				t.Errorf("boundary %v between %v closed %v broken %v", f.Boundary(), f.Between(), f.Closed(), f.Broken())
			}
		})
	}
}

// TestImpossibleLength: nothing after it is a boundary, however it goes on.
func TestImpossibleLength(t *testing.T) {
	for _, size := range []int{1, 3, 64} {
		var f Frames
		for p := append(unhex(t, "81 01 00 82 7f 80 00 00 00 00 00 00 00"), unhex(t, strings.Repeat("88 00", 40))...); len(p) > 0; {
			n := min(size, len(p))
			f.Feed(p[:n])
			p = p[n:]
		}
		if !f.Broken() || f.Boundary() || f.Between() || f.Closed() || f.Left() != 0 {
			t.Errorf("in pieces of %d: %+v", size, f)
		}
	}
}

// TestClose reads the written frame back.
func TestClose(t *testing.T) {
	if got, want := AppendClose(nil, ServiceRestart, "bye", nil), unhex(t, "88 05 03 f4 62 79 65"); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	if got, want := AppendClose([]byte("x"), GoingAway, "", &[4]byte{1, 2, 3, 4}), unhex(t, "78 88 82 01 02 03 04 02 eb"); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	for _, mask := range []*[4]byte{nil, {9, 8, 7, 6}} {
		b := AppendClose(nil, GoingAway, strings.Repeat("y", 500), mask)
		if len(b) > CloseMost {
			t.Errorf("%d bytes, more than %d", len(b), CloseMost)
		}
		var f Frames
		if !CloseNext(b) || f.Step(b) != len(b) || !f.Between() || !f.Closed() {
			t.Errorf("% x is not one frame", b)
		}
	}
}

// naive is what a reader that has the whole stream in memory says after each of
// its bytes: written from the RFC's picture of a frame, and kept apart from the
// code under test.
type naive struct{ boundary, between, closed, broken bool }

func oracle(stream []byte) []naive {
	out := []naive{{boundary: true, between: true}}
	inside, closed := false, false
	for at := 0; at < len(stream); {
		rest := stream[at:]
		size, head := uint64(0), 2
		complete := len(rest) >= 2
		if complete {
			switch size = uint64(rest[1] & 127); size {
			case 126:
				head = 4
			case 127:
				head = 10
			}
			if rest[1] >= 128 {
				head += 4
			}
			complete = len(rest) >= head
		}
		if !complete {
			for range rest {
				out = append(out, naive{closed: closed})
			}
			return out
		}
		if rest[1]&127 == 126 {
			size = uint64(rest[2])<<8 | uint64(rest[3])
		}
		if rest[1]&127 == 127 {
			if rest[2] >= 128 {
				for range head - 1 {
					out = append(out, naive{closed: closed})
				}
				for range rest[head-1:] {
					out = append(out, naive{closed: closed, broken: true})
				}
				return out
			}
			size = binary.BigEndian.Uint64(rest[2:10])
		}
		for range head - 1 {
			out = append(out, naive{closed: closed})
		}
		op := rest[0] % 16
		closed = closed || op == 8
		if op < 8 {
			inside = rest[0] < 128
		}
		payload := min(size, uint64(len(rest)-head))
		for i := range payload + 1 {
			end := i == size
			out = append(out, naive{boundary: end, between: end && !inside, closed: closed})
		}
		at += head + int(payload)
	}
	return out
}

// check follows a stream in pieces and compares with the oracle after each.
func check(t *testing.T, stream []byte, piece func() int) {
	t.Helper()
	want := oracle(stream)
	var f, steps Frames
	for at := 0; ; {
		got := naive{f.Boundary(), f.Between(), f.Closed(), f.Broken()}
		if got != want[at] {
			t.Fatalf("after %d of % x: %+v, want %+v", at, stream, got, want[at])
		}
		if at == len(stream) {
			return
		}
		n := min(max(piece(), 1), len(stream)-at)
		if left := f.Left(); left > 0 && piece()%2 == 0 { // moved elsewhere
			n = int(min(left, uint64(n)))
			f.Skip(uint64(n))
		} else {
			f.Feed(stream[at : at+n])
		}
		// The same in steps, each of which ends at a boundary or takes all.
		for p := stream[at : at+n]; len(p) > 0; {
			k := steps.Step(p)
			if k < 1 || k > len(p) || k < len(p) && !steps.Boundary() {
				t.Fatalf("a step of %d in %d bytes", k, len(p))
			}
			for i := 1; i < k; i++ {
				if want[at+n-len(p)+i].boundary {
					t.Fatalf("a step went over the boundary at %d", at+n-len(p)+i)
				}
			}
			p = p[k:]
		}
		at += n
		if f.have != steps.have || f.left != steps.left || f.inside != steps.inside || f.closed != steps.closed || f.broken != steps.broken {
			t.Fatalf("fed %+v, stepped %+v", f, steps)
		}
	}
}

// TestAgainstOracle follows random streams of frames, some of them cut or with
// bytes changed, in random pieces.
func TestAgainstOracle(t *testing.T) {
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 6455))
		var s []byte
		for range 1 + r.IntN(6) {
			s = appendFrame(s, r)
		}
		if r.IntN(3) == 0 {
			s[r.IntN(len(s))] = byte(r.Uint32())
		}
		s = s[:r.IntN(len(s)+1)]
		check(t, s, func() int { return 1 + r.IntN(1+r.IntN(40)) })
	}
}

func appendFrame(b []byte, r *rand.Rand) []byte {
	size := []int{0, 1, 5, 125, 126, 300}[r.IntN(6)]
	b = append(b, byte(r.Uint32()))
	second := byte(0)
	if r.IntN(2) == 0 {
		second = 0x80
	}
	switch {
	case r.IntN(4) == 0:
		b = append(b, second|127)
		b = binary.BigEndian.AppendUint64(b, uint64(size))
	case size > 125 || r.IntN(4) == 0:
		b = append(b, second|126)
		b = binary.BigEndian.AppendUint16(b, uint16(size))
	default:
		b = append(b, second|byte(size))
	}
	if second != 0 {
		b = binary.BigEndian.AppendUint32(b, r.Uint32())
	}
	for range size {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

func FuzzFrames(f *testing.F) {
	for _, s := range []string{
		"8105 48656c6c6f", "0103 48656c 8900 8002 6c6f", "8885 37fa213d 34120d", "827f 80 00000000000000 8800", "827e 0100", "f3 01 00 88 00 81 00",
	} {
		f.Add(unhex(f, s), uint64(3))
	}
	f.Fuzz(func(t *testing.T, s []byte, seed uint64) {
		if len(s) > 4096 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		check(t, s, func() int { return 1 + r.IntN(20) })
	})
}

func BenchmarkFeed(b *testing.B) {
	// 32 KiB of frames with 100 bytes each, as a chat has them.
	var p []byte
	for len(p) < 32<<10 {
		p = append(p, 0x81, 100)
		p = append(p, make([]byte, 100)...)
	}
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	var f Frames
	for b.Loop() {
		f.Feed(p)
	}
}

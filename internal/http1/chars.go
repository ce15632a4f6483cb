// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"encoding/binary"
	"math/bits"
)

// Classes of bytes, tested with one table load.
const (
	tokenChar  = 1 << iota // tchar, RFC 9110 section 5.6.2
	oddChar                // tchar that is neither alphanumeric nor "-"
	hostChar               // unreserved, RFC 3986 section 2.3
	digitChar              // 0-9
	hexChar                // 0-9 a-f A-F
	targetChar             // VCHAR but # < >, and 0x80-0xFF
)

var class = buildClasses()

func buildClasses() (t [256]uint8) {
	for c := range 256 {
		alpha := 'a' <= c|0x20 && c|0x20 <= 'z'
		digit := '0' <= c && c <= '9'
		if alpha || digit || c == '-' {
			t[c] |= tokenChar | hostChar
		}
		if digit {
			t[c] |= digitChar
		}
		if digit || 'a' <= c|0x20 && c|0x20 <= 'f' {
			t[c] |= hexChar
		}
		// Angle brackets are no part of a URI (RFC 3986) and every client escapes
		// them; what else it leaves out, clients do send.
		if c > ' ' && c != 0x7f && c != '#' && c != '<' && c != '>' {
			t[c] |= targetChar
		}
	}
	for _, c := range "!#$%&'*+.^_`|~" {
		t[c] |= tokenChar | oddChar
	}
	for _, c := range "._~" {
		t[c] |= hostChar
	}
	return t
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// firstControl returns the index of the first control character (0x00-0x1F,
// 0x7F) at or after i, or len(b). It looks at eight bytes at a time: a byte is
// below 0x20 if subtracting 0x20 borrows into its top bit and that bit was
// clear; it is 0x7F if it is zero after an exclusive or. A borrow can mark a
// byte wrongly only above a byte that is marked rightly, and the lowest counts.
func firstControl(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		y := x ^ 0x7f*ones
		if m := ((x-0x20*ones)&^x | (y-ones)&^y) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for ; i < len(b); i++ {
		if b[i] < 0x20 || b[i] == 0x7f {
			return i
		}
	}
	return len(b)
}

// isToken reports whether b is a token (RFC 9110 section 5.6.2).
func isToken(b []byte) bool {
	for _, c := range b {
		if class[c]&tokenChar == 0 {
			return false
		}
	}
	return len(b) > 0
}

// trimSpace removes optional white space (SP and HTAB) on both sides.
func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// foldEqual compares b with a lower-case text, ignoring the case of letters.
func foldEqual(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := range len(lower) {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

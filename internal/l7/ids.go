// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"encoding/binary"
	"math/rand/v2"
)

// maxRequestID is the longest request id that is taken over from outside (S13).
const maxRequestID = 128

func validRequestID(v []byte) bool {
	if len(v) == 0 || len(v) > maxRequestID {
		return false
	}
	for _, c := range v {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return true
}

// makeRequestID makes an id of 128 random bits. Ids must not collide; they need
// not be secret.
func (e *exchange) makeRequestID() []byte {
	appendHex(e.idBuf[:0], rand.Uint64(), rand.Uint64())
	e.requestID = e.idBuf[:]
	return e.requestID
}

// appendHex appends words as hexadecimal digits.
func appendHex(b []byte, words ...uint64) []byte {
	for _, w := range words {
		b = binary.BigEndian.AppendUint64(b, hexDigits(uint32(w>>32)))
		b = binary.BigEndian.AppendUint64(b, hexDigits(uint32(w)))
	}
	return b
}

// hexDigits spreads a word's nibbles over eight bytes and turns each into its
// digit, all at once: '0'+n, and 39 more where n > 9.
func hexDigits(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	letters := (x + 0x0606060606060606) >> 4 & 0x0101010101010101
	return x + 0x3030303030303030 + letters*39
}

// validTraceparent checks a W3C traceparent: version 00 exactly, later versions
// as far as they are known (Trace Context section 3.2).
func validTraceparent(v []byte) bool {
	const length = 55 // 2+1+32+1+16+1+2
	if len(v) < length || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return false
	}
	if !lowerHex(v[:2]) || !lowerHex(v[3:35]) || !lowerHex(v[36:52]) || !lowerHex(v[53:55]) {
		return false
	}
	if allZero(v[3:35]) || allZero(v[36:52]) {
		return false
	}
	switch {
	case v[0] == 'f' && v[1] == 'f':
		return false
	case v[0] == '0' && v[1] == '0':
		return len(v) == length
	default:
		return len(v) == length || v[length] == '-'
	}
}

func lowerHex(v []byte) bool {
	for _, c := range v {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func allZero(v []byte) bool {
	for _, c := range v {
		if c != '0' {
			return false
		}
	}
	return true
}

// appendTraceparent starts a trace. It says sampled: with 00 every tracer behind
// weir that follows its parent, the usual setting, would stop recording.
func appendTraceparent(b []byte) []byte {
	b = append(b, "00-"...)
	b = appendHex(b, rand.Uint64()|1, rand.Uint64()) // never all zero
	b = append(b, '-')
	b = appendHex(b, rand.Uint64()|1)
	return append(b, "-01"...)
}

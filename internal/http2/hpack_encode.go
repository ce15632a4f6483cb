// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"github.com/weirlb/weir/internal/message"
)

// Header blocks are written without a dynamic table: most of an answer's lines
// differ from one to the next (dates, lengths, request ids), nginx and HAProxy do
// the same, and then a block depends on nothing: it is made outside of the
// connection's lock. Names of the static table are sent as their index.

// tableSizeZero says that the table holds nothing and never will. It opens the
// first block of a connection, so that no later change of the peer's needs an
// answer (RFC 7541 section 4.2).
const tableSizeZero = 0x20

// appendInteger appends an integer with a prefix of so many bits (RFC 7541
// section 5.1); first holds the bits before it.
func appendInteger(b []byte, first byte, prefix uint, n int) []byte {
	mask := 1<<prefix - 1
	if n < mask {
		return append(b, first|byte(n))
	}
	b = append(b, first|byte(mask))
	for n -= mask; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// appendText appends a string as it is. Huffman coding would save a fifth of it
// and cost more than sending that.
func appendText(b []byte, s []byte) []byte {
	return append(appendInteger(b, 0, 7, len(s)), s...)
}

// appendField appends a field under its name in small letters, not indexed;
// values that are secrets never to be indexed further on, either (section 7.1.3).
func appendField(b []byte, id message.FieldID, name, value []byte) []byte {
	first := byte(0)
	switch id {
	case message.Authorization, message.ProxyAuthorization, message.Cookie, message.SetCookie:
		first = 0x10
	}
	b = appendName(b, first, id, name)
	return appendText(b, value)
}

// known leads from ids to the static table, where that has the name.
var known = func() (t [256]uint8) {
	for name, i := range staticName {
		if id := statics[i].id; id != message.Other && name[0] != ':' {
			t[id] = i
		}
	}
	return t
}()

func appendName(b []byte, first byte, id message.FieldID, name []byte) []byte {
	if i := known[id]; i != 0 {
		return appendInteger(b, first, 4, int(i))
	}
	at := len(b)
	b = append(b, first)
	b = appendInteger(b, 0, 7, len(name))
	start := len(b)
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		b = append(b, c)
	}
	if i, ok := staticName[string(b[start:])]; ok {
		return appendInteger(b[:at], first, 4, int(i))
	}
	return b
}

// appendStatus appends :status.
func appendStatus(b []byte, status int) []byte {
	switch status {
	case 200:
		return append(b, 0x80|8)
	case 204:
		return append(b, 0x80|9)
	case 206:
		return append(b, 0x80|10)
	case 304:
		return append(b, 0x80|11)
	case 400:
		return append(b, 0x80|12)
	case 404:
		return append(b, 0x80|13)
	case 500:
		return append(b, 0x80|14)
	}
	return append(b, 8, 3, byte('0'+status/100%10), byte('0'+status/10%10), byte('0'+status%10))
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/cespare/xxhash/v2"

	"github.com/weirlb/weir/internal/message"
)

// KeySource says what a part of a request's key is taken from.
type KeySource uint8

// The sources. Their numbers are part of the hash: a change moves every key.
const (
	KeyClient KeySource = 1 // the trusted client's address, IPv6 by its /64
	KeyHeader KeySource = 2 // all values of a field, joined as RFC 9110 section 5.3 allows; "Host" is the authority in lower case
	KeyCookie KeySource = 3 // the value of the first cookie of the name
	KeyQuery  KeySource = 4 // the decoded value of the first parameter of the name
	KeyPath   KeySource = 5 // the path as routed: normalised, without the query
)

// KeyPart is one part of a key.
type KeyPart struct {
	From KeySource
	Name string // of the field (any case), cookie or parameter
}

// KeyFunc makes the key of a request as its client sent it: forwarding fields
// and ids settled, the route's rewrites and edits not yet applied. ok is false
// when there is no part of the key in it; an empty value counts as none. It
// allocates nothing and is safe for concurrent use.
type KeyFunc func(r *message.Request, client netip.Addr) (key uint64, ok bool)

// NewKeyFunc compiles the parts of a key, in order; without parts no request
// has one. Equal parts make equal keys in every process, so that a fleet of
// balancers agrees.
//
// What is hashed (xxHash, 64 bits, seed 0) is per part: its text, its source as
// one byte, or 0 when it is missing, and its length as four bytes. A reader
// from the end finds the parts again, so no two lists of parts hash alike by
// construction.
func NewKeyFunc(parts []KeyPart) KeyFunc {
	steps := make([]keyStep, 0, len(parts))
	for _, p := range parts {
		steps = append(steps, keyStep{from: p.From, name: p.Name, id: idOf(p.Name)})
	}
	return func(r *message.Request, client netip.Addr) (uint64, bool) {
		var h keyHash
		h.d.Reset()
		any := false
		for i := range steps {
			h.n = 0
			steps[i].hash(&h, r, client)
			source := steps[i].from
			if h.n == 0 {
				source = 0
			}
			any = any || h.n > 0
			h.end(source)
		}
		return h.d.Sum64(), any
	}
}

// keyHash is a hash with the length of the part that is being written.
type keyHash struct {
	d   xxhash.Digest
	n   uint32
	buf [64]byte
}

func (h *keyHash) write(b []byte) {
	h.n += uint32(len(b))
	_, _ = h.d.Write(b) // never fails
}

func (h *keyHash) end(source KeySource) {
	h.buf[0] = byte(source)
	binary.LittleEndian.PutUint32(h.buf[1:], h.n)
	_, _ = h.d.Write(h.buf[:5])
}

type keyStep struct {
	from KeySource
	id   message.FieldID
	name string
}

func (s *keyStep) hash(h *keyHash, r *message.Request, client netip.Addr) {
	switch s.from {
	case KeyClient:
		hashClient(h, client)
	case KeyHeader:
		if s.id == message.Host {
			hashLower(h, r.Authority)
		} else {
			s.hashField(h, &r.Fields)
		}
	case KeyCookie:
		if v, ok := cookie(&r.Fields, s.name); ok {
			h.write(v)
		}
	case KeyQuery:
		if v, ok := parameter(r.Query, s.name); ok {
			hashDecoded(h, v)
		}
	case KeyPath:
		h.write(r.Routed)
	}
}

// hashClient hashes an address. A client of IPv6 has a /64 to itself (RFC 6177)
// and changes addresses within it (RFC 8981).
func hashClient(h *keyHash, client netip.Addr) {
	client = client.Unmap()
	switch {
	case client.Is4():
		b := client.As4()
		copy(h.buf[:], b[:])
		h.write(h.buf[:4])
	case client.Is6():
		b := client.As16()
		copy(h.buf[:], b[:8])
		h.write(h.buf[:8])
	}
}

// hashLower hashes a name in which case does not count.
func hashLower(h *keyHash, b []byte) {
	for len(b) > 0 {
		n := copy(h.buf[:], b)
		for i, c := range h.buf[:n] {
			if 'A' <= c && c <= 'Z' {
				h.buf[i] = c | 0x20
			}
		}
		h.write(h.buf[:n])
		b = b[n:]
	}
}

// hashField hashes all values of a field. One line with two values and two
// lines with one each say the same, and hash alike.
func (s *keyStep) hashField(h *keyHash, f *message.Fields) {
	for i := range f.Len() {
		if f.ID(i) != s.id || f.Removed(i) || s.id == message.Other && !message.EqualFold(f.Name(i), s.name) {
			continue
		}
		v := f.Value(i)
		if len(v) == 0 {
			continue
		}
		if h.n > 0 {
			h.write(comma)
		}
		h.write(v)
	}
}

var comma = []byte(", ")

// cookie returns the value of the first cookie of the name (RFC 6265 section
// 4.2.1: pairs separated by semicolons, names in their case). Quotes belong to
// the value. A pair without "=" has no name.
func cookie(f *message.Fields, name string) ([]byte, bool) {
	for i := range f.Len() {
		if f.ID(i) != message.Cookie || f.Removed(i) {
			continue
		}
		for rest := f.Value(i); len(rest) > 0; {
			pair := rest
			if j := bytes.IndexByte(rest, ';'); j >= 0 {
				pair, rest = rest[:j], rest[j+1:]
			} else {
				rest = nil
			}
			j := bytes.IndexByte(pair, '=')
			if j >= 0 && string(trimOWS(pair[:j])) == name {
				return trimOWS(pair[j+1:]), true
			}
		}
	}
	return nil, false
}

// parameter returns the value, still encoded, of the first parameter of the
// name in a query (the URL standard's application/x-www-form-urlencoded: pairs
// separated by "&", "+" for a space, escapes that are none stand for
// themselves).
func parameter(query []byte, name string) ([]byte, bool) {
	for rest := query; len(rest) > 0; {
		pair := rest
		if j := bytes.IndexByte(rest, '&'); j >= 0 {
			pair, rest = rest[:j], rest[j+1:]
		} else {
			rest = nil
		}
		var value []byte
		if j := bytes.IndexByte(pair, '='); j >= 0 {
			pair, value = pair[:j], pair[j+1:]
		}
		if decodesTo(pair, name) {
			return value, true
		}
	}
	return nil, false
}

// decodesTo reports that an encoded text means a plain one.
func decodesTo(text []byte, plain string) bool {
	n := 0
	for len(text) > 0 {
		c, size := decodeByte(text)
		if n == len(plain) || plain[n] != c {
			return false
		}
		n++
		text = text[size:]
	}
	return n == len(plain)
}

// hashDecoded hashes what an encoded value means, so that a%2Fb and a/b are
// equal.
func hashDecoded(h *keyHash, text []byte) {
	n := 0
	for len(text) > 0 {
		if n == len(h.buf) {
			h.write(h.buf[:])
			n = 0
		}
		c, size := decodeByte(text)
		h.buf[n] = c
		n++
		text = text[size:]
	}
	h.write(h.buf[:n])
}

// decodeByte decodes the first byte of a text that is not empty.
func decodeByte(text []byte) (c byte, size int) {
	switch c = text[0]; {
	case c == '+':
		return ' ', 1
	case c == '%' && len(text) > 2:
		hi, ok := unhex(text[1])
		lo, ok2 := unhex(text[2])
		if ok && ok2 {
			return hi<<4 | lo, 3
		}
	}
	return c, 1
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

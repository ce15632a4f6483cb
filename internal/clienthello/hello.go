// SPDX-License-Identifier: Apache-2.0

package clienthello

import "slices"

// Hello is what a client asks for in clear. The zero value asks for nothing.
type Hello struct {
	// Name is the server name (RFC 6066, section 3) in lower case without a trailing
	// dot; empty: the client named none. With ECH it is the outer one.
	Name string
	// ALPN are the protocols that the client offers (RFC 7301), in its order, as
	// they came, GREASE included; nil: it offers none.
	ALPN []string
	// ECH says that the client sends an encrypted hello (RFC 9849) or the ESNI of
	// its drafts. Browsers send one of nonsense where they have no key, which nobody
	// but the holder of keys can tell apart: a hint, not a fact.
	ECH bool
}

// Offers reports whether the client offers the protocol.
func (h *Hello) Offers(alpn string) bool { return slices.Contains(h.ALPN, alpn) }

// The extensions that are read.
const (
	extServerName = 0
	extALPN       = 16
	extECH        = 0xfe0d
	extESNI       = 0xffce
)

// maxExtensions bounds the work on one hello: real ones have up to 25.
const maxExtensions = 256

// A cursor takes a message apart. It never reads beyond its end: once something
// is missing, bad stays set and everything is empty.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) uint8() int {
	if p := c.take(1); p != nil {
		return int(p[0])
	}
	return 0
}

func (c *cursor) uint16() int {
	if p := c.take(2); p != nil {
		return int(p[0])<<8 | int(p[1])
	}
	return 0
}

// vector8 and vector16 take a vector with a length of one and two bytes.
func (c *cursor) vector8() []byte  { return c.take(c.uint8()) }
func (c *cursor) vector16() []byte { return c.take(c.uint16()) }

// parse reads the body of a ClientHello (RFC 8446, section 4.1.2; RFC 5246,
// section 7.4.1.2).
func (h *Hello) parse(b []byte) error {
	c := cursor{b: b}
	c.take(2 + 32) // legacy_version, random
	session := c.vector8()
	ciphers := c.vector16()
	methods := c.vector8()
	switch {
	case c.bad:
		return malformed("it ends in the middle")
	case len(session) > 32:
		return malformed("the session id is longer than 32 bytes")
	case len(ciphers) < 2 || len(ciphers)%2 != 0:
		return malformed("the list of cipher suites is no list of pairs")
	case len(methods) == 0:
		return malformed("there is no compression method")
	case len(c.b) == 0:
		return nil // before extensions were known
	}
	all := cursor{b: c.vector16()}
	if c.bad || len(c.b) > 0 {
		return malformed("the extensions do not end where it ends")
	}
	return h.extensions(&all)
}

func (h *Hello) extensions(all *cursor) error {
	var seen []int
	var room [32]int
	seen = room[:0]
	for len(all.b) > 0 {
		kind := all.uint16()
		data := all.vector16()
		if all.bad {
			return malformed("an extension ends in the middle")
		}
		if slices.Contains(seen, kind) {
			return malformed("an extension is there twice") // RFC 8446, section 4.2
		}
		if seen = append(seen, kind); len(seen) > maxExtensions {
			return malformed("it has more than 256 extensions")
		}
		var err error
		switch kind {
		case extServerName:
			h.Name, err = serverName(data)
		case extALPN:
			h.ALPN, err = protocols(data)
		case extECH, extESNI:
			h.ECH = true
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// serverName reads the extension: a list with one name of the only type there is.
func serverName(data []byte) (string, error) {
	c := cursor{b: data}
	list := cursor{b: c.vector16()}
	if c.bad || len(c.b) > 0 || len(list.b) == 0 {
		return "", malformed("the list of names is broken")
	}
	name, found := "", false
	for len(list.b) > 0 {
		kind, text := list.uint8(), list.vector16()
		switch {
		case list.bad:
			return "", malformed("a name ends in the middle")
		case kind != 0: // none is defined, and whatever comes has this form
			continue
		case found:
			return "", malformed("it has two names")
		}
		var ok bool
		if name, ok = CleanName(text); !ok {
			return "", malformed("the name is none that a host has")
		}
		found = true
	}
	return name, nil
}

// CleanName returns a name as it is compared: in lower case, without a trailing
// dot. ok is false for what no host is called: an empty name or label, more than
// 253 characters, and characters other than ASCII letters, digits, hyphen,
// underscore and dot. Addresses pass, which some clients send against RFC 6066.
func CleanName(text []byte) (name string, ok bool) {
	if n := len(text); n > 0 && text[n-1] == '.' {
		text = text[:n-1]
	}
	if len(text) == 0 || len(text) > 253 {
		return "", false
	}
	out := make([]byte, len(text))
	label := 0
	for i, b := range text {
		switch {
		case b == '.':
			if label == 0 {
				return "", false
			}
			label = -1
		case 'A' <= b && b <= 'Z':
			b |= 0x20
		case 'a' <= b && b <= 'z', '0' <= b && b <= '9', b == '-', b == '_', b == ':': // the last in IPv6
		default:
			return "", false
		}
		label++
		out[i] = b
	}
	return string(out), label > 0
}

// protocols reads the ALPN extension: a list of names that are not empty.
func protocols(data []byte) ([]string, error) {
	c := cursor{b: data}
	list := cursor{b: c.vector16()}
	if c.bad || len(c.b) > 0 || len(list.b) == 0 {
		return nil, malformed("the list of protocols is broken")
	}
	var out []string
	for len(list.b) > 0 {
		p := list.vector8()
		if list.bad || len(p) == 0 {
			return nil, malformed("a protocol's name is broken")
		}
		if len(out) == maxProtocols {
			return nil, malformed("it offers more than 64 protocols")
		}
		out = append(out, string(p))
	}
	return out, nil
}

// maxProtocols bounds what is kept of a hello: real ones offer up to three.
const maxProtocols = 64

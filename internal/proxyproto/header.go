// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Limits of a header's size in bytes.
const (
	MaxV1 = 107     // with CR LF, as the specification has it
	MaxV2 = 4 << 10 // weir's own; the format could say 64 KiB
	// MinLen is the least that a header of either version has: "PROXY UNKNOWN"
	// with CR LF.
	MinLen = 15
)

// Transport is what the connection or flow that a header speaks of ran over.
type Transport uint8

// The transports.
const (
	Unspec   Transport = iota // not said
	Stream                    // TCP
	Datagram                  // UDP
)

// String returns the specification's word.
func (t Transport) String() string {
	switch t {
	case Stream:
		return "STREAM"
	case Datagram:
		return "DGRAM"
	default:
		return "UNSPEC"
	}
}

// Header is what one PROXY header says. The zero value names nobody and is
// written as UNKNOWN or UNSPEC. It may be copied; TLVs is shared by the copies
// and is not to be changed.
type Header struct {
	// Source is the client, Destination where it connected to. Both are valid or
	// neither is: then the header names nobody, and the connection that carried it
	// speaks for itself. IPv4 addresses are never in their IPv6 form.
	Source, Destination netip.AddrPort
	Transport           Transport
	Version             uint8 // 1 or 2, as it was read; Append does not look at it
	// Local says that the sender speaks for itself, as checks do (LOCAL). Version 1
	// has no word for it: there the addresses are written, which are to be the
	// sender's own.
	Local bool
	// Checksum says that TLVs had a CRC32C, and tells Append to write one.
	Checksum bool
	// TLVs are what version 2 has behind the addresses, one after the other as they
	// came; nil: none. Those of Parse lie in the bytes it was given.
	TLVs []byte
}

// Named reports whether the header says who the client of a connection over a
// transport is. One that speaks of another transport does not (section 2.2: a
// receiver falls back to UNSPEC for what it does not support).
func (h *Header) Named(over Transport) bool {
	return !h.Local && h.Source.IsValid() && h.Transport == over
}

// Types of TLVs (section 2.2).
const (
	TypeALPN      = 0x01
	TypeAuthority = 0x02
	TypeCRC32C    = 0x03
	TypeNoop      = 0x04
	TypeUniqueID  = 0x05
	TypeSSL       = 0x20
	TypeNetNS     = 0x30
)

// TLV returns the value of the first TLV of a type, which lies in h.TLVs.
func (h *Header) TLV(kind byte) (value []byte, ok bool) {
	for rest := h.TLVs; ; {
		k, v, next, ok := nextTLV(rest)
		switch {
		case !ok:
			return nil, false
		case k == kind:
			return v, true
		}
		rest = next
	}
}

// Add adds TLVs of those types of which the header has none: who was nearer to the
// client has had its say already. What TLVs was before is not written to.
func (h *Header) Add(more []byte) {
	own := slices.Clip(h.TLVs)
	for {
		kind, value, rest, ok := nextTLV(more)
		if !ok {
			h.TLVs = own
			return
		}
		if _, said := h.TLV(kind); !said {
			own = append(own, more[:tlvHead+len(value)]...)
		}
		more = rest
	}
}

// tlvHead is a TLV's type and length.
const tlvHead = 3

// nextTLV takes one TLV off. It is not ok at the end, and where bytes are left
// that are none.
func nextTLV(b []byte) (kind byte, value, rest []byte, ok bool) {
	if len(b) < tlvHead {
		return 0, nil, b, false
	}
	n := tlvHead + int(binary.BigEndian.Uint16(b[1:]))
	if n > len(b) {
		return 0, nil, b, false
	}
	return b[0], b[tlvHead:n], b[n:], true
}

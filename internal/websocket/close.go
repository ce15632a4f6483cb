// SPDX-License-Identifier: Apache-2.0

package websocket

import "encoding/binary"

// Status codes of a Close frame.
const (
	// GoingAway says that a peer leaves for good (RFC 6455 section 7.4.1).
	GoingAway = 1001
	// ServiceRestart says that the connection may be made anew: the client
	// should do so after a random time (IANA's registry of close codes).
	ServiceRestart = 1012
)

// CloseMost is the longest Close frame that AppendClose makes.
const CloseMost = 2 + 4 + reasonMost + 2

// reasonMost is how much of a reason fits: a control frame's payload is at most
// 125 bytes, of which the code takes two (RFC 6455 section 5.5).
const reasonMost = 123

// AppendClose appends a Close frame. What is too long of the reason, which must
// be ASCII, is left out. A client's frames are masked, with a mask that it
// draws anew for each; a server's have none (nil).
//
// Worked example: code 1012 with reason "bye" and no mask is
// 88 05 03 f4 62 79 65.
func AppendClose(b []byte, code uint16, reason string, mask *[4]byte) []byte {
	reason = reason[:min(len(reason), reasonMost)]
	size := byte(2 + len(reason))
	if mask == nil {
		b = append(b, bitFin|opClose, size)
	} else {
		b = append(b, bitFin|opClose, bitMask|size)
		b = append(b, mask[:]...)
	}
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, code)
	b = append(b, reason...)
	if mask != nil {
		for i := range b[start:] {
			b[start+i] ^= mask[i%4]
		}
	}
	return b
}

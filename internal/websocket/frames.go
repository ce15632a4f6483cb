// SPDX-License-Identifier: Apache-2.0

package websocket

import "encoding/binary"

// opClose is the opcode of a Close frame (RFC 6455 section 11.8).
const opClose = 0x8

// Bits of a frame's first two bytes (RFC 6455 section 5.2).
const (
	bitFin  = 0x80
	opcode  = 0x0f
	control = 0x08 // of an opcode
	bitMask = 0x80
	length  = 0x7f
)

// headMost is the longest header: two bytes, a length of eight, a mask of four.
const headMost = 14

// Frames follows one direction of a WebSocket. The zero value is at its
// beginning. It is not safe for concurrent use.
//
// Worked example: 81 05 "hello" is one frame and a whole message. After 81 the
// stream is inside a header, after 81 05 inside a frame with Left() == 5, after
// the "o" at a boundary and between messages. 01 03 "hel" leaves it at a
// boundary but inside a message, where a control frame such as Close may stand,
// and 80 02 "lo" ends that message.
type Frames struct {
	left   uint64 // payload of the current frame that is to come
	head   [headMost]byte
	have   uint8 // bytes of an incomplete header
	inside bool  // a message has begun and its last fragment has not
	closed bool
	broken bool
}

// Boundary reports that the stream is between two frames, so that a frame may
// be put in.
func (f *Frames) Boundary() bool { return f.have == 0 && f.left == 0 && !f.broken }

// Between reports that it is between two messages as well.
func (f *Frames) Between() bool { return f.Boundary() && !f.inside }

// Closed reports that a Close frame has begun, after which nothing may follow.
func (f *Frames) Closed() bool { return f.closed }

// Broken reports that a length was found that no frame can have (its highest
// bit set): boundaries cannot be told any more.
func (f *Frames) Broken() bool { return f.broken }

// Left is how much of the current frame's payload is to come. It is 0 in a
// header, at a boundary and once the stream is broken.
func (f *Frames) Left() uint64 { return f.left }

// Skip follows n bytes of payload that were moved elsewhere, at most Left().
func (f *Frames) Skip(n uint64) { f.left -= min(n, f.left) }

// CloseNext reports whether p, which follows a boundary, begins a Close frame.
func CloseNext(p []byte) bool { return len(p) > 0 && p[0]&opcode == opClose }

// Feed follows all of p.
func (f *Frames) Feed(p []byte) {
	for len(p) > 0 {
		p = p[f.Step(p):]
	}
}

// Step follows p up to the end of the current frame, or all of p, and returns
// how many bytes that were: at least one, unless p is empty.
func (f *Frames) Step(p []byte) int {
	if f.broken {
		return len(p)
	}
	n := 0
	if f.left == 0 {
		done := false
		if n, done = f.header(p); !done || f.broken {
			if f.broken {
				n = len(p)
			}
			return n
		}
	}
	k := min(f.left, uint64(len(p)-n))
	f.left -= k
	return n + int(k)
}

// header takes bytes of a header from p and reports whether it is complete.
func (f *Frames) header(p []byte) (n int, done bool) {
	if f.have == 0 && len(p) >= headMost { // nearly always: nothing is kept
		return f.begin(p), true
	}
	for n < len(p) {
		f.head[f.have] = p[n]
		f.have++
		n++
		if f.have >= 2 && int(f.have) == headerSize(f.head[1]) {
			f.begin(f.head[:f.have])
			f.have = 0
			return n, true
		}
	}
	return n, false
}

// headerSize is the length of a header by its second byte.
func headerSize(second byte) int {
	n := 2
	switch second & length {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if second&bitMask != 0 {
		n += 4
	}
	return n
}

// begin starts the frame whose header p begins with, and returns the header's
// size.
func (f *Frames) begin(p []byte) int {
	switch p[1] & length {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(p[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(p[2:])
	default:
		f.left = uint64(p[1] & length)
	}
	if f.left>>63 != 0 {
		f.left, f.broken = 0, true
		return len(p)
	}
	if op := p[0] & opcode; op == opClose {
		f.closed = true
	} else if op&control == 0 {
		f.inside = p[0]&bitFin == 0
	}
	return headerSize(p[1])
}

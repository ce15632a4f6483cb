// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/http2"
)

const (
	// maxFrame is the largest frame that is taken, and what a peer takes until it
	// says otherwise: larger ones would only let one stream hold up the others.
	maxFrame = 16 << 10
	// preface opens a client's connection (RFC 9113 section 3.4).
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// maxWindow is the largest window there can be (section 6.9.1).
	maxWindow = 1<<31 - 1
	// startWindow is every window's size before SETTINGS (section 6.9.2).
	startWindow = 65535
)

// appendFrame appends a frame's header.
func appendFrame(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

// appendBlock appends a header block as HEADERS and, where it is larger than a
// frame may be, CONTINUATION.
func appendBlock(b []byte, stream uint32, block []byte, end bool, most int) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(block), most)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrame(b, n, kind, flags, stream), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

func appendData(b []byte, stream uint32, p []byte, end bool) []byte {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	return append(appendFrame(b, len(p), http2.FrameData, flags, stream), p...)
}

func appendReset(b []byte, stream uint32, code Code) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameRSTStream, 0, stream), uint32(code))
}

func appendWindow(b []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameWindowUpdate, 0, stream), uint32(n))
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	return append(appendFrame(b, 8, http2.FramePing, flags, 0), data[:]...)
}

func appendGoAway(b []byte, last uint32, code Code, detail string) []byte {
	b = appendFrame(b, 8+len(detail), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, detail...)
}

func appendSettings(b []byte, list ...http2.Setting) []byte {
	b = appendFrame(b, 6*len(list), http2.FrameSettings, 0, 0)
	for _, s := range list {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

func appendSettingsAck(b []byte) []byte {
	return appendFrame(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

// readFault turns an error of the Framer into this package's: a *ConnError, a
// *streamFault, or the connection's own.
func readFault(err error) error {
	var ce http2.ConnectionError
	var se http2.StreamError
	switch {
	case errors.As(err, &se):
		return &streamFault{stream: se.StreamID, code: Code(se.Code)}
	case errors.As(err, &ce):
		return &ConnError{Code: Code(ce), Detail: "malformed frame"}
	case errors.Is(err, http2.ErrFrameTooLarge):
		return &ConnError{Code: CodeFrameSize, Detail: "frame too large"}
	}
	return err
}

// streamFault is a frame that costs its stream only.
type streamFault struct {
	stream uint32
	code   Code
}

func (*streamFault) Error() string { return "http2: malformed frame" }

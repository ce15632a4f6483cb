// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// opening is the HEADERS frame of a block that further frames may go on with.
type opening struct {
	stream  uint32 // 0: there is none
	end     bool   // of the stream
	selfDep bool   // it depends on itself
}

// keepBlock is the largest memory for header blocks that a connection keeps: it may
// be idle for long, as thousands of its kind may be.
const keepBlock = 1 << 10

// blockTaker takes the header blocks of one side.
type blockTaker interface {
	// headers does what a whole block says, which is borrowed. Whatever it is worth, it
	// must be decoded.
	headers(o opening, block []byte) error
	// pay charges for what costs the peer nothing.
	pay(cost int, cause Cause) error
	// headerBytes is how large a head may be.
	headerBytes() int
}

// readHeaders takes a frame of HEADERS in. It is read here and not by the Framer, which
// makes a copy and an object of each: a block that has arrived in one piece is
// decoded where it lies.
func readHeaders[T blockTaker](c *input, t T, fh http2.FrameHeader) error {
	if fh.StreamID == 0 {
		return protocolError("HEADERS on stream 0")
	}
	p, err := c.in.all(int(fh.Length), &c.block)
	if err != nil {
		return err
	}
	o := opening{stream: fh.StreamID, end: fh.Flags.Has(http2.FlagHeadersEndStream)}
	padding := 0
	if fh.Flags.Has(http2.FlagHeadersPadded) {
		if len(p) < 1 {
			return errShortHeaders
		}
		padding, p = int(p[0]), p[1:]
	}
	if fh.Flags.Has(http2.FlagHeadersPriority) {
		if len(p) < 5 {
			return errShortHeaders
		}
		o.selfDep, p = binary.BigEndian.Uint32(p)&maxWindow == o.stream, p[5:]
	}
	if padding > len(p) {
		return protocolError("more padding than HEADERS")
	}
	p = p[:len(p)-padding]
	if fh.Flags.Has(http2.FlagHeadersEndHeaders) {
		err = t.headers(o, p)
		c.dropBlock()
		return err
	}
	c.opening = o
	c.block = append(c.block[:0], p...) // it may lie there
	return blockFits(c, t)
}

var errShortHeaders = &ConnError{Code: CodeFrameSize, Detail: "HEADERS without what their flags announce"}

// readContinuation goes on with a block. The Framer has seen to the order of frames.
func readContinuation[T blockTaker](c *input, t T, f *http2.ContinuationFrame) error {
	if len(f.HeaderBlockFragment()) == 0 && !f.HeadersEnded() {
		if err := t.pay(costEmpty, CauseEmpty); err != nil {
			return err
		}
	}
	c.block = append(c.block, f.HeaderBlockFragment()...)
	if err := blockFits(c, t); err != nil || !f.HeadersEnded() {
		return err
	}
	o := c.opening
	c.opening = opening{}
	err := t.headers(o, c.block)
	c.dropBlock()
	return err
}

// blockFits bounds a block before it is known what is in it. Compressed it is
// hardly ever larger than what it says.
func blockFits[T blockTaker](c *input, t T) error {
	if len(c.block) > t.headerBytes()+maxFrame {
		return calmFault(CauseHeaders)
	}
	return nil
}

func (c *input) dropBlock() {
	if cap(c.block) > keepBlock {
		c.block = nil
	}
}

// skipBlock decodes a block that nobody wants.
func (c *input) skipBlock(block []byte) error {
	c.dec.begin(block)
	var f entry
	for {
		if more, err := c.dec.next(&f); !more || err != nil {
			return err
		}
	}
}

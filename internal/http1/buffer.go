// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"sync"

	"github.com/weirlb/weir/internal/netconn"
)

// Buffers come in three sizes: one for a head with what follows it in the same
// read, one for content that keeps coming, and one for writes, which has room
// for the latter with its framing.
const (
	headSize  = 8 << 10
	bodySize  = 32 << 10
	writeSize = bodySize + 4<<10
	smallRead = 4 << 10 // a read this short says that content does not keep coming
)

var (
	headBuffers  = sync.Pool{New: func() any { return new([headSize]byte) }}
	bodyBuffers  = sync.Pool{New: func() any { return new([bodySize]byte) }}
	writeBuffers = sync.Pool{New: func() any { return new([writeSize]byte) }}
)

func takeHeadBuffer() []byte { return headBuffers.Get().(*[headSize]byte)[:] }
func takeBodyBuffer() []byte { return bodyBuffers.Get().(*[bodySize]byte)[:] }

// giveBuffer returns a buffer to the pool it came from. Those of other sizes
// were made for one large head and are left to the collector.
func giveBuffer(b []byte) {
	switch cap(b) {
	case headSize:
		headBuffers.Put((*[headSize]byte)(b[:headSize]))
	case bodySize:
		bodyBuffers.Put((*[bodySize]byte)(b[:bodySize]))
	}
}

// inbuf is what was read from a connection and not yet consumed: buf[r:w]. A
// parsed head keeps lying in base, which is buf until content moves into a
// buffer of its own. An idle one holds nothing.
type inbuf struct {
	nc      *netconn.Conn
	buf     []byte
	base    []byte // nil, or another buffer than buf in which the head lies
	r, w    int
	headEnd int           // end of the parsed head in its buffer
	last    int           // length of the last read of content
	tried   int           // length of the head when parsing was last worth it
	get     func() []byte // takeHeadBuffer, bound once: no closure per read
	most    int           // what getBody returns at most
	getBody func() []byte // takeBody, bound by the first that needs it
}

func (b *inbuf) attach(nc *netconn.Conn) {
	b.nc = nc
	b.get = takeHeadBuffer
}

// takeBody returns a buffer for as much content as may be read.
func (b *inbuf) takeBody() []byte {
	buf := takeBodyBuffer()
	return buf[:min(len(buf), b.most)]
}

func (b *inbuf) buffered() []byte { return b.buf[b.r:b.w] }
func (b *inbuf) empty() bool      { return b.r == b.w }

// takeAhead empties the buffer and returns a copy of what was in it, or nil.
func (b *inbuf) takeAhead() []byte {
	ahead := append([]byte(nil), b.buffered()...)
	b.r = b.w
	return ahead
}

// head returns the buffer that the parsed head lies in, and where in it the head
// ends.
func (b *inbuf) head() ([]byte, int) {
	if b.base != nil {
		return b.base, b.headEnd
	}
	return b.buf, b.headEnd
}

// release gives all buffers back.
func (b *inbuf) release() {
	if b.base != nil {
		giveBuffer(b.base)
	}
	if b.buf != nil {
		giveBuffer(b.buf)
	}
	b.buf, b.base, b.r, b.w, b.headEnd, b.last, b.tried = nil, nil, 0, 0, 0, 0, 0
}

// endMessage lets go of the head; bytes of the next message stay.
func (b *inbuf) endMessage() {
	if b.empty() {
		b.release()
		return
	}
	if b.base != nil {
		giveBuffer(b.base)
		b.base = nil
	}
	b.headEnd, b.last, b.tried = 0, 0, b.w-b.r
}

// more reads further bytes of a head, waiting without a buffer when there is
// none yet. It reports whether parsing again is worth it: a line has ended, the
// limit is reached, or there is a quarter more than when it was last worth it.
// Without that test a head that arrives byte by byte would be parsed as often
// as it has bytes.
func (b *inbuf) more(limit int) (worth bool, err error) {
	var n int
	if b.buf == nil {
		b.buf, n, err = b.nc.ReadInto(b.get)
		b.r, b.w, b.tried = 0, n, n
		return n > 0, err
	}
	b.makeRoom(limit)
	n, err = b.nc.Read(b.buf[b.w:])
	fresh := b.buf[b.w : b.w+n]
	b.w += n
	size := b.w - b.r
	worth = n > 0 && (size >= limit || size >= b.tried+b.tried/4+1 || bytes.IndexByte(fresh, '\n') >= 0)
	if worth {
		b.tried = size
	}
	return worth, err
}

// full reports that reading on takes a larger buffer.
func (b *inbuf) full() bool { return b.buf != nil && b.w == len(b.buf) && b.r == 0 }

// grow returns the size of the next larger buffer for a head of up to limit bytes.
func (b *inbuf) grow(limit int) int {
	if len(b.buf) < bodySize {
		return bodySize
	}
	return max(2*len(b.buf), min(limit, 128<<10)+smallRead)
}

// makeRoom leaves at least one free byte behind w, for a head of up to limit
// bytes.
func (b *inbuf) makeRoom(limit int) {
	if b.w < len(b.buf) {
		return
	}
	if b.r > 0 {
		b.w = copy(b.buf, b.buf[b.r:b.w])
		b.r = 0
		return
	}
	size := b.grow(limit)
	var grown []byte
	if size == bodySize {
		grown = takeBodyBuffer()
	} else {
		grown = make([]byte, size)
	}
	b.w = copy(grown, b.buf[:b.w])
	giveBuffer(b.buf)
	b.buf = grown
}

// consumeHead notes that the head takes n bytes.
func (b *inbuf) consumeHead(n int) {
	b.r += n
	b.headEnd = b.r
}

// moreBody reads content when none is buffered; at most limit bytes. It reads
// behind the head while that is enough, and into a larger buffer while content
// fills that up. The larger one is held only while there is content: many who
// stop in the midst of theirs would hold most of the memory.
func (b *inbuf) moreBody(limit int64) error {
	head := b.buf
	if b.base != nil {
		head = b.base
	}
	room := len(head) - b.headEnd
	if bulk := room < smallRead || b.last >= room && limit > int64(room); bulk || b.base != nil && b.last >= smallRead {
		return b.moreBulk(limit)
	}
	if b.base != nil {
		giveBuffer(b.buf)
		b.buf, b.base = b.base, nil
	}
	into := b.buf[b.headEnd:]
	if int64(len(into)) > limit {
		into = into[:limit]
	}
	b.r, b.w = b.headEnd, b.headEnd
	n, err := b.nc.Read(into)
	return b.came(n, err)
}

// moreBulk is moreBody for content that keeps coming.
func (b *inbuf) moreBulk(limit int64) error {
	if b.base == nil {
		b.base = b.buf
	} else {
		giveBuffer(b.buf)
	}
	b.buf, b.r, b.w = nil, 0, 0
	b.most = int(min(limit, bodySize))
	if b.getBody == nil {
		b.getBody = b.takeBody
	}
	var n int
	var err error
	b.buf, n, err = b.nc.ReadHolding(b.getBody, giveBuffer)
	return b.came(n, err)
}

func (b *inbuf) came(n int, err error) error {
	b.w += n
	b.last = n
	if n > 0 {
		return nil // it comes again
	}
	return err
}

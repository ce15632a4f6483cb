// SPDX-License-Identifier: Apache-2.0

package http2

import "sync"

const (
	smallChunk = 2 << 10
	largeChunk = 16 << 10
)

// chunk is a piece of content that has arrived.
type chunk struct {
	buf  []byte // of one of two sizes
	r, w int
	next *chunk
}

var (
	smallChunks = sync.Pool{New: func() any { return &chunk{buf: make([]byte, smallChunk)} }}
	largeChunks = sync.Pool{New: func() any { return &chunk{buf: make([]byte, largeChunk)} }}
)

func newChunk(n int) *chunk {
	if n <= smallChunk {
		return smallChunks.Get().(*chunk)
	}
	return largeChunks.Get().(*chunk)
}

func (c *chunk) free() {
	c.r, c.w, c.next = 0, 0, nil
	if len(c.buf) == smallChunk {
		smallChunks.Put(c)
		return
	}
	largeChunks.Put(c)
}

// content is what has arrived of a message's content, in order. The zero value
// is empty and holds no memory.
type content struct {
	first, last *chunk
	size        int
	lent        *chunk // handed out by take, until the next one
}

// put appends a copy. What was lent is not written to.
func (c *content) put(p []byte) {
	c.size += len(p)
	for len(p) > 0 {
		if c.last == nil || c.last.w == len(c.last.buf) {
			k := newChunk(len(p))
			if c.last == nil {
				c.first = k
			} else {
				c.last.next = k
			}
			c.last = k
		}
		n := copy(c.last.buf[c.last.w:], p)
		c.last.w += n
		p = p[n:]
	}
}

// take returns the next piece, valid until the following call; nil if there is
// none.
func (c *content) take() []byte {
	c.giveBack()
	k := c.first
	if k == nil {
		return nil
	}
	p := k.buf[k.r:k.w]
	c.size -= len(p)
	c.first, c.lent = k.next, k
	if c.first == nil {
		c.last = nil
	}
	return p
}

// giveBack ends what take has lent.
func (c *content) giveBack() {
	if c.lent != nil {
		c.lent.free()
		c.lent = nil
	}
}

// drop forgets what has not been taken and returns how much that was. What was
// lent stays.
func (c *content) drop() int {
	n := c.size
	for k := c.first; k != nil; {
		next := k.next
		k.free()
		k = next
	}
	c.first, c.last, c.size = nil, nil, 0
	return n
}

// read copies out what is there, at most len(p) bytes.
func (c *content) read(p []byte) int {
	c.giveBack()
	total := 0
	for len(p) > 0 && c.first != nil {
		k := c.first
		n := copy(p, k.buf[k.r:k.w])
		k.r += n
		p = p[n:]
		total += n
		if k.r < k.w {
			break
		}
		if c.first = k.next; c.first == nil {
			c.last = nil
		}
		k.free()
	}
	c.size -= total
	return total
}

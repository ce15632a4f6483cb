// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"io"
	"math"
	"sync/atomic"

	"github.com/weirlb/weir/internal/message"
)

// incoming is the content of the message being read. One goroutine reads;
// another may call unread and look at done.
type incoming struct {
	inbuf
	kind    message.Body
	left    atomic.Int64 // of a Sized body
	chunks  ChunkReader
	pending []byte // taken out of the buffer and not yet returned
	fault   *Error // found behind pending
	done    atomic.Bool
}

// begin starts on the content behind a head of n bytes.
func (in *incoming) begin(n int, kind message.Body, length int64) {
	in.consumeHead(n)
	in.kind, in.pending, in.fault = kind, nil, nil
	in.left.Store(length)
	in.chunks.Reset() // of any kind: Trailers must not be those of an earlier message
	in.done.Store(kind == message.NoBody || kind == message.Sized && length == 0)
}

// release gives the buffers back, and the memory of large trailers.
func (in *incoming) release() {
	in.inbuf.release()
	if cap(in.chunks.trailer) > 1<<10 {
		in.chunks = ChunkReader{}
	}
}

// take returns the content that is buffered, nil when there is none yet. Chunks
// are moved together, so that many small ones cost one write.
func (in *incoming) take() []byte {
	b := in.buffered()
	switch in.kind {
	case message.Sized:
		n := int(min(in.left.Load(), int64(len(b))))
		in.r += n
		if in.left.Add(-int64(n)) == 0 {
			in.done.Store(true)
		}
		return b[:n]
	case message.Chunked:
		return in.takeChunks()
	default:
		in.r = in.w
		return b
	}
}

func (in *incoming) takeChunks() []byte {
	start, end := 0, 0
	for in.r < in.w && !in.chunks.Done() {
		data, n, err := in.chunks.next(in.buf[in.r:in.w])
		in.r += n
		if err != nil {
			in.fault = err
			break
		}
		if len(data) == 0 {
			continue
		}
		if end == 0 {
			end = in.r
			start = end - len(data) // content is what Next consumed last
		} else {
			end += copy(in.buf[end:], data)
		}
	}
	if in.chunks.Done() {
		in.done.Store(true)
	}
	return in.buf[start:end]
}

// next returns content that is there without reading: the pending piece, or
// what is buffered. io.EOF at the end; nil, nil when bytes must be read.
func (in *incoming) next() ([]byte, error) {
	p := in.pending
	if p == nil && in.fault == nil && !in.done.Load() && !in.empty() {
		p = in.take()
	}
	in.pending = nil
	switch {
	case len(p) > 0:
		return p, nil
	case in.fault != nil:
		return nil, in.fault
	case in.done.Load():
		return nil, io.EOF
	}
	return nil, nil
}

// ready reports that next has something to say.
func (in *incoming) ready() bool {
	if in.pending == nil && in.fault == nil && !in.done.Load() && !in.empty() {
		if in.pending = in.take(); len(in.pending) == 0 {
			in.pending = nil
		}
	}
	return in.pending != nil || in.fault != nil || in.done.Load()
}

// readLimit is how many bytes may be read without taking what belongs to the
// next message, as far as that is known.
func (in *incoming) readLimit() int64 {
	if in.kind == message.Sized {
		return in.left.Load()
	}
	return math.MaxInt64
}

// raw reports how many bytes of content are still on the connection, none of
// them buffered and none framed.
func (in *incoming) raw() (int64, bool) {
	if in.done.Load() || in.pending != nil || in.fault != nil || !in.empty() || !in.nc.Spliceable() {
		return 0, false
	}
	switch in.kind {
	case message.Sized:
		return in.left.Load(), true
	case message.UntilClose:
		return -1, true
	}
	return 0, false
}

// skipped notes that n bytes of content were taken from the connection by
// somebody else.
func (in *incoming) skipped(n int64) {
	if in.kind == message.Sized {
		if in.left.Add(-n) <= 0 {
			in.done.Store(true)
		}
	}
}

// unread is how much content the peer has still to send: 0 when none, and more
// than any bound when that is not known.
func (in *incoming) unread() int64 {
	switch {
	case in.done.Load():
		return 0
	case in.kind == message.Sized:
		return in.left.Load()
	default:
		return math.MaxInt64
	}
}

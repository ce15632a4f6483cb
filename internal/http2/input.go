// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// input is what a connection of either side reads frames with. It is embedded in
// the connection and owned by its reader.
type input struct {
	// Constant.
	wire     *netconn.Conn
	idle     func()               // what there is to do before a wait: write
	arm      func()               // sets the deadline of the next wait
	late     func() error         // says what it means that the deadline has passed: the end, or nothing
	patience func() time.Duration // how long a frame other than DATA may take; 0: for ever

	in      source
	fr      *http2.Framer
	dec     decoder
	now     balance.Instant // of the last read
	got     balance.Instant // when bytes came last
	frameBy balance.Instant // when what has begun to arrive must be complete; 0: not set yet
	noLimit bool            // what arrives is content, which has limits of its own
	block   []byte          // of a header block in several frames
	opening opening         // what the first frame of that said
}

// receiver is the half of a stream that reads. It is guarded by the connection's
// mutex.
type receiver struct {
	remote   bool  // the peer has ended its half
	unwanted bool  // content that comes is dropped
	sized    bool  // Content-Length announced how much there is
	expect   int64 // of that what has not come
	received int64
	window   recvWindow
	content  content
	readWake chan struct{} // one element: look again
}

func (r *receiver) wakeReader() { wake(r.readWake) }

// keep takes a piece of content in for who reads it.
func (r *receiver) keep(p []byte, b *netconn.Budget, earns *calm) {
	r.content.put(p)
	r.received += int64(len(p))
	b.Hold(int64(len(p)))
	earns.content(len(p))
	r.wakeReader()
}

// next lends the next piece of content; there must be one.
func (r *receiver) next(b *netconn.Budget) []byte {
	p := r.content.take()
	b.Give(int64(len(p)))
	return p
}

// returned ends what next has lent, and returns how much that was.
func (r *receiver) returned() (n int) {
	if l := r.content.lent; l != nil {
		n = l.w - l.r
		r.content.giveBack()
	}
	return n
}

// discard drops what has come and was not taken.
func (r *receiver) discard(b *netconn.Budget) { b.Give(int64(r.content.drop())) }

func (c *input) begin(nc *netconn.Conn, now balance.Instant) {
	c.wire, c.now = nc, now
	c.dec.reset(defaultTable)
	c.in.more = c.readMore
	c.fr = http2.NewFramer(nil, &c.in)
	c.fr.SetMaxReadFrameSize(maxFrame)
}

// next waits for a frame's header.
func (c *input) next() (http2.FrameHeader, error) {
	if c.opening.stream == 0 {
		c.frameBy = 0
	}
	if c.in.empty() {
		if err := c.await(); err != nil {
			return http2.FrameHeader{}, err
		}
	}
	fh, err := c.fr.ReadFrameHeader()
	if err != nil {
		return fh, readFault(err)
	}
	return fh, nil
}

// await waits for the first bytes of a frame, holding no buffer.
func (c *input) await() error {
	c.in.release()
	c.idle()
	for {
		c.arm()
		buf, n, err := c.wire.ReadInto(takeReadBuffer)
		c.now = clock.Now()
		if n > 0 {
			c.got = c.now
			c.in.put(buf, n)
			return nil
		}
		if buf != nil {
			readBuffers.Put((*[readSize]byte)(buf))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return orEOF(err)
		}
		if err := c.late(); err != nil {
			return err
		}
	}
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// readMore reads on within a frame.
func (c *input) readMore(buf []byte) (int, error) {
	c.idle()
	for {
		if t := c.patience(); t > 0 && c.frameBy == 0 && !c.noLimit {
			c.frameBy = c.now.Add(t)
		}
		c.arm()
		n, err := c.wire.Read(buf)
		c.now = clock.Now()
		if n > 0 {
			c.got = c.now
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, orEOF(err)
		}
		if err := c.late(); err != nil {
			return 0, err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/netconn"
)

// core is what a connection of either side is made of: it is embedded there.
type core struct {
	budget *netconn.Budget // constant

	input // owned by the reader

	// Guarded by the connection's mutex.
	calm    calm
	window  int   // receive window of streams to come
	recv    int   // content that arrived and was not given back yet
	initial int64 // send window of streams to come
	said    bool  // a header block was sent
	output
}

// stream is what a stream of either side is made of. It is guarded by the
// connection's mutex.
type stream struct {
	receiver
	sender
	dead error // why it is over before its time
}

func (s *stream) base() *stream { return s }

// side is what is different about the streams S of one side.
type side[S streamOf] interface {
	// isIdle reports a stream that was not opened. Called under the mutex.
	isIdle(id uint32) bool
	// beginData finds the stream of a frame of DATA, of which the connection knows
	// already. No stream and no fault: what comes is dropped. Called under the mutex.
	beginData(id uint32, size int) (S, Code, error)
	// data takes a piece of it.
	data(s S, id uint32, p []byte) Code
	// endContent notes that the content has come to its end. Called under the mutex.
	endContent(s S) error
}

// streamOf is a stream of one side.
type streamOf interface {
	comparable
	base() *stream
}

// bodyReader is what readBody asks of a stream of one side. Called under the mutex.
type bodyReader interface {
	base() *stream
	// lacks says why no more content comes, of which there is none: io.EOF at its end.
	// nil: some may.
	lacks() error
	// awaitContent waits for it. It gives the mutex up meanwhile.
	awaitContent() error
}

// pay charges for what costs the peer nothing. Called by the reader.
func (c *core) pay(cost int, cause Cause) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.payLocked(cost, cause)
}

// payLocked is pay under the mutex.
func (c *core) payLocked(cost int, cause Cause) error {
	return c.payment(c.calm.pay(cost, c.now), cause)
}

// payWindowLocked charges for a WINDOW_UPDATE. Called under the mutex, by the reader.
func (c *core) payWindowLocked() error {
	return c.payment(c.calm.payWindow(c.now), CauseWindow)
}

// opened prepends what a connection's first header block begins with. Called
// under the mutex.
func (c *core) opened(block []byte) []byte {
	if c.said {
		return block
	}
	c.said = true
	return append([]byte{tableSizeZero}, block...)
}

// giveBack returns n bytes of a stream's window to the peer. Called under the mutex.
func (c *core) giveBack(s *stream, n int) {
	if k := s.window.take(n, c.budget); k > 0 && !s.remote && s.dead == nil && s.id != 0 {
		c.out = appendWindow(c.output.room(), s.id, k)
	}
}

// readBody returns the next piece of content, borrowed until the next call.
func (c *core) readBody(r bodyReader) ([]byte, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	s := r.base()
	if n := s.returned(); n > 0 {
		c.giveBack(s, n)
		if len(c.out) > 0 {
			c.kickLocked()
		}
	}
	for {
		switch {
		case s.dead != nil:
			return nil, s.dead
		case s.content.first != nil:
			return s.next(c.budget), nil
		}
		if err := r.lacks(); err != nil {
			return nil, err
		}
		if err := r.awaitContent(); err != nil {
			return nil, err
		}
	}
}

// readData takes a frame of content in, piece by piece.
func readData[S streamOf](c *core, t side[S], fh http2.FrameHeader) error {
	c.noLimit = true
	defer func() { c.noLimit = false }()
	var none S
	size, pad := int(fh.Length), 0
	if fh.StreamID == 0 {
		return protocolError("DATA on stream 0")
	}
	s, fault, err := beginData(c, t, fh.StreamID, size)
	if err != nil {
		return err
	}
	if fh.Flags.Has(http2.FlagDataPadded) {
		if size == 0 {
			return &ConnError{Code: CodeFrameSize, Detail: "DATA without the length of its padding"}
		}
		p, err := c.in.next(1)
		if err != nil {
			return err
		}
		size--
		if pad = int(p[0]); pad > size {
			return protocolError("more padding than DATA")
		}
		size -= pad
	}
	for left := size; left > 0; {
		p, err := c.in.next(left)
		if err != nil {
			return err
		}
		left -= len(p)
		if s != none && fault == CodeNo {
			fault = t.data(s, fh.StreamID, p)
		}
	}
	for left := pad; left > 0; {
		p, err := c.in.next(left)
		if err != nil {
			return err
		}
		left -= len(p)
	}
	if s != none && fault == CodeNo {
		if err := endData(c, t, s, fh, size); err != nil {
			return err
		}
	}
	if fault != CodeNo {
		return &streamFault{fh.StreamID, fault}
	}
	return nil
}

// beginData accounts for a frame of DATA and finds its stream.
func beginData[S streamOf](c *core, t side[S], id uint32, size int) (s S, _ Code, _ error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if t.isIdle(id) {
		return s, 0, protocolError("DATA on an idle stream")
	}
	// Whatever becomes of it: the connection's window is given back as it comes.
	if c.recv += size; c.recv > connWindow {
		return s, 0, &ConnError{Code: CodeFlowControl, Detail: "more DATA than the connection's window"}
	}
	if c.recv >= connWindow/2 {
		c.out = appendWindow(c.output.room(), 0, c.recv)
		c.recv = 0
	}
	return t.beginData(id, size)
}

// endData ends a frame of DATA with size bytes of content: padding is taken at once.
func endData[S streamOf](c *core, t side[S], s S, fh http2.FrameHeader, size int) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	end := fh.Flags.Has(http2.FlagDataEndStream)
	if size == 0 && !end {
		if err := c.payLocked(costEmpty, CauseEmpty); err != nil {
			return err
		}
	}
	b := s.base()
	if b.id != fh.StreamID || b.dead != nil {
		return nil // over meanwhile
	}
	if padding := int(fh.Length) - size; padding > 0 {
		c.giveBack(b, padding)
	}
	if end {
		return t.endContent(s)
	}
	return nil
}

// readWindow lets more be sent.
func readWindow[S streamOf](c *core, t side[S], streams map[uint32]S, f *http2.WindowUpdateFrame) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	if err := c.payWindowLocked(); err != nil {
		return err
	}
	if f.StreamID == 0 {
		if !c.send.add(int64(f.Increment)) {
			return &ConnError{Code: CodeFlowControl, Detail: "window of the connection too large"}
		}
		c.grantLocked()
		return nil
	}
	if s, ok := streams[f.StreamID]; ok {
		b := s.base()
		if !b.send.add(int64(f.Increment)) {
			return &streamFault{f.StreamID, CodeFlowControl}
		}
		b.wakeWriter()
		return nil
	}
	if t.isIdle(f.StreamID) {
		return protocolError("WINDOW_UPDATE on an idle stream")
	}
	return nil
}

// newInitial changes the send windows of all streams by the difference (section
// 6.9.2). Called under the mutex.
func newInitial[S streamOf](c *core, streams map[uint32]S, v uint32) error {
	if v > maxWindow {
		return &ConnError{Code: CodeFlowControl, Detail: "SETTINGS_INITIAL_WINDOW_SIZE too large"}
	}
	diff := int64(v) - c.initial
	c.initial = int64(v)
	for _, s := range streams {
		b := s.base()
		if !b.send.add(diff) {
			return &ConnError{Code: CodeFlowControl, Detail: "window of a stream too large"}
		}
		b.wakeWriter()
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package http2

import "sync"

// readSize is what is read at once. Frames of content are taken out of the buffer piece by
// piece, so that a frame need not fit.
const readSize = 16 << 10

var readBuffers = sync.Pool{New: func() any { return new([readSize]byte) }}

func takeReadBuffer() []byte { return readBuffers.Get().(*[readSize]byte)[:] }

// source is what was read from a connection and not yet consumed. An empty one
// holds nothing between two frames.
type source struct {
	buf  []byte
	r, w int
	more func([]byte) (int, error) // reads on, in the midst of a frame
}

func (s *source) empty() bool { return s.r == s.w }

// Read gives the Framer what it asks for.
func (s *source) Read(p []byte) (int, error) {
	if s.empty() {
		if err := s.refill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buf[s.r:s.w])
	s.r += n
	return n, nil
}

// all returns the next n bytes in one piece, borrowed until the following call: as
// they were read where they lie together, else gathered in *spill.
func (s *source) all(n int, spill *[]byte) ([]byte, error) {
	if s.w-s.r >= n {
		p := s.buf[s.r : s.r+n]
		s.r += n
		return p, nil
	}
	b := (*spill)[:0]
	for len(b) < n {
		p, err := s.next(n - len(b))
		if err != nil {
			return nil, err
		}
		b = append(b, p...)
	}
	*spill = b
	return b, nil
}

// next returns up to most bytes, borrowed until the following call.
func (s *source) next(most int) ([]byte, error) {
	if s.empty() {
		if err := s.refill(); err != nil {
			return nil, err
		}
	}
	n := min(most, s.w-s.r)
	p := s.buf[s.r : s.r+n]
	s.r += n
	return p, nil
}

func (s *source) refill() error {
	if s.buf == nil {
		s.buf = takeReadBuffer()
	}
	s.r, s.w = 0, 0
	n, err := s.more(s.buf)
	s.w = n
	if n > 0 {
		return nil // the error comes again
	}
	return err
}

// put takes a buffer with n bytes in it.
func (s *source) put(buf []byte, n int) { s.buf, s.r, s.w = buf, 0, n }

// release gives the buffer back.
func (s *source) release() {
	if len(s.buf) == readSize {
		readBuffers.Put((*[readSize]byte)(s.buf))
	}
	s.buf, s.r, s.w = nil, 0, 0
}

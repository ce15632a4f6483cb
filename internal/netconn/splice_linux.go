// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoSplice says that two connections cannot be spliced, or can no longer be
// (no descriptors left for a pipe but reserved ones). No byte is lost: go on by copying.
var ErrNoSplice = errors.New("splice not possible")

// Side says which of two connections an error came from.
type Side uint8

// The sides of a copy.
const (
	Source Side = iota
	Destination
)

// CopyError is an error of Splice or Tunnel with the side it came from.
type CopyError struct {
	Side Side
	Err  error
}

func (e *CopyError) Error() string {
	if e.Side == Source {
		return "read: " + e.Err.Error()
	}
	return "write: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *CopyError) Unwrap() error { return e.Err }

const (
	pipeSize  = 128 << 10 // asked of the kernel; less is accepted
	roundSize = 256 << 10 // most bytes between two calls of progress
)

// Splice moves n bytes (-1: all until the end) from src to dst inside the
// kernel. Both must be plain sockets, else it returns ErrNoSplice at once.
// After each round of at most 256 KiB progress, if not nil, gets the number of
// bytes that reached dst since the last call; it may move deadlines; its error
// ends the splice. While nothing arrives no pipe is held.
//
// It returns how many bytes reached dst. An end before n bytes is
// io.ErrUnexpectedEOF; errors of a connection are *CopyError. After a timeout
// that left bytes in the pipe the stream cannot be resumed.
func Splice(dst, src *Conn, n int64, progress func(int64) error) (int64, error) {
	if !dst.Spliceable() || !src.Spliceable() {
		return 0, ErrNoSplice
	}
	s := splicers.Get().(*splicer)
	defer splicers.Put(s)
	s.left, s.err, s.slow = n, nil, Arrears{Least: dst.Least()}
	defer s.drop()
	var total int64
	for s.left != 0 || s.held > 0 {
		moved, more, err := s.round(dst, src)
		total += moved
		if moved > 0 && progress != nil {
			if perr := progress(moved); perr != nil && err == nil {
				err = perr
			}
		}
		if err != nil {
			return total, err
		}
		if !more {
			break
		}
	}
	if s.left > 0 {
		return total, &CopyError{Side: Source, Err: io.ErrUnexpectedEOF}
	}
	return total, nil
}

// Spliceable reports whether the connection is a plain socket.
func (c *Conn) Spliceable() bool { return c.tls == nil && c.raw != nil && !c.foreign }

// splicer is one splice in progress. Its closures are bound once.
type splicer struct {
	in, out func(uintptr) bool
	pipe    *Pipe
	left    int64 // still wanted, negative for all
	held    int   // bytes in the pipe
	room    int   // bytes that the round may still take
	moved   int   // bytes the last in or out moved
	patient bool  // in waits when there is nothing; else it sets dry
	dry     bool
	err     error
	slow    Arrears // of who reads
}

var splicers = sync.Pool{New: func() any {
	s := &splicer{}
	s.in, s.out = s.tryIn, s.tryOut
	return s
}}

// round waits for bytes and moves up to roundSize of them. It ends early when
// dst has taken only some of them, so that progress hears of those before the
// rest is waited for: a slow reader progresses. more is false at the source's
// end.
func (s *splicer) round(dst, src *Conn) (moved int64, more bool, err error) {
	for moved < roundSize && (s.left != 0 || s.held > 0) {
		if s.held == 0 {
			if more, err := s.fill(src, moved); err != nil || !more || s.dry {
				return moved, more, err
			}
		}
		if err := s.wait(dst, &dst.wr, dst.raw.Write, s.out); err != nil {
			return moved, true, &CopyError{Side: Destination, Err: err}
		}
		moved += int64(s.moved)
		if s.held > 0 {
			return moved, true, nil
		}
	}
	s.drop()
	return moved, true, nil
}

// fill takes bytes into the empty pipe; the round has moved some already. It
// waits only for a round's first ones; else it sets dry: report, then wait
// without a pipe. more is false at the source's end.
func (s *splicer) fill(src *Conn, moved int64) (more bool, err error) {
	s.patient = moved == 0
	s.room = roundSize - int(moved)
	if err := s.wait(src, &src.rd, src.raw.Read, s.in); err != nil {
		if !errors.Is(err, ErrNoSplice) {
			err = &CopyError{Side: Source, Err: err}
		}
		return true, err
	}
	return s.dry || s.moved > 0, nil
}

// wait runs one direction until it moved something, failed or ended.
func (s *splicer) wait(c *Conn, d *deadline, io func(func(uintptr) bool) error, try func(uintptr) bool) error {
	for {
		err := io(try)
		if err == nil {
			return s.err
		}
		if err = c.absorb(d, err); err != nil {
			if d == &c.wr && errors.Is(err, os.ErrDeadlineExceeded) && s.lastTry(c) {
				return s.err
			}
			return err
		}
	}
}

// lastTry looks for room once more when the time is over: the kernel says that
// there is some only when a third of the socket's buffer is free, which a slow
// reader's may not be for long. It reports whether bytes left, and enough of them, or
// that failed.
func (s *splicer) lastTry(c *Conn) (ok bool) {
	_ = c.raw.Control(func(fd uintptr) { ok = s.tryOut(fd) }) // closed: there is no room
	return ok && (s.err != nil || s.held == 0 || !s.slow.Passed(int64(s.moved)))
}

// tryIn fills the pipe; false means wait, and then no pipe is held.
func (s *splicer) tryIn(fd uintptr) bool {
	s.dry = false
	if s.pipe == nil {
		if s.pipe = takePipe(); s.pipe == nil {
			s.err = ErrNoSplice
			return true
		}
	}
	want := min(s.pipe.size, s.room)
	if s.left > 0 {
		want = int(min(int64(want), s.left))
	}
	n, errno := sysSplice(fd, uintptr(s.pipe.w), want)
	switch errno {
	case 0:
	case syscall.EAGAIN:
		s.drop()
		s.dry = !s.patient
		return s.dry
	case syscall.EINVAL:
		s.err = ErrNoSplice
		return true
	default:
		s.err = os.NewSyscallError("splice", errno)
		return true
	}
	s.moved, s.held = n, n
	if s.left > 0 {
		s.left -= int64(n)
	}
	return true
}

// tryOut empties the pipe; false means wait for room.
func (s *splicer) tryOut(fd uintptr) bool {
	n, errno := sysSplice(uintptr(s.pipe.r), fd, s.held)
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno != 0:
		s.err = os.NewSyscallError("splice", errno)
		return true
	case n == 0:
		s.err = io.ErrUnexpectedEOF
		return true
	}
	s.moved = n
	s.held -= n
	return true
}

// drop gives the pipe back, or closes it when bytes are left in it.
func (s *splicer) drop() {
	if s.pipe == nil {
		return
	}
	if s.held == 0 {
		givePipe(s.pipe)
	} else {
		s.pipe.close()
	}
	s.pipe, s.held = nil, 0
}

// Pipe is a kernel pipe. One belongs to one goroutine at a time.
type Pipe struct {
	r, w int
	size int
}

func (p *Pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

// keepPipes is how many empty pipes are kept for the next splice. An empty pipe
// costs two descriptors and no pages.
const keepPipes = 16

var pipes struct {
	files Files
	mu    sync.Mutex
	free  []*Pipe
}

func takePipe() *Pipe {
	pipes.mu.Lock()
	if n := len(pipes.free); n > 0 {
		p := pipes.free[n-1]
		pipes.free = pipes.free[:n-1]
		pipes.mu.Unlock()
		return p
	}
	pipes.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil
	}
	p := &Pipe{r: fds[0], w: fds[1]}
	if pipes.files.Reserved(max(p.r, p.w)) {
		p.close()
		return nil
	}
	// Beyond the user's share of pipe memory the size cannot be raised.
	size, err := unix.FcntlInt(uintptr(p.r), unix.F_SETPIPE_SZ, pipeSize)
	if err != nil {
		if size, err = unix.FcntlInt(uintptr(p.r), unix.F_GETPIPE_SZ, 0); err != nil {
			size = 4096
		}
	}
	p.size = size
	return p
}

func givePipe(p *Pipe) {
	pipes.mu.Lock()
	keep := len(pipes.free) < keepPipes
	if keep {
		pipes.free = append(pipes.free, p)
	}
	pipes.mu.Unlock()
	if !keep {
		p.close()
	}
}

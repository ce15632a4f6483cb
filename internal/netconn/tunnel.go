// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// ErrStopped is what Tunnel returns when stop ended it.
var ErrStopped = errors.New("tunnel stopped")

// ErrIdle is what Tunnel returns when no byte moved either way for too long.
var ErrIdle = errors.New("tunnel idle for too long")

// TunnelError says which connection of a tunnel failed.
type TunnelError struct {
	Conn *Conn
	Err  error // a *CopyError
}

// Error implements error.
func (e *TunnelError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *TunnelError) Unwrap() error { return e.Err }

// copySize is the buffer of a direction that cannot be spliced, held only while
// bytes move.
const copySize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// TunnelOptions say what is wanted of a tunnel between a and b. The zero value wants
// nothing more than that bytes move.
type TunnelOptions struct {
	Idle time.Duration   // how long nothing may move either way; 0: no bound
	Stop <-chan struct{} // ends the tunnel when it is closed; nil: nobody does
	// Look sees what a sends before b gets it, until it reports that it has seen enough.
	// Its error ends the tunnel and is what is returned; what it was shown with it is not
	// passed on. nil: nobody looks.
	Look func([]byte) (enough bool, err error)
	// Moved hears of n bytes of a, or else b, that have reached the other one. It is
	// called from a goroutine for each direction, and holds that up. nil: nobody hears.
	Moved func(ofA bool, n int64)
}

// TunnelResult is what a tunnel has moved.
type TunnelResult struct {
	ToB, ToA int64
	First    *Conn // whose half ended first in order; nil: none has
}

// Tunnel moves bytes both ways between a and b until both halves have ended
// (nil), one fails (*TunnelError), nothing moved either way for too long (ErrIdle), or
// it is stopped (ErrStopped). The end of one half is passed on as a half-close and the
// other half goes on. Whatever it returns, both connections are the caller's to close;
// after an error they are aborted. Bytes read ahead must have been written first.
func Tunnel(a, b *Conn, o TunnelOptions) (TunnelResult, error) {
	t := &tunnel{a: a, b: b, opt: o, over: make(chan struct{})}
	t.halves.Store(2)
	t.moved()
	go t.half(a, b, &t.toA)
	if o.Stop == nil {
		t.half(b, a, &t.toB)
		<-t.over
	} else {
		go t.half(b, a, &t.toB)
		select {
		case <-t.over:
		case <-o.Stop:
			t.fail(ErrStopped)
			<-t.over
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return TunnelResult{ToB: t.toB, ToA: t.toA, First: t.first}, t.err
}

type tunnel struct {
	// Constant.
	a, b *Conn
	opt  TunnelOptions
	over chan struct{} // closed when both halves have ended

	halves   atomic.Int32 // still running
	last     atomic.Int64 // balance.Instant of the last byte either way
	toA, toB int64        // each of the goroutine of its direction, until over

	mu    sync.Mutex
	err   error // the first
	first *Conn // whose half ended first
}

// moved notes activity.
func (t *tunnel) moved() balance.Instant {
	now := clock.Now()
	t.last.Store(int64(now))
	return now
}

func (t *tunnel) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.a.Abort()
	t.b.Abort()
}

// ended notes that a half has, in order.
func (t *tunnel) ended(src *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		t.first = src
	}
}

// half copies one direction to its end.
func (t *tunnel) half(dst, src *Conn, count *int64) {
	defer func() {
		if t.halves.Add(-1) == 0 {
			close(t.over)
		}
	}()
	progress := func(n int64) error {
		*count += n
		t.arm(dst, src, t.moved())
		if t.opt.Moved != nil && n > 0 {
			t.opt.Moved(src == t.a, n)
		}
		return nil
	}
	t.arm(dst, src, clock.Now())
	look := t.opt.Look
	if src != t.a {
		look = nil
	}
	for {
		err := errSeen
		if look != nil {
			err = copyAll(dst, src, look, progress)
		}
		if errors.Is(err, errSeen) {
			look = nil
			_, err = Splice(dst, src, -1, progress)
		}
		if errors.Is(err, ErrNoSplice) {
			err = copyAll(dst, src, nil, progress)
		}
		switch {
		case err == nil:
			t.ended(src)
			if err := dst.CloseWrite(); err != nil {
				t.fail(&TunnelError{dst, &CopyError{Destination, err}})
			}
			return
		case t.stillMoving(err):
			t.arm(dst, src, balance.Instant(t.last.Load()))
		default:
			var ce *CopyError
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				err = ErrIdle
			case errors.As(err, &ce) && ce.Side == Source:
				err = &TunnelError{src, err}
			case ce != nil:
				err = &TunnelError{dst, err}
			}
			t.fail(err)
			return
		}
	}
}

// arm bounds both waits of a half by the idle time.
func (t *tunnel) arm(dst, src *Conn, from balance.Instant) {
	if t.opt.Idle <= 0 {
		src.SetReadDeadline(0)
		dst.SetWriteDeadline(0)
		return
	}
	src.SetReadDeadline(from.Add(t.opt.Idle))
	dst.SetWriteDeadline(from.Add(t.opt.Idle))
}

// stillMoving reports whether err is a read that waited too long while the
// other half moved.
func (t *tunnel) stillMoving(err error) bool {
	var ce *CopyError
	return errors.As(err, &ce) && ce.Side == Source && errors.Is(err, os.ErrDeadlineExceeded) &&
		clock.Now().Sub(balance.Instant(t.last.Load())) < t.opt.Idle
}

// copyAll copies through a buffer, which is held only while bytes move.
func copyAll(dst, src *Conn, look func([]byte) (enough bool, err error), progress func(int64) error) error {
	var held *[copySize]byte
	get := func() []byte {
		held = copyBuffers.Get().(*[copySize]byte)
		return held[:]
	}
	for {
		buf, n, err := src.ReadInto(get)
		enough := false
		if n > 0 && look != nil {
			var lerr error
			if enough, lerr = look(buf[:n]); lerr != nil {
				copyBuffers.Put(held)
				return lerr
			}
		}
		if n > 0 {
			m, werr := dst.Write(buf[:n])
			if perr := progress(int64(m)); werr == nil && perr != nil {
				werr = perr
			}
			if werr != nil {
				copyBuffers.Put(held)
				return &CopyError{Destination, werr}
			}
		}
		if held != nil {
			copyBuffers.Put(held)
			held = nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &CopyError{Source, err}
		case enough:
			return errSeen
		}
	}
}

// errSeen says that a look has seen enough.
var errSeen = errors.New("seen enough")

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

// Tunnel moves bytes both ways between a and b until both halves have ended
// (nil), one fails (*TunnelError), nothing moved either way for idle (ErrIdle; 0:
// no bound), or stop is closed (ErrStopped). The end of one half is passed on
// as a half-close and the other half goes on. It returns the bytes that reached
// b and a. Whatever it returns, both connections are the caller's to close;
// after an error they are aborted. Bytes read ahead must have been written first.
//
// look sees what a sends before b gets it, until it reports that it has seen enough.
// Its error ends the tunnel and is what is returned; what it was shown with it is not
// passed on. nil: nobody looks.
func Tunnel(a, b *Conn, idle time.Duration, stop <-chan struct{}, look func([]byte) (enough bool, err error)) (toB, toA int64, err error) {
	t := &tunnel{a: a, b: b, idle: idle, look: look, over: make(chan struct{})}
	t.halves.Store(2)
	t.moved(0)
	go t.half(a, b, &t.toA)
	if stop == nil {
		t.half(b, a, &t.toB)
		<-t.over
	} else {
		go t.half(b, a, &t.toB)
		select {
		case <-t.over:
		case <-stop:
			t.fail(ErrStopped)
			<-t.over
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.toB.Load(), t.toA.Load(), t.err
}

type tunnel struct {
	// Constant.
	a, b *Conn
	idle time.Duration
	over chan struct{} // closed when both halves have ended
	look func([]byte) (enough bool, err error)

	halves   atomic.Int32 // still running
	last     atomic.Int64 // balance.Instant of the last byte either way
	toA, toB atomic.Int64

	mu  sync.Mutex
	err error // the first
}

// moved notes activity.
func (t *tunnel) moved(n int64) balance.Instant {
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

// half copies one direction to its end.
func (t *tunnel) half(dst, src *Conn, count *atomic.Int64) {
	defer func() {
		if t.halves.Add(-1) == 0 {
			close(t.over)
		}
	}()
	progress := func(n int64) error {
		count.Add(n)
		t.arm(dst, src, t.moved(n))
		return nil
	}
	t.arm(dst, src, clock.Now())
	look := t.look
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
	if t.idle <= 0 {
		src.SetReadDeadline(0)
		dst.SetWriteDeadline(0)
		return
	}
	src.SetReadDeadline(from.Add(t.idle))
	dst.SetWriteDeadline(from.Add(t.idle))
}

// stillMoving reports whether err is a read that waited too long while the
// other half moved.
func (t *tunnel) stillMoving(err error) bool {
	var ce *CopyError
	return errors.As(err, &ce) && ce.Side == Source && errors.Is(err, os.ErrDeadlineExceeded) &&
		clock.Now().Sub(balance.Instant(t.last.Load())) < t.idle
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

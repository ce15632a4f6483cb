// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

// streamConn is a stream of either side as a connection. One goroutine reads, one
// writes; deadlines may be set by any. Close comes when both have ended: the stream
// may be another's afterwards.
type streamConn struct {
	// Constant.
	o      *output
	send   *sender
	recv   *receiver
	calm   *calm
	budget *netconn.Budget
	// Called under the connection's mutex.
	unreadable func() error // why nothing more can be read
	unwritable func() error // or written
	given      func(n int)  // content was taken: the peer may send more
	// Called without it.
	end   func()                             // ends the stream; by a reset unless both halves have ended
	watch func(fn func()) netconn.AbortWatch // nil: nobody tells

	// Guarded by the connection's mutex.
	closed          bool
	readBy, writeBy time.Time

	readTimer, writeTimer *time.Timer // of who reads, of who writes
}

// Read returns what has arrived.
func (t *streamConn) Read(p []byte) (int, error) {
	t.o.lock.Lock()
	defer t.o.lock.Unlock()
	for {
		if t.closed {
			return 0, net.ErrClosed
		}
		switch err := t.unreadable(); {
		case err != nil:
			return 0, err
		case t.recv.content.first != nil:
			n := t.recv.content.read(p)
			t.budget.Give(int64(n))
			t.given(n)
			if len(t.o.out) > 0 {
				t.o.kickLocked()
			}
			return n, nil
		case t.recv.remote:
			return 0, io.EOF
		}
		if err := t.wait(&t.readBy, t.recv.readWake, &t.readTimer); err != nil {
			return 0, err
		}
	}
}

// Write writes content.
func (t *streamConn) Write(p []byte) (int, error) {
	o := t.o
	o.lock.Lock()
	total := 0
	for {
		err := net.ErrClosed
		if !t.closed {
			err = t.unwritable()
		}
		if err == nil && t.send.local {
			err = net.ErrClosed
		}
		if err != nil {
			o.lock.Unlock()
			return total, err
		}
		if n := o.allowed(t.send, len(p)); n > 0 {
			o.spend(t.send, n)
			o.out = appendData(o.room(), t.send.id, p[:n], false)
			t.calm.sent(n, len(p))
			total += n
			p = p[n:]
		}
		if len(p) == 0 {
			o.lock.Unlock()
			o.flush(1)
			return total, nil
		}
		o.enqueue(t.send)
		o.kickLocked()
		if err := t.wait(&t.writeBy, t.send.writeWake, &t.writeTimer); err != nil {
			o.lock.Unlock()
			return total, err
		}
	}
}

// wait waits for a wake-up or a deadline. Called under the mutex, which it gives
// up meanwhile.
func (t *streamConn) wait(by *time.Time, wake <-chan struct{}, timer **time.Timer) error {
	until := *by
	var late <-chan time.Time
	if !until.IsZero() {
		d := time.Until(until)
		if d <= 0 {
			return os.ErrDeadlineExceeded
		}
		if *timer == nil {
			*timer = time.NewTimer(d)
		} else {
			(*timer).Reset(d)
		}
		late = (*timer).C
	}
	t.o.lock.Unlock()
	select {
	case <-wake:
	case <-late:
	}
	if late != nil {
		(*timer).Stop()
	}
	t.o.lock.Lock()
	return nil
}

// CloseWrite ends this half of the stream.
func (t *streamConn) CloseWrite() error {
	t.o.lock.Lock()
	if !t.closed && t.unwritable() == nil && !t.send.local {
		t.send.local = true
		t.o.out = appendData(t.o.room(), t.send.id, nil, true)
		t.o.kickLocked()
	}
	t.o.lock.Unlock()
	return nil
}

// Close ends the stream; unless both halves have ended, by a reset.
func (t *streamConn) Close() error {
	t.o.lock.Lock()
	closed := t.closed
	t.closed = true
	if !closed {
		t.recv.wakeReader()
		t.send.wakeWriter()
	}
	t.o.lock.Unlock()
	if !closed {
		t.end()
	}
	return nil
}

// LocalAddr is the connection's.
func (t *streamConn) LocalAddr() net.Addr { return t.o.nc.LocalAddr() }

// RemoteAddr is the connection's.
func (t *streamConn) RemoteAddr() net.Addr { return t.o.nc.RemoteAddr() }

// SetDeadline sets both.
func (t *streamConn) SetDeadline(at time.Time) error {
	_ = t.SetReadDeadline(at)
	return t.SetWriteDeadline(at)
}

// SetReadDeadline bounds reading.
func (t *streamConn) SetReadDeadline(at time.Time) error {
	t.o.lock.Lock()
	t.readBy = at
	if !t.closed {
		t.recv.wakeReader()
	}
	t.o.lock.Unlock()
	return nil
}

// SetWriteDeadline bounds writing.
func (t *streamConn) SetWriteDeadline(at time.Time) error {
	t.o.lock.Lock()
	t.writeBy = at
	if !t.closed {
		t.send.wakeWriter()
	}
	t.o.lock.Unlock()
	return nil
}

// NotifyAbort lets netconn watch the stream.
func (t *streamConn) NotifyAbort(fn func()) (stop func() bool) {
	if t.watch == nil {
		return func() bool { return true }
	}
	return t.watch(fn).Stop
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// under is the same connection as crypto/tls sees it from above: the socket,
// with early timers absorbed. It is a second face of Conn, not a second object.
type under Conn

// waitError says that an operation that must not wait would have to. It is a
// temporary net.Error, which crypto/tls does not remember.
type waitError struct{}

func (*waitError) Error() string   { return "operation would wait" }
func (*waitError) Timeout() bool   { return true }
func (*waitError) Temporary() bool { return true }

var errWouldWait = &waitError{}

func (u *under) Read(p []byte) (int, error) {
	c := (*Conn)(u)
	if len(c.first) > 0 {
		n := copy(p, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	n, err := u.readBelow(c, p)
	if errors.Is(err, io.EOF) {
		c.cutOff = true // crypto/tls stops reading at the closing alert
	}
	return n, err
}

func (u *under) readBelow(c *Conn, p []byte) (int, error) {
	if c.nowait {
		return c.readNow(p)
	}
	if t := c.turns; t != nil {
		t.give()
		defer t.take()
	}
	return c.read(p)
}

func (u *under) Write(p []byte) (int, error) {
	c := (*Conn)(u)
	if c.flags.Load()&flagWriteOnce != 0 {
		return c.writeNow(p)
	}
	return c.writeRecord(p)
}

// writeRecord writes a record of TLS. crypto/tls never goes on after a write that
// failed, even when a part of it was taken, so what a plain write leaves to its
// caller is done here: the deadline is one without progress, and each record, or
// part of one, that is taken gives the next the time that the first was given. A
// slow reader progresses, though the kernel says so only when a third of a
// buffer of megabytes is free.
func (c *Conn) writeRecord(p []byte) (int, error) {
	now, want := clock.Now(), balance.Instant(c.wr.want.Load())
	switch {
	case want == 0:
		c.recordUntil = 0
	case want != c.recordUntil: // set by the caller since
		c.recordTime, c.recordUntil = want.Sub(now), want
	default: // another record of the same write
		c.moreTime(now)
	}
	slow := Arrears{Least: c.Least()}
	for total := 0; ; {
		n, err := c.write(p[total:])
		total += n
		if n == 0 || c.recordUntil == 0 || !errors.Is(err, os.ErrDeadlineExceeded) ||
			balance.Instant(c.wr.want.Load()) != c.recordUntil { // who moved it meanwhile means it
			return total, err
		}
		if slow.Passed(int64(n)) {
			return total, err
		}
		c.moreTime(clock.Now())
	}
}

// moreTime gives the write that progresses its time again.
func (c *Conn) moreTime(now balance.Instant) {
	if next := now.Add(c.recordTime); next > c.recordUntil && c.wr.want.CompareAndSwap(int64(c.recordUntil), int64(next)) {
		c.recordUntil = next
	}
}

// Close closes the socket.
func (u *under) Close() error { return u.nc.Close() }

// CloseWrite is what tls.Conn.CloseWrite leaves to its owner.
func (u *under) CloseWrite() error { return nil }

func (u *under) LocalAddr() net.Addr  { return u.nc.LocalAddr() }
func (u *under) RemoteAddr() net.Addr { return u.nc.RemoteAddr() }

// The deadlines that crypto/tls sets itself concern only its closing alert,
// which flagWriteOnce bounds already; Conn's deadlines are the ones that count.
func (u *under) SetDeadline(time.Time) error      { return nil }
func (u *under) SetReadDeadline(time.Time) error  { return nil }
func (u *under) SetWriteDeadline(time.Time) error { return nil }

// readNow reads what is there, without waiting.
func (c *Conn) readNow(p []byte) (int, error) {
	if c.gone() {
		return 0, ErrAborted
	}
	if c.raw == nil {
		// No descriptor: a deadline that has just passed is the closest thing.
		was := balance.Instant(c.rd.want.Load())
		c.SetReadDeadline(clock.Now())
		n, err := c.nc.Read(p)
		c.SetReadDeadline(was)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errWouldWait
		}
		return n, err
	}
	return c.recvNow(p)
}

// writeNow writes what fits, without waiting.
func (c *Conn) writeNow(p []byte) (int, error) {
	if c.raw == nil {
		return 0, errWouldWait
	}
	return c.sendNow(p)
}

// readTLSNow reads what the TLS layer can give without waiting.
func (c *Conn) readTLSNow(p []byte) (int, error) {
	c.nowait = true
	n, err := c.tls.Read(p)
	c.nowait = false
	return n, err
}

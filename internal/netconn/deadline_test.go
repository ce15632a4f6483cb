// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// countingConn counts timer operations.
type countingConn struct {
	net.Conn
	reads, writes atomic.Int64
}

func (c *countingConn) SetReadDeadline(t time.Time) error {
	c.reads.Add(1)
	return c.Conn.SetReadDeadline(t)
}

func (c *countingConn) SetWriteDeadline(t time.Time) error {
	c.writes.Add(1)
	return c.Conn.SetWriteDeadline(t)
}

// TestDeadlineLaterIsFree: moving a deadline later, or away, is no timer
// operation; only an earlier one is.
func TestDeadlineLaterIsFree(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	k := &countingConn{Conn: a}
	c := New(k)
	now := clock.Now()
	c.SetReadDeadline(now.Add(time.Minute))
	c.SetWriteDeadline(now.Add(time.Minute))
	for i := range 10_000 {
		c.SetReadDeadline(now.Add(time.Minute + time.Duration(i)))
		c.SetWriteDeadline(now.Add(2*time.Minute + time.Duration(i)))
		c.SetReadDeadline(0)
	}
	if k.reads.Load() != 1 || k.writes.Load() != 1 {
		t.Errorf("later deadlines: %d read and %d write timer operations, want 1 and 1", k.reads.Load(), k.writes.Load())
	}
	c.SetReadDeadline(now.Add(time.Second))
	if k.reads.Load() != 2 {
		t.Errorf("an earlier deadline: %d operations, want 2", k.reads.Load())
	}
}

// TestDeadlineOracle sets random deadlines before and during a read, and
// expects it to end exactly when the last one set says, as a bare connection
// would.
func TestDeadlineOracle(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			c := New(a)
			for range 5 {
				start := clock.Now()
				var last balance.Instant
				set := func() {
					last = clock.Now().Add(time.Duration(1+rnd.IntN(1000)) * time.Millisecond)
					if rnd.IntN(4) == 0 {
						last = 0
					}
					c.SetReadDeadline(last)
				}
				for range 1 + rnd.IntN(3) {
					set()
				}
				var ended balance.Instant
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("seed %d: read: %v", seed, err)
					}
					ended = clock.Now()
				})
				for range rnd.IntN(3) {
					if last != 0 && last.Sub(clock.Now()) < 3*time.Millisecond {
						break
					}
					time.Sleep(time.Millisecond)
					set()
				}
				if last == 0 {
					last = clock.Now().Add(time.Second)
					c.SetReadDeadline(last)
				}
				wg.Wait()
				if ended != last {
					t.Fatalf("seed %d: read ended at %v, want %v", seed, ended.Sub(start), last.Sub(start))
				}
			}
		})
	}
}

// TestReadAfterTimeout: a timeout leaves every kind of connection usable.
func TestReadAfterTimeout(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		for range 3 {
			a.SetReadDeadline(clock.Now().Add(5 * time.Millisecond))
			if _, err := a.Read(make([]byte, 1)); err != os.ErrDeadlineExceeded { //nolint:errorlint // the exact value is promised
				t.Fatalf("read: %v", err)
			}
		}
		a.SetReadDeadline(clock.Now().Add(patience))
		go func() { _, _ = b.Write([]byte("hello")) }()
		got := make([]byte, 5)
		if _, err := io.ReadFull(a, got); err != nil || string(got) != "hello" {
			t.Fatalf("after timeouts: %q, %v", got, err)
		}
	})
}

// TestWriteOutlivesEarlyTimer: a write that waits longer than the armed timer,
// but not longer than the wanted deadline, goes on; under TLS too, where a
// timeout that crypto/tls saw would break the connection for good.
func TestWriteOutlivesEarlyTimer(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		const size = 8 << 20 // more than any socket buffer
		data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		a.SetWriteDeadline(clock.Now().Add(20 * time.Millisecond)) // armed
		a.SetWriteDeadline(clock.Now().Add(time.Minute))           // wanted
		got := make(chan []byte)
		go func() {
			time.Sleep(60 * time.Millisecond) // let the timer fire while the write waits
			p := make([]byte, size)
			n, _ := io.ReadFull(b, p)
			got <- p[:n]
		}()
		if n, err := a.Write(data); err != nil || n != size {
			t.Errorf("write: %d, %v", n, err)
			_ = a.Close()
		}
		if !bytes.Equal(<-got, data) {
			t.Error("the bytes differ")
		}
	})
}

// TestWriteTimeout: a peer that stops reading is given up at the deadline.
func TestWriteTimeout(t *testing.T) {
	kinds(t, func(t *testing.T, a, _ *Conn) {
		at := clock.Now().Add(30 * time.Millisecond)
		a.SetWriteDeadline(at)
		data := make([]byte, 64<<10)
		within(t, "write", func() {
			for {
				if _, err := a.Write(data); err != nil {
					if !errors.Is(err, os.ErrDeadlineExceeded) || clock.Now() < at {
						t.Errorf("write: %v at %v before the deadline", err, at.Sub(clock.Now()))
					}
					return
				}
			}
		})
	})
}

// TestConcurrentDeadlines: setters, readers and Abort race; nothing hangs and
// nothing ends late.
func TestConcurrentDeadlines(t *testing.T) {
	a, b := tcpPair(t)
	defer b.Close()
	c := New(a)
	var wg sync.WaitGroup
	var rounds atomic.Int64
	wg.Go(func() {
		for {
			at := clock.Now().Add(time.Millisecond)
			c.SetReadDeadline(clock.Now().Add(time.Hour))
			c.SetReadDeadline(at)
			_, err := c.Read(make([]byte, 1))
			if errors.Is(err, ErrAborted) {
				return
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
				return
			}
			rounds.Add(1)
		}
	})
	eventually(t, "rounds", func() bool { return rounds.Load() > 50 })
	c.Abort()
	within(t, "abort", wg.Wait)
}

func TestAbort(t *testing.T) {
	kinds(t, func(t *testing.T, a, _ *Conn) {
		a.SetReadDeadline(clock.Now().Add(time.Hour))
		done := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			done <- err
		}()
		a.Abort()
		a.Abort()
		within(t, "read", func() {
			if err := <-done; !errors.Is(err, ErrAborted) || !errors.Is(err, net.ErrClosed) {
				t.Errorf("read: %v", err)
			}
		})
		a.SetReadDeadline(clock.Now().Add(time.Hour)) // must not undo it
		a.SetWriteDeadline(clock.Now().Add(time.Hour))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, ErrAborted) {
			t.Errorf("read after abort: %v", err)
		}
		if _, err := a.Write(make([]byte, 1)); !errors.Is(err, ErrAborted) {
			t.Errorf("write after abort: %v", err)
		}
		if s := a.Peek(); s != Error {
			t.Errorf("peek after abort: %v", s)
		}
		if err := a.Close(); err != nil {
			t.Errorf("close after abort: %v", err)
		}
	})
}

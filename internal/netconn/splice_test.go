// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
)

// noise returns n bytes that do not repeat.
func noise(n int, seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.NativeEndian.PutUint64(p[i:], rnd.Uint64())
	}
	return p[:n]
}

// keptPipes counts the pipes that are kept; a splice in progress holds others.
func keptPipes() int {
	pipes.mu.Lock()
	defer pipes.mu.Unlock()
	return len(pipes.free)
}

// relay is a client and a server with two connections between them to splice.
type relay struct {
	client, server net.Conn // far ends
	in, out        *Conn    // near ends
}

func newRelay(t *testing.T, unix bool) *relay {
	t.Helper()
	if unix {
		a, b := unixPair(t)
		c, d := unixPair(t)
		return &relay{a, d, New(b), New(c)}
	}
	a, b := tcpPair(t)
	c, d := tcpPair(t)
	return &relay{a, d, New(b), New(c)}
}

// TestSplice moves streams of many sizes, counted and until the end, written in
// random pieces and read by a reader that rests; content, count and progress
// must agree.
func TestSplice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, unix := range []bool{false, true} {
		for _, size := range []int{0, 1, 100, 4096, pipeSize, pipeSize + 1, roundSize + 1, 3 << 20} {
			for _, counted := range []bool{true, false} {
				r := newRelay(t, unix)
				data := noise(size, uint64(size))
				var wg sync.WaitGroup
				wg.Go(func() {
					for p := data; len(p) > 0; {
						k := min(len(p), 1+rnd.IntN(200_000))
						if _, err := r.client.Write(p[:k]); err != nil {
							t.Errorf("client: %v", err)
							return
						}
						p = p[k:]
					}
					if !counted {
						_ = r.client.Close()
					}
				})
				sum := sha256.New()
				got := make(chan int64, 1)
				wg.Go(func() {
					var n int64
					for k, err := int64(1), error(nil); k > 0 && err == nil; n += k {
						k, err = io.CopyN(sum, r.server, 1<<18)
						if n < 1<<20 {
							time.Sleep(time.Millisecond) // lets the pipe back up
						}
					}
					got <- n
				})
				n := int64(-1)
				if counted {
					n = int64(size)
				}
				var told int64
				moved, err := Splice(r.out, r.in, n, func(k int64) error {
					if k <= 0 || k > roundSize {
						t.Errorf("progress of %d bytes", k)
					}
					told += k
					return nil
				})
				_ = r.out.Close()
				wg.Wait()
				want := sha256.Sum256(data)
				if err != nil || moved != int64(size) || told != moved || <-got != moved || !bytes.Equal(sum.Sum(nil), want[:]) {
					t.Errorf("unix %v, counted %v: %d of %d bytes, told %d, %v", unix, counted, moved, size, told, err)
				}
			}
		}
	}
	if k := keptPipes(); k == 0 || k > keepPipes {
		t.Errorf("%d pipes kept", k)
	}
}

// TestSpliceExact: a counted splice leaves what follows alone.
func TestSpliceExact(t *testing.T) {
	r := newRelay(t, false)
	mustWrite(t, r.client, "bodynext")
	if n, err := Splice(r.out, r.in, 4, nil); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(r.in, got); err != nil || string(got) != "next" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSpliceIdleHoldsNoPipe: while nothing arrives, before the first byte and
// between bytes, every pipe is back; and what arrived is reported before the
// wait.
func TestSpliceIdleHoldsNoPipe(t *testing.T) {
	r := newRelay(t, false)
	for range keepPipes { // fill the store, so that a held pipe shows
		p := takePipe()
		defer givePipe(p)
	}
	p := takePipe()
	givePipe(p)
	before := keptPipes()
	progress := make(chan int64, 100)
	done := make(chan error, 1)
	go func() {
		_, err := Splice(r.out, r.in, -1, func(n int64) error { progress <- n; return nil })
		done <- err
	}()
	for range 3 {
		time.Sleep(5 * time.Millisecond)
		eventually(t, "pipes back", func() bool { return keptPipes() == before })
		mustWrite(t, r.client, "ping")
		if n := <-progress; n != 4 {
			t.Errorf("progress of %d", n)
		}
		if _, err := io.ReadFull(r.server, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	_ = r.client.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSpliceErrors(t *testing.T) {
	side := func(err error) Side {
		var ce *CopyError
		if !errors.As(err, &ce) {
			t.Helper()
			t.Fatalf("%v is no CopyError", err)
		}
		return ce.Side
	}
	t.Run("early end", func(t *testing.T) {
		r := newRelay(t, false)
		mustWrite(t, r.client, "abc")
		_ = r.client.Close()
		n, err := Splice(r.out, r.in, 10, nil)
		if n != 3 || !errors.Is(err, io.ErrUnexpectedEOF) || side(err) != Source {
			t.Error(n, err)
		}
	})
	t.Run("source resets", func(t *testing.T) {
		r := newRelay(t, false)
		_ = New(r.client).Reset()
		if _, err := Splice(r.out, r.in, -1, nil); err == nil || side(err) != Source {
			t.Error(err)
		}
	})
	t.Run("destination gone", func(t *testing.T) {
		r := newRelay(t, false)
		_ = New(r.server).Reset()
		go func() {
			for {
				if _, err := r.client.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}()
		if _, err := Splice(r.out, r.in, -1, nil); err == nil || side(err) != Destination {
			t.Error(err)
		}
		_ = r.in.Close()
	})
	t.Run("timeouts", func(t *testing.T) {
		r := newRelay(t, false)
		r.in.SetReadDeadline(clock.Now().Add(10 * time.Millisecond))
		if _, err := Splice(r.out, r.in, -1, nil); !errors.Is(err, os.ErrDeadlineExceeded) || side(err) != Source {
			t.Error(err)
		}
		r.in.SetReadDeadline(0)
		r.out.SetWriteDeadline(clock.Now().Add(10 * time.Millisecond)) // fires early, absorbed
		r.out.SetWriteDeadline(clock.Now().Add(100 * time.Millisecond))
		go func() {
			for {
				if _, err := r.client.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}()
		if _, err := Splice(r.out, r.in, -1, nil); !errors.Is(err, os.ErrDeadlineExceeded) || side(err) != Destination {
			t.Error(err)
		}
		_ = r.in.Close()
	})
	t.Run("progress refuses", func(t *testing.T) {
		r := newRelay(t, false)
		mustWrite(t, r.client, "abc")
		stop := errors.New("enough")
		if n, err := Splice(r.out, r.in, -1, func(int64) error { return stop }); n != 3 || !errors.Is(err, stop) {
			t.Error(n, err)
		}
	})
	t.Run("not possible", func(t *testing.T) {
		a, b := tlsPair(t)
		r := newRelay(t, false)
		p, _ := net.Pipe()
		for _, c := range []*Conn{a, b, New(p)} {
			if _, err := Splice(r.out, c, -1, nil); !errors.Is(err, ErrNoSplice) {
				t.Error(err)
			}
			if _, err := Splice(c, r.in, -1, nil); !errors.Is(err, ErrNoSplice) {
				t.Error(err)
			}
		}
	})
}

// TestSpliceTellsOfSlowReader: what a full destination has taken is progress at
// once, not when it has taken a whole round, which may be past its deadline.
func TestSpliceTellsOfSlowReader(t *testing.T) {
	r := newRelay(t, false)
	_ = r.out.TCP().SetWriteBuffer(4 << 10)
	_ = r.server.(*net.TCPConn).SetReadBuffer(4 << 10)
	data := noise(pipeSize, 7)
	mustWrite(t, r.client, string(data))
	var told atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := Splice(r.out, r.in, int64(len(data)), func(k int64) error {
			told.Add(k)
			return nil
		})
		done <- err
	}()
	eventually(t, "progress while the reader rests", func() bool { return told.Load() > 0 })
	got := make([]byte, len(data))
	if _, err := io.ReadFull(r.server, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("content differs, %v", err)
	}
	if err := <-done; err != nil || told.Load() != int64(len(data)) {
		t.Errorf("told of %d of %d bytes, %v", told.Load(), len(data), err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
)

type tunnelResult struct {
	toB, toA int64
	byA      bool // has ended its half first
	err      error
}

// tunnels runs a test over the ways the two connections can be made. a and b
// are far ends.
func tunnels(t *testing.T, idle time.Duration, test func(t *testing.T, a, b *Conn, stop chan struct{}, result <-chan tunnelResult)) {
	far := map[string]func(t *testing.T) (far, near *Conn){
		"tcp":  func(t *testing.T) (*Conn, *Conn) { a, b := tcpPair(t); return New(a), New(b) },
		"tls":  func(t *testing.T) (*Conn, *Conn) { return tlsPair(t) },
		"unix": func(t *testing.T) (*Conn, *Conn) { a, b := unixPair(t); return New(a), New(b) },
	}
	for _, c := range [][2]string{{"tcp", "tcp"}, {"tls", "tcp"}, {"tls", "tls"}, {"unix", "tcp"}} {
		for _, stoppable := range []bool{true, false} {
			t.Run(c[0]+"-"+c[1], func(t *testing.T) {
				a, x := far[c[0]](t)
				b, y := far[c[1]](t)
				var stop chan struct{}
				if stoppable {
					stop = make(chan struct{})
				}
				result := make(chan tunnelResult, 1)
				go func() {
					var look func([]byte) (bool, error)
					if stoppable {
						seen := 0
						look = func(b []byte) (bool, error) { seen += len(b); return seen > 3, nil }
					}
					var ofX, ofY int64 // each is one direction's
					r, err := Tunnel(x, y, TunnelOptions{Idle: idle, Stop: stop, Look: look, Moved: func(ofA bool, n int64) {
						if ofA {
							ofX += n
						} else {
							ofY += n
						}
					}})
					if ofX != r.ToB || ofY != r.ToA {
						t.Errorf("told of %d and %d bytes, moved %+v", ofX, ofY, r)
					}
					_, _ = x.Close(), y.Close()
					result <- tunnelResult{r.ToB, r.ToA, r.First == x, err}
				}()
				for _, c := range []*Conn{a, b} {
					c.SetReadDeadline(clock.Now().Add(patience))
					c.SetWriteDeadline(clock.Now().Add(patience))
				}
				test(t, a, b, stop, result)
			})
		}
	}
}

// TestTunnel moves bytes both ways at once and ends one half after the other.
func TestTunnel(t *testing.T) {
	tunnels(t, time.Minute, func(t *testing.T, a, b *Conn, _ chan struct{}, result <-chan tunnelResult) {
		up, down := noise(1<<20, 1), noise(700_000, 2)
		var wg sync.WaitGroup
		var atA []byte
		wg.Go(func() { _, _ = a.Write(up); _ = a.CloseWrite() })
		atB := make([]byte, len(up))
		wg.Go(func() { atA, _ = io.ReadAll(a) })
		if _, err := io.ReadFull(b, atB); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // io.EOF is never wrapped
			t.Errorf("a's end reached b as %v", err)
		}
		if _, err := b.Write(down); err != nil { // the other half goes on
			t.Fatal(err)
		}
		_ = b.CloseWrite()
		wg.Wait()
		r := <-result
		if r.err != nil || !r.byA || r.toB != int64(len(up)) || r.toA != int64(len(down)) {
			t.Errorf("%+v", r)
		}
		if !bytes.Equal(atA, down) || !bytes.Equal(atB, up) {
			t.Error("bytes differ")
		}
	})
}

// TestTunnelStop: the owner's stop, or a reset, ends both halves at once.
func TestTunnelStop(t *testing.T) {
	tunnels(t, time.Minute, func(t *testing.T, a, _ *Conn, stop chan struct{}, result <-chan tunnelResult) {
		if stop == nil {
			if _, ok := a.Raw().(*net.UnixConn); ok {
				t.Skip("unix sockets know no reset")
			}
			_ = a.Reset()
			if r := <-result; r.err == nil {
				t.Error("a reset passed for a proper end")
			}
			return
		}
		mustWrite(t, a, "x")
		close(stop)
		within(t, "stop", func() {
			if r := <-result; !errors.Is(r.err, ErrStopped) {
				t.Errorf("%+v", r)
			}
		})
	})
}

// TestTunnelIdle: traffic one way keeps both halves; silence both ways ends the
// tunnel, and not before its time.
func TestTunnelIdle(t *testing.T) {
	const idle = time.Second
	tunnels(t, idle, func(t *testing.T, a, b *Conn, _ chan struct{}, result <-chan tunnelResult) {
		var last time.Time
		for range 10 {
			last = time.Now()
			mustWrite(t, a, "x")
			if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
				if time.Since(last) >= idle {
					return // it was this test that fell silent: a machine too busy to judge
				}
				t.Fatalf("while one way is busy: %v", err)
			}
			time.Sleep(idle / 5)
		}
		r := <-result
		if d := time.Since(last); !errors.Is(r.err, ErrIdle) || d < idle {
			t.Errorf("%+v after %v of silence", r, d)
		}
	})
}

// TestTunnelPipe: connections without descriptors are copied.
func TestTunnelPipe(t *testing.T) {
	a, x := net.Pipe()
	b, y := net.Pipe()
	result := make(chan tunnelResult, 1)
	go func() {
		r, err := Tunnel(New(x), New(y), TunnelOptions{})
		result <- tunnelResult{r.ToB, r.ToA, false, err}
	}()
	go func() { mustWrite(t, a, "hello") }()
	if _, err := io.ReadFull(b, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	_ = b.Close()
	within(t, "end", func() {
		if r := <-result; r.toB != 5 {
			t.Errorf("%+v", r)
		}
	})
	_, _ = x.Close(), y.Close()
}

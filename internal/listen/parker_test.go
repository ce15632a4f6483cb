// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

func newParker(t *testing.T, onPanic func(any, []byte)) *Parker {
	t.Helper()
	p, err := NewParker(onPanic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestParkedEcho serves connections that are parked between any two messages.
func TestParkedEcho(t *testing.T) {
	p := newParker(t, nil)
	var loop func(c *netconn.Conn)
	loop = func(c *netconn.Conn) {
		p.Park(c, clock.Now().Add(time.Minute), func(ready bool) {
			buf := make([]byte, 100)
			n, err := c.Read(buf)
			if !ready || err != nil {
				_ = c.Close()
				return
			}
			if _, err := c.Write(buf[:n]); err != nil {
				_ = c.Close()
				return
			}
			loop(c)
		})
	}
	l := start(t, Options{}, func(c *netconn.Conn, _ Info) { loop(c) })
	var wg sync.WaitGroup
	for range 20 {
		c := dial(t, l)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for range 30 {
				if _, err := io.WriteString(c, "ping"); err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(4) == 0 {
					time.Sleep(time.Duration(rnd.IntN(1000)) * time.Microsecond)
				}
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	eventually(t, "all gone", func() bool { return l.Connections() == 0 && p.Parked() == 0 })
}

// TestParkEnds: every way a park ends, and what resume is told.
func TestParkEnds(t *testing.T) {
	conns := make(chan *netconn.Conn, 1)
	l := start(t, Options{}, func(c *netconn.Conn, _ Info) { conns <- c })
	for name, k := range map[string]struct {
		deadline time.Duration
		end      func(c *netconn.Conn, peer net.Conn, p *Parker)
		ready    bool
	}{
		"bytes":    {time.Hour, func(_ *netconn.Conn, peer net.Conn, _ *Parker) { _, _ = peer.Write([]byte("x")) }, true},
		"end":      {time.Hour, func(_ *netconn.Conn, peer net.Conn, _ *Parker) { _ = peer.Close() }, true},
		"reset":    {0, func(_ *netconn.Conn, peer net.Conn, _ *Parker) { _ = netconn.New(peer).Reset() }, true},
		"deadline": {10 * time.Millisecond, func(*netconn.Conn, net.Conn, *Parker) {}, false},
		"abort":    {time.Hour, func(c *netconn.Conn, _ net.Conn, _ *Parker) { c.Abort() }, false},
		"close":    {time.Hour, func(c *netconn.Conn, _ net.Conn, _ *Parker) { _ = c.Close() }, false},
		"parker":   {time.Hour, func(_ *netconn.Conn, _ net.Conn, p *Parker) { _ = p.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParker(t, nil)
			peer := dial(t, l)
			c := <-conns
			defer c.Close()
			var at balance.Instant
			if k.deadline != 0 {
				at = clock.Now().Add(k.deadline)
			}
			got := make(chan bool, 2)
			p.Park(c, at, func(ready bool) { got <- ready })
			k.end(c, peer, p)
			within(t, "resume", func() {
				if ready := <-got; ready != k.ready {
					t.Errorf("ready %v", ready)
				}
			})
			if p.Parked() != 0 {
				t.Errorf("%d parked", p.Parked())
			}
			if name == "parker" {
				p.Park(c, 0, func(ready bool) { got <- ready })
				within(t, "resume after close", func() {
					if <-got {
						t.Error("ready")
					}
				})
			}
		})
	}
}

func TestParkPanic(t *testing.T) {
	var told atomic.Value
	p := newParker(t, func(v any, _ []byte) { told.Store(v) })
	conns := make(chan *netconn.Conn, 1)
	l := start(t, Options{}, func(c *netconn.Conn, _ Info) { conns <- c })
	peer := dial(t, l)
	p.Park(<-conns, 0, func(bool) { panic("bug") })
	_, _ = peer.Write([]byte("x"))
	eventually(t, "panic told, connection closed", func() bool { return told.Load() == "bug" && l.Connections() == 0 })
}

// TestCannotPark: what has bytes above the socket, or no socket, is resumed at
// once to be closed.
func TestCannotPark(t *testing.T) {
	p := newParker(t, nil)
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	for _, c := range []*netconn.Conn{netconn.New(x), netconn.Server(y, &tls.Config{})} {
		if CanPark(c) {
			t.Error("parkable")
		}
		got := make(chan bool, 1)
		p.Park(c, 0, func(ready bool) { got <- ready })
		within(t, "resume", func() {
			if <-got {
				t.Error("ready")
			}
		})
	}
}

// BenchmarkPark is one park and resume, beside a blocking read of the same
// message.
func BenchmarkPark(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer peer.Close()
	nc, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	c := netconn.New(nc)
	one := make([]byte, 1)
	b.Run("park", func(b *testing.B) {
		p, err := NewParker(nil)
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		done := make(chan struct{})
		b.ReportAllocs()
		for b.Loop() {
			p.Park(c, 0, func(bool) { _, _ = c.Read(one); done <- struct{}{} })
			_, _ = peer.Write(one)
			<-done
		}
	})
	b.Run("goroutine", func(b *testing.B) {
		done := make(chan struct{})
		go func() {
			for {
				if _, err := c.Read(one); err != nil {
					return
				}
				done <- struct{}{}
			}
		}()
		b.ReportAllocs()
		for b.Loop() {
			_, _ = peer.Write(one)
			<-done
		}
	})
}

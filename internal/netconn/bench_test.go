// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
)

// echo answers every message of size bytes on c until it ends.
func echo(c net.Conn, size int) {
	p := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, p); err != nil {
			return
		}
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

// BenchmarkRoundTrip compares a request's worth of calls (two deadlines, a
// write, a read) with the same on a bare net.Conn, with and without its eager
// deadlines.
func BenchmarkRoundTrip(b *testing.B) {
	const size = 300
	run := func(name string, round func(b *testing.B, c *net.TCPConn) func()) {
		b.Run(name, func(b *testing.B) {
			x, y := tcpPair(b)
			go echo(y, size)
			f := round(b, x)
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	msg, buf := make([]byte, size), make([]byte, 4096)
	run("bare", func(b *testing.B, c *net.TCPConn) func() {
		return func() {
			_, _ = c.Write(msg)
			_, _ = c.Read(buf)
		}
	})
	run("bare-eager-deadlines", func(b *testing.B, c *net.TCPConn) func() {
		return func() {
			_ = c.SetWriteDeadline(time.Now().Add(30 * time.Second))
			_, _ = c.Write(msg)
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, _ = c.Read(buf)
		}
	})
	run("lazy-deadlines", func(b *testing.B, t *net.TCPConn) func() {
		c := New(t)
		return func() {
			c.SetWriteDeadline(clock.Now().Add(30 * time.Second))
			_, _ = c.Write(msg)
			c.SetReadDeadline(clock.Now().Add(30 * time.Second))
			_, _ = c.Read(buf)
		}
	})
	run("lazy-deadlines-into", func(b *testing.B, t *net.TCPConn) func() {
		c := New(t)
		get := func() []byte { return buf }
		return func() {
			c.SetWriteDeadline(clock.Now().Add(30 * time.Second))
			_, _ = c.WriteBuffers(msg[:100], msg[100:])
			c.SetReadDeadline(clock.Now().Add(30 * time.Second))
			_, _, _ = c.ReadInto(get)
		}
	})
}

func BenchmarkPeek(b *testing.B) {
	x, _ := tcpPair(b)
	c := New(x)
	b.ReportAllocs()
	for b.Loop() {
		c.Peek()
	}
}

// BenchmarkWatch is the cost of watching one slow exchange.
func BenchmarkWatch(b *testing.B) {
	x, _ := tcpPair(b)
	c := New(x)
	b.ReportAllocs()
	for b.Loop() {
		c.OnAbort(func() {}).Stop()
	}
}

func BenchmarkSetDeadline(b *testing.B) {
	x, _ := tcpPair(b)
	c := New(x)
	at := clock.Now().Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		at++
		c.SetReadDeadline(at)
	}
}

// TestNoAllocations: what every request does allocates nothing.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop at random under the race detector")
	}
	x, y := tcpPair(t)
	go echo(y, 300)
	c := New(x)
	msg, buf := make([]byte, 300), make([]byte, 4096)
	get := func() []byte { return buf }
	for name, f := range map[string]func(){
		"deadlines": func() {
			c.SetReadDeadline(clock.Now().Add(time.Minute))
			c.SetWriteDeadline(clock.Now().Add(time.Minute))
		},
		"write and read": func() {
			_, _ = c.Write(msg)
			_, _ = io.ReadFull(c, buf[:300])
		},
		"write buffers and read into": func() {
			_, _ = c.WriteBuffers(msg[:100], msg[100:])
			for n := 0; n < 300; {
				_, k, err := c.ReadInto(get)
				if err != nil {
					t.Fatal(err)
				}
				n += k
			}
		},
		"peek": func() { c.Peek() },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

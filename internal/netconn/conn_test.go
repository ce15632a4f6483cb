// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestReadIntoWaitsWithoutBuffer: no buffer is asked for before there are
// bytes, one is asked for once, and nothing is lost whatever the size.
func TestReadIntoWaitsWithoutBuffer(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		for _, size := range []int{1, 2, 1023, 1024, 1025, 4096, 20_000} {
			data := bytes.Repeat([]byte{byte(size)}, size)
			gets := 0
			get := func() []byte { gets++; return make([]byte, 4096) }
			a.SetReadDeadline(clock.Now().Add(5 * time.Millisecond))
			if buf, n, err := a.ReadInto(get); gets != 0 || buf != nil || n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("size %d: idle: %d gets, %d bytes, %v", size, gets, n, err)
			}
			a.SetReadDeadline(clock.Now().Add(patience))
			go func() { _, _ = b.Write(data) }()
			var got []byte
			for reads := 1; len(got) < size; reads++ {
				buf, n, err := a.ReadInto(get)
				if err != nil || n < 1 || gets != reads {
					t.Fatalf("size %d: read %d: %d bytes, %d gets, %v", size, reads, n, gets, err)
				}
				got = append(got, buf[:n]...)
			}
			if !bytes.Equal(got, data) {
				t.Fatalf("size %d: bytes differ", size)
			}
		}
		time.AfterFunc(5*time.Millisecond, func() { _ = b.CloseWrite() })
		for range 2 { // found after a wait, and at once
			gets := 0
			buf, n, err := a.ReadInto(func() []byte { gets++; return make([]byte, 4096) })
			if n != 0 || err != io.EOF || (buf != nil) != (gets == 1) { //nolint:errorlint // io.EOF is never wrapped
				t.Errorf("end: %d bytes, %d gets, %v", n, gets, err)
			}
		}
	})
}

// TestReadHolding: a buffer is held only while there are bytes, none is lost, and
// what is kept for another read stays.
func TestReadHolding(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		held := 0
		get := func() []byte { held++; return make([]byte, 4096) }
		put := func([]byte) { held-- }
		for _, size := range []int{1, 1025, 4096, 20_000} {
			a.SetReadDeadline(clock.Now().Add(5 * time.Millisecond))
			if buf, n, err := a.ReadHolding(get, put); n != 0 || held != 0 && buf == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("size %d: idle: %d held, %d bytes, %v", size, held, n, err)
			}
			if a.raw != nil && held != 0 {
				t.Fatalf("%d buffers are held after a wait", held)
			}
			held = 0
			a.SetReadDeadline(clock.Now().Add(patience))
			data := bytes.Repeat([]byte{byte(size)}, size)
			go func() { _, _ = b.Write(data) }()
			var got []byte
			for len(got) < size {
				buf, n, err := a.ReadHolding(get, put)
				if err != nil || n < 1 || held != 1 {
					t.Fatalf("size %d: %d bytes, %d held, %v", size, n, held, err)
				}
				got = append(got, buf[:n]...)
				held = 0
			}
			if !bytes.Equal(got, data) {
				t.Fatalf("size %d: bytes differ", size)
			}
		}
		_ = b.CloseWrite()
		if _, n, err := a.ReadHolding(get, put); n != 0 || err != io.EOF { //nolint:errorlint // io.EOF is never wrapped
			t.Errorf("end: %d bytes, %v", n, err)
		}
	})
}

// TestReadIntoWhole: bytes that are there, or come while it waits, come whole
// when they fit.
func TestReadIntoWhole(t *testing.T) {
	for _, size := range []int{10, 1024, 1025, 4096} {
		a, b := tcpPair(t)
		c := New(a)
		if _, err := b.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "arrival", func() bool {
			p := make([]byte, size)
			n, err := c.now(p, syscall.MSG_PEEK, false)
			return err == nil && n == size
		})
		if _, n, err := c.ReadInto(func() []byte { return make([]byte, 4096) }); n != size || err != nil {
			t.Errorf("%d bytes: got %d at once, %v", size, n, err)
		}
		time.AfterFunc(5*time.Millisecond, func() { _, _ = b.Write(make([]byte, size)) })
		if _, n, err := c.ReadInto(func() []byte { return make([]byte, 4096) }); n != size || err != nil {
			t.Errorf("%d bytes: got %d after a wait, %v", size, n, err)
		}
	}
}

func TestReadIntoSmallBuffer(t *testing.T) {
	a, b := tcpPair(t)
	mustWrite(t, b, strings.Repeat("x", 100))
	if _, _, err := New(a).ReadInto(func() []byte { return make([]byte, 10) }); !errors.Is(err, errSmallBuffer) {
		t.Errorf("a buffer too small: %v", err)
	}
}

// TestWriteBuffers writes pairs of every shape against a reader of random
// speed.
func TestWriteBuffers(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		rnd := rand.New(rand.NewPCG(1, 2))
		noise := make([]byte, 8<<20)
		for i := 0; i < len(noise); i += 8 {
			binary.NativeEndian.PutUint64(noise[i:], rnd.Uint64())
		}
		some := func(n int) []byte { i := rnd.IntN(len(noise) - n); return noise[i : i+n] }
		sizes := []int{0, 1, 100, 16 << 10, 100 << 10}
		var want []byte
		var wg sync.WaitGroup
		var got []byte
		wg.Go(func() { got, _ = io.ReadAll(b) })
		for _, n := range sizes {
			for _, m := range sizes {
				p, q := some(n), some(m)
				a.SetWriteDeadline(clock.Now().Add(patience))
				k, err := a.WriteBuffers(p, q)
				if err != nil || k != n+m {
					t.Fatalf("%d + %d: wrote %d, %v", n, m, k, err)
				}
				want = append(append(want, p...), q...)
			}
		}
		_ = a.Close()
		wg.Wait()
		if !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, want %d, or they differ", len(got), len(want))
		}
	})
}

func TestWriteBuffersTimeout(t *testing.T) {
	a, _ := tcpPair(t)
	c := New(a)
	p, q := make([]byte, 1000), make([]byte, 64<<20)
	c.SetWriteDeadline(clock.Now().Add(50 * time.Millisecond))
	n, err := c.WriteBuffers(p, q)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n < 1000 || n > 63<<20 {
		t.Errorf("wrote %d, %v", n, err)
	}
}

func TestPeek(t *testing.T) {
	for _, kind := range []string{"tcp", "unix", "tls"} {
		open := func() (*Conn, *Conn) {
			switch kind {
			case "tcp":
				a, b := tcpPair(t)
				return New(a), New(b)
			case "unix":
				a, b := unixPair(t)
				return New(a), New(b)
			}
			return tlsPair(t)
		}
		t.Run(kind, func(t *testing.T) {
			a, b := open()
			if s := a.Peek(); s != Quiet {
				t.Errorf("fresh: %v", s)
			}
			mustWrite(t, b, "xyz")
			eventually(t, "bytes", func() bool { return a.Peek() == HasBytes })
			if s := a.Peek(); s != HasBytes {
				t.Errorf("second look: %v", s)
			}
			got := make([]byte, 3)
			if _, err := io.ReadFull(a, got); err != nil || string(got) != "xyz" {
				t.Fatalf("a peek lost bytes: %q, %v", got, err)
			}
			if s := a.Peek(); s != Quiet {
				t.Errorf("read empty: %v", s)
			}
			mustWrite(t, b, "xyz")
			eventually(t, "bytes", func() bool { return a.Peek() == HasBytes })
			var into []byte
			for len(into) < 3 {
				buf, n, err := a.ReadInto(func() []byte { return make([]byte, 2048) })
				if err != nil {
					t.Fatal(err)
				}
				into = append(into, buf[:n]...)
			}
			if string(into) != "xyz" {
				t.Fatalf("a peek lost bytes: %q", into)
			}
			if err := b.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "end", func() bool { return a.Peek() == EOF })

			a, b = open()
			_ = b.Reset()
			eventually(t, "reset", func() bool { s := a.Peek(); return s == Error || kind != "tcp" && s == EOF })
			_ = a.Close()
			if s := a.Peek(); s != Error {
				t.Errorf("closed: %v", s)
			}
		})
	}
}

// TestPeekTakesTickets: session tickets that arrive after the handshake are no
// bytes, so that a TLS connection can be kept and used again.
func TestPeekTakesTickets(t *testing.T) {
	client, server := tlsPair(t)
	mustWrite(t, server, "a") // tickets were sent just before
	got := make([]byte, 1)
	if _, err := client.Read(got); err != nil {
		t.Fatal(err)
	}
	if s := client.Peek(); s != Quiet {
		t.Errorf("after tickets: %v", s)
	}
	mustWrite(t, client, "b")
	if _, err := io.ReadFull(server, got); err != nil || got[0] != 'b' {
		t.Errorf("after a peek: %q, %v", got, err)
	}
}

func TestCloseTellsOnce(t *testing.T) {
	kinds(t, func(t *testing.T, a, b *Conn) {
		n := 0
		a.SetOnClose(func() { n++ })
		_ = a.Close()
		_ = a.Close()
		_ = a.Reset()
		if n != 1 {
			t.Errorf("told %d times", n)
		}
		b.SetReadDeadline(clock.Now().Add(patience))
		if _, err := b.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // io.EOF is never wrapped
			t.Errorf("the peer sees %v", err)
		}
	})
}

// TestCloseDoesNotWait: a TLS peer that does not read cannot hold Close up.
func TestCloseDoesNotWait(t *testing.T) {
	client, _ := tlsPair(t)
	client.SetWriteDeadline(clock.Now().Add(20 * time.Millisecond))
	for {
		if _, err := client.Write(make([]byte, 64<<10)); err != nil {
			break
		}
	}
	start := time.Now()
	_ = client.Close()
	if d := time.Since(start); d > time.Second {
		t.Errorf("close took %v", d)
	}
}

func TestReset(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var a, b *Conn
		if secure {
			a, b = tlsPair(t)
		} else {
			x, y := tcpPair(t)
			a, b = New(x), New(y)
		}
		mustWrite(t, a, "part")
		if err := a.Reset(); err != nil {
			t.Fatal(err)
		}
		b.SetReadDeadline(clock.Now().Add(patience))
		_, err := io.ReadAll(b)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("tls %v: the peer sees %v", secure, err)
		}
	}
}

// TestForeignTLS: a *tls.Conn made elsewhere works, and one made here yields
// its own Conn.
func TestForeignTLS(t *testing.T) {
	client, server := tlsPair(t)
	if New(client.TLS()) != client || New(server.Raw()) != server {
		t.Error("New does not find the Conn below its own tls.Conn")
	}
	x, y := tcpPair(t)
	ca := weirtest.NewAuthority(t)
	tc := tls.Client(x, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
	ts := tls.Server(y, &tls.Config{Certificates: []tls.Certificate{ca.Issue("localhost")}})
	go func() { _ = ts.Handshake() }()
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	a, b := New(tc), New(ts)
	if a.TCP() != nil || a.TLS() != tc {
		t.Error("a foreign TLS connection passes for plain")
	}
	a.SetReadDeadline(clock.Now().Add(5 * time.Millisecond))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	a.SetReadDeadline(0)
	a.SetWriteDeadline(clock.Now().Add(20 * time.Millisecond))
	a.SetWriteDeadline(clock.Now().Add(patience))
	go func() { _, _ = a.Write(make([]byte, 4<<20)) }()
	if n, err := io.ReadFull(b, make([]byte, 4<<20)); err != nil {
		t.Errorf("%d, %v", n, err)
	}
	go func() { _, _ = b.Write([]byte("x")) }()
	if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestTurns: handshakes compute in turns, and a peer that says nothing holds
// none.
func TestTurns(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{ca.Issue("localhost")}}
	turns := NewTurns(1)
	var wg sync.WaitGroup
	var silent []*Conn
	for range 5 {
		_, b := tcpPair(t)
		s := Server(b, cfg)
		silent = append(silent, s)
		wg.Go(func() {
			if err := s.HandshakeTurns(0, turns); !errors.Is(err, ErrAborted) {
				t.Errorf("silent: %v", err)
			}
		})
	}
	for range 3 {
		a, b := tcpPair(t)
		s := Server(b, cfg)
		wg.Go(func() {
			if err := s.HandshakeTurns(clock.Now().Add(patience), turns); err != nil {
				t.Errorf("busy: %v", err)
			}
		})
		if err := tls.Client(a, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}).Handshake(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range silent {
		s.Abort()
	}
	within(t, "handshakes", wg.Wait)
	if len(turns.sem) != 0 {
		t.Errorf("%d turns are still held", len(turns.sem))
	}
}

func TestOptions(t *testing.T) {
	a, _ := tcpPair(t)
	c := New(a)
	if err := c.SetUserTimeout(5 * time.Second); err != nil {
		t.Error(err)
	}
	if err := c.SetKeepAlive(net.KeepAliveConfig{Enable: true, Idle: time.Minute}); err != nil {
		t.Error(err)
	}
	p, _ := net.Pipe()
	if err := New(p).SetUserTimeout(time.Second); err != nil {
		t.Error(err)
	}
	if Descriptor(a) < 3 || FileLimit() < 100 {
		t.Errorf("descriptor %d, limit %d", Descriptor(a), FileLimit())
	}
}

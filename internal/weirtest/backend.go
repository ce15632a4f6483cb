// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
)

// Backend is a server whose connections follow a script.
type Backend struct {
	tb     testing.TB
	ln     net.Listener
	script func(*Conn)
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu: open ones
	count int               // guarded by mu: connections so far
	down  bool              // guarded by mu
	seen  []*Message        // guarded by mu
}

// NewBackend listens on loopback and runs script for every connection, on a
// goroutine of its own; the connection is closed when it returns. Everything
// ends with the test.
func NewBackend(tb testing.TB, script func(*Conn)) *Backend {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	b := &Backend{tb: tb, ln: ln, script: script, conns: map[net.Conn]bool{}}
	b.wg.Add(1)
	go b.accept()
	tb.Cleanup(b.Close)
	return b
}

// Addr returns host:port.
func (b *Backend) Addr() string { return b.ln.Addr().String() }

// Connections returns how many connections were accepted so far.
func (b *Backend) Connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// Note remembers a request that a script executed, for Backend.Seen.
func (c *Conn) Note(m *Message) {
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	c.backend.seen = append(c.backend.seen, m)
}

// Seen returns the requests that were noted.
func (b *Backend) Seen() []*Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Message(nil), b.seen...)
}

// Close stops listening, closes all connections and waits for their scripts.
func (b *Backend) Close() {
	b.mu.Lock()
	b.down = true
	_ = b.ln.Close()
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

func (b *Backend) accept() {
	defer b.wg.Done()
	for {
		c, err := b.ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		if b.down {
			b.mu.Unlock()
			_ = c.Close()
			return
		}
		n := b.count
		b.count++
		b.conns[c] = true
		b.wg.Add(1)
		b.mu.Unlock()
		go b.run(c, n)
	}
}

func (b *Backend) run(c net.Conn, n int) {
	defer b.wg.Done()
	defer func() {
		_ = c.Close()
		b.mu.Lock()
		delete(b.conns, c)
		b.mu.Unlock()
	}()
	conn := Wrap(b.tb, c)
	conn.N, conn.backend = n, b
	b.script(conn)
}

// Always answers every request on every connection with the same bytes, and
// notes it.
func Always(tb testing.TB, answer string) *Backend {
	return NewBackend(tb, func(c *Conn) {
		for {
			m := c.Request()
			if m == nil {
				return
			}
			c.Note(m)
			if m.Torn || c.Try(answer) != nil {
				return
			}
		}
	})
}

// Dead returns an address on loopback that refuses connections.
func Dead(tb testing.TB) string {
	tb.Helper()
	// Bound and not listening: as long as the test lasts nobody else can get the
	// port, the proxy under test least of all.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port) //nolint:errcheck,forcetypeassert // what was bound
}

// FreeAddr returns an address on loopback that nobody listens on, and that stays
// free while a server is away from it: its port is below those that the kernel
// gives to connections that go out, its host one that hardly anybody else uses.
func FreeAddr() string {
	for {
		addr := fmt.Sprintf("127.%d.%d.%d:%d", 64+rand.IntN(64), rand.IntN(256), 1+rand.IntN(254), 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// packeteer is a server of datagrams that answers each with its name, and with where
// it came from: a flow that was begun anew comes from another port.
type packeteer struct {
	t    *testing.T
	addr string

	mu sync.Mutex
	c  net.PacketConn
}

func startPacketeer(t *testing.T) *packeteer {
	s := &packeteer{t: t, addr: freeUDP(t)}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// freeUDP is an address on which nobody listens.
func freeUDP(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test's
	return c.LocalAddr().String()
}

func (s *packeteer) start() {
	s.t.Helper()
	c, err := net.ListenPacket("udp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.c = c
	s.mu.Unlock()
	go func() {
		b := make([]byte, 70000)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(fmt.Appendf(nil, "%s %s %s", s.addr, from, b[:n]), from)
		}
	}()
}

func (s *packeteer) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.c.Close()
}

// flow is one client of datagrams.
type flow struct {
	c          net.Conn
	with, port string // who answered last, and to whom
	n          int
}

func openFlow(addr string) (*flow, error) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return nil, err
	}
	return &flow{c: c}, nil
}

// ask sends a datagram and waits for its answer.
func (f *flow) ask(limit time.Duration) error {
	f.n++
	what := fmt.Sprint("datagram ", f.n)
	if _, err := f.c.Write([]byte(what)); err != nil {
		return err
	}
	_ = f.c.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 2048)
	n, err := f.c.Read(b)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	parts := strings.SplitN(string(b[:n]), " ", 3)
	if len(parts) != 3 || parts[2] != what {
		return fmt.Errorf("%q was answered %q", what, b[:n])
	}
	f.with, f.port = parts[0], parts[1]
	return nil
}

// insist is ask that sends again what had no answer for a while, and passes over answers
// to what was asked before.
func (f *flow) insist(limit time.Duration) error {
	f.n++
	what := fmt.Sprint("datagram ", f.n)
	b := make([]byte, 2048)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if _, err := f.c.Write([]byte(what)); err != nil {
			return err
		}
		_ = f.c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for {
			n, err := f.c.Read(b)
			if err != nil {
				break
			}
			if parts := strings.SplitN(string(b[:n]), " ", 3); len(parts) == 3 && parts[2] == what {
				f.with, f.port = parts[0], parts[1]
				return nil
			}
		}
	}
	return fmt.Errorf("%s: no answer in %v", what, limit)
}

// TestUDP takes flows through what happens to their backends and to weir. Every
// datagram is answered, over a reload and an upgrade by the same backend to the same
// port: the flow went on. A drained backend gets no new flows and keeps its own, until
// its deadline; a killed one loses what it was asked, and its clients go elsewhere.
func TestUDP(t *testing.T) {
	a, b := startPacketeer(t), startPacketeer(t)
	listen := freeUDP(t)
	text := func(dir, idle string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: {path: %s/access.log}}
shutdown: {delay: none, deadline: 3s, spread: 1s}
listeners:
  game: {bind: %q, protocol: udp, pool: servers, timeouts: {idle: %s}}
pools:
  servers:
    balance: round_robin
    backends: ["udp://%s", "udp://%s"]
    drain: {deadline: 3s, spread: 500ms}
`, dir, dir, listen, idle, a.addr, b.addr)
	}
	w := startLive(t, binary, func(dir string) string { return text(dir, "60s") })
	var all []*flow
	t.Cleanup(func() {
		for _, f := range all {
			_ = f.c.Close()
		}
	})
	open := func(n int) {
		t.Helper()
		for range n {
			f, err := openFlow(listen)
			if err == nil {
				err = f.ask(20 * time.Second)
			}
			if err != nil {
				t.Fatalf("flow %d: %v\n%s", len(all), err, w.said())
			}
			all = append(all, f)
		}
	}
	// goOn has every flow ask, all the time, while fn runs, and reports what did not
	// stay.
	goOn := func(what string, fn func()) (moved int64) {
		t.Helper()
		var over atomic.Bool
		var clients sync.WaitGroup
		var lost, away atomic.Int64
		for _, f := range all {
			clients.Go(func() {
				with, port := f.with, f.port
				for rounds := 0; rounds < 3 || !over.Load(); rounds++ {
					if err := f.ask(20 * time.Second); err != nil {
						lost.Add(1)
						t.Errorf("%s: %v", what, err)
						return
					}
					if f.with != with || f.port != port {
						away.Add(1)
						with, port = f.with, f.port
					}
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
		fn()
		over.Store(true)
		clients.Wait()
		if lost.Load() > 0 {
			t.Fatalf("%s: %d datagrams were not answered\n%s", what, lost.Load(), w.said())
		}
		return away.Load()
	}
	stays := func(what string, fn func()) {
		t.Helper()
		if n := goOn(what, fn); n > 0 {
			t.Fatalf("%s: %d flows were begun anew\n%s", what, n, w.said())
		}
	}

	open(40)
	stays("all is well", func() {})
	w.write(text(w.dir, "55s"))
	stays("a reload", func() { w.must("reload") })

	old := w.pid
	stays("an upgrade", func() {
		if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "another process serves", func() bool { return w.ask().PID != old })
		w.pid = w.ask().PID
		w.reap(w.pid)
		open(10)
	})
	count := func(with string) (n int) {
		for _, f := range all {
			if f.with == with {
				n++
			}
		}
		return n
	}
	before := count(b.addr)
	if before < 10 {
		t.Fatalf("only %d flows on the backend that is to drain", before)
	}
	stays("a drain begins", func() {
		w.must("drain", "servers/"+b.addr) // and says to the predecessor that it is not asked back
		open(10)
		eventually(t, 60*time.Second, "the predecessor is gone", func() bool { _, over := w.exit(old); return over })
	})
	if n := count(b.addr); n != before {
		t.Errorf("%d flows on the draining backend, %d before", n, before)
	}
	eventually(t, 20*time.Second, "its deadline has moved the others", func() bool {
		goOn("the drain ends", func() {})
		return count(b.addr) == 0
	})
	w.must("enable", "servers/"+b.addr)

	b.kill()
	open(20) // at once: a refused datagram is sent elsewhere
	if n := count(b.addr); n > 0 {
		t.Errorf("%d flows are with a dead backend", n)
	}
	b.start()

	if err := syscall.Kill(w.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "weir ends, and cuts what is left", func() bool { _, over := w.exit(w.pid); return over })
	if code, _ := w.exit(w.pid); code != 0 {
		t.Errorf("weir ended with %d", code)
	}
	log, err := os.ReadFile(w.dir + "/access.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"proto":"udp"`, `"reason":"drain_cut"`, `"datagrams_in":`} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the access log has no %s", want)
		}
	}
}

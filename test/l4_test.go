// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// talker is a server of lines that says its name before each that it gives back.
// It can be killed with all its connections, and started again.
type talker struct {
	t      *testing.T
	addr   string
	secure *tls.Config // nil: it speaks in clear

	mu   sync.Mutex
	ln   net.Listener
	open map[net.Conn]bool
}

func startTalker(t *testing.T) *talker { return startSecureTalker(t, nil) }

func startSecureTalker(t *testing.T, secure *tls.Config) *talker {
	s := &talker{t: t, addr: freeAddr(t), secure: secure}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *talker) start() {
	s.t.Helper()
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.secure != nil {
		ln = tls.NewListener(ln, s.secure)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ln, s.open = ln, map[net.Conn]bool{}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = true
			s.mu.Unlock()
			go func() {
				for in := bufio.NewScanner(c); in.Scan(); {
					_, _ = fmt.Fprintf(c, "%s %s\n", s.addr, in.Text())
				}
				_ = c.Close()
				s.mu.Lock()
				delete(s.open, c)
				s.mu.Unlock()
			}()
		}
	}()
}

// kill ends it as the kernel ends a killed process: its connections are reset.
func (s *talker) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.ln.Close()
	for c := range s.open {
		if s, ok := c.(*tls.Conn); ok {
			c = s.NetConn()
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// chat is one session of a client.
type chat struct {
	c    net.Conn
	in   *bufio.Reader
	with string // who answered last
}

func openChat(addr string) (*chat, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return chatOver(c)
}

func chatOver(c net.Conn) (*chat, error) {
	s := &chat{c: c, in: bufio.NewReader(c)}
	return s, s.say("hello")
}

func (s *chat) say(what string) error {
	_ = s.c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintln(s.c, what); err != nil {
		return err
	}
	line, err := s.in.ReadString('\n')
	if err != nil {
		return err
	}
	who, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if rest != what || s.with != "" && who != s.with {
		return fmt.Errorf("%q was answered %q, by %s before", what, line, s.with)
	}
	s.with = who
	return nil
}

// TestSessions takes connections of a protocol that weir knows nothing of through
// what happens to their backends and to weir: a kill breaks the sessions of the
// killed, and no others; a reload, an upgrade and a drain break none.
func TestSessions(t *testing.T) {
	a, b := startTalker(t), startTalker(t)
	listen := freeAddr(t)
	text := func(dir, idle string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: {path: %s/access.log}}
shutdown: {delay: none, deadline: 3s, spread: 1s}
listeners:
  lines: {bind: %q, protocol: tcp, pool: talkers, timeouts: {idle: %s}}
pools:
  talkers:
    balance: round_robin
    backends: ["tcp://%s", "tcp://%s"]
    health: {active: {interval: 1s, fast_interval: 200ms, rise: 1}}
    drain: {deadline: 2s, spread: 500ms}
`, dir, dir, listen, idle, a.addr, b.addr)
	}
	w := startLive(t, binary, func(dir string) string { return text(dir, "1h") })
	var all []*chat
	t.Cleanup(func() {
		for _, s := range all {
			_ = s.c.Close()
		}
	})
	open := func(n int) {
		t.Helper()
		for range n {
			s, err := openChat(listen)
			if err != nil {
				t.Fatalf("session %d: %v\n%s", len(all), err, w.said())
			}
			all = append(all, s)
		}
	}
	// goOn says something in every session and returns those that are left.
	goOn := func(what string) (broken map[string]int) {
		broken = map[string]int{}
		var left []*chat
		for _, s := range all {
			if err := s.say(what); err != nil {
				broken[s.with]++
				_ = s.c.Close()
				continue
			}
			left = append(left, s)
		}
		all = left
		return broken
	}
	whole := func(what string) {
		t.Helper()
		if broken := goOn(what); len(broken) > 0 {
			t.Fatalf("%s: sessions broke: %v\n%s", what, broken, w.said())
		}
	}

	open(200)
	whole("all is well")
	a.kill()
	open(50) // at once: whoever is dead is passed over
	if broken := goOn("after a kill"); broken[a.addr] < 90 || len(broken) != 1 {
		t.Fatalf("a killed backend broke %v", broken)
	}
	for _, s := range all {
		if s.with != b.addr {
			t.Fatalf("a session is with %s", s.with)
		}
	}
	a.start()
	eventually(t, 20*time.Second, "the backend has sessions again", func() bool {
		open(1)
		return all[len(all)-1].with == a.addr
	})

	w.write(text(w.dir, "2h"))
	w.must("reload")
	whole("after a reload")
	open(20)

	old := w.pid
	if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "another process serves", func() bool { return w.ask().PID != old })
	w.pid = w.ask().PID
	w.reap(w.pid)
	whole("after an upgrade")
	if _, over := w.exit(old); over {
		t.Error("the predecessor has left its sessions")
	}
	for _, s := range all {
		_ = s.c.Close()
	}
	all = nil
	eventually(t, 20*time.Second, "the predecessor is gone", func() bool { _, over := w.exit(old); return over })

	open(40)
	w.must("drain", "talkers/"+b.addr)
	whole("while a backend drains")
	open(20)
	for _, s := range all[40:] {
		if s.with != a.addr {
			t.Errorf("a new session went to the draining backend")
		}
	}
	var there []*chat
	for _, s := range all {
		if s.with == b.addr {
			there = append(there, s)
		}
	}
	if len(there) < 10 {
		t.Fatalf("only %d sessions on the backend that drains", len(there))
	}
	eventually(t, 20*time.Second, "the deadline of the drain has ended what was left", func() bool { return goOn("drained")[a.addr] == 0 && count(all, b.addr) == 0 })
	whole("the others go on")

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
	for _, want := range []string{`"proto":"tcp"`, `"reason":"ok"`, `"reason":"reset_mid_response"`, `"reason":"drain_cut"`} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the access log has no %s", want)
		}
	}
}

func count(all []*chat, with string) (n int) {
	for _, s := range all {
		if s.with == with {
			n++
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// server is the scripted backend, in a process of its own. It speaks HTTP/1.1
// by hand: what it does wrong it must do wrong to the byte.
type server struct {
	addr, name string
	started    time.Time
	ledger     *os.File
	now        atomic.Pointer[behaviour]
	workers    chan struct{} // nil: any number
	busy       atomic.Int64
	draining   atomic.Bool

	mu    sync.Mutex
	ln    net.Listener          // guarded by mu: nil while it refuses
	hole  []int                 // guarded by mu: descriptors of a full backlog
	conns map[*net.TCPConn]bool // guarded by mu
}

// backendMain is the child: ADDR NAME LEDGER SETTINGS. It ends with its parent,
// whose end of the pipe on standard input is closed by the kernel.
func backendMain(args []string) error {
	f, err := os.OpenFile(args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	s := &server{addr: args[0], name: args[1], ledger: f, started: time.Now(), conns: map[*net.TCPConn]bool{}}
	b := &behaviour{}
	if err := b.set(args[3]); err != nil {
		return err
	}
	s.now.Store(b)
	if b.workers > 0 {
		s.workers = make(chan struct{}, b.workers)
	}
	if err := s.listen(); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go s.leave(term)
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := s.command(in.Text()); err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println("ok")
	}
	return nil
}

func (s *server) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "set":
		b := *s.now.Load()
		if err := b.set(rest); err != nil {
			return err
		}
		s.now.Store(&b)
		return nil
	case "refuse":
		s.refuse()
		return nil
	case "vanish":
		return s.vanish()
	case "listen":
		return s.listen()
	}
	return fmt.Errorf("unknown command %q", verb)
}

func (s *server) listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.hole {
		_ = syscall.Close(fd)
	}
	s.hole = nil
	if s.ln != nil {
		return nil
	}
	var err error
	if s.ln, err = net.Listen("tcp", s.addr); err == nil {
		go s.accept(s.ln)
	}
	return err
}

// refuse closes the listener and resets what is open.
func (s *server) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln != nil {
		_ = s.ln.Close()
		s.ln = nil
	}
	for c := range s.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// vanish makes the address one that answers no SYN, as a host without power: the
// kernel drops them while a listener's backlog is full. Open connections stay
// and go silent.
func (s *server) vanish() error {
	b := *s.now.Load()
	b.traffic, b.readyDrop = "silent", 1
	s.now.Store(&b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln != nil {
		_ = s.ln.Close()
		s.ln = nil
	}
	a, err := net.ResolveTCPAddr("tcp4", s.addr)
	if err != nil {
		return err
	}
	sa := &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.hole = append(s.hole, fd)
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := syscall.Bind(fd, sa); err != nil {
		return err
	}
	if err := syscall.Listen(fd, 0); err != nil {
		return err
	}
	for range 3 { // one fits, the others find it full
		c, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		s.hole = append(s.hole, c)
		_ = syscall.Connect(c, sa)
	}
	return nil
}

// leave is SIGTERM: a good server says on /readyz that it goes, serves on, and
// ends when nothing is left; a bad one exits.
func (s *server) leave(term <-chan os.Signal) {
	<-term
	drain := s.now.Load().drain
	if drain == 0 {
		os.Exit(0)
	}
	b := *s.now.Load()
	b.ready = 503
	s.now.Store(&b)
	time.Sleep(drain)
	s.draining.Store(true)
	s.mu.Lock()
	if s.ln != nil {
		_ = s.ln.Close()
	}
	s.mu.Unlock()
	for end := time.Now().Add(10 * time.Second); s.busy.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	os.Exit(0)
}

func (s *server) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		tc := c.(*net.TCPConn)
		s.mu.Lock()
		s.conns[tc] = true
		s.mu.Unlock()
		go func() {
			s.serve(tc)
			_ = tc.Close()
			s.mu.Lock()
			delete(s.conns, tc)
			s.mu.Unlock()
		}()
	}
}

func (s *server) serve(c *net.TCPConn) {
	r := bufio.NewReader(c)
	note(s.ledger, entry{at: time.Now(), kind: connOpened})
	for first := true; ; first = false {
		if idle := s.now.Load().idle; idle > 0 && !first {
			_ = c.SetReadDeadline(time.Now().Add(idle))
		}
		if _, err := r.Peek(1); err != nil {
			kind := connLeft
			if errors.Is(err, os.ErrDeadlineExceeded) {
				kind = connTired
			}
			note(s.ledger, entry{at: time.Now(), kind: kind})
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		s.busy.Add(1)
		again := s.exchange(c, r)
		s.busy.Add(-1)
		if !again {
			return
		}
	}
}

// exchange answers one request, and says whether the connection is kept.
func (s *server) exchange(c *net.TCPConn, r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, req.Body)
	b := s.now.Load()
	if req.URL.Path == "/readyz" {
		return s.probe(c, b, req.Method)
	}
	status := b.answer()
	if req.URL.Path == "/poison" {
		status = 500
	}
	id := req.URL.Query().Get("id")
	note(s.ledger, entry{at: time.Now(), kind: gotRequest, method: req.Method, id: id, status: status})
	s.work(b)
	if b.traffic != "" && b.traffic != "ok" {
		return s.misbehave(c, b.traffic, id)
	}
	_, err = c.Write(s.message(status, id))
	return err == nil && !s.draining.Load()
}

func (s *server) probe(c *net.TCPConn, b *behaviour, method string) bool {
	status := 200
	if b.ready != 0 {
		status = b.ready
	}
	note(s.ledger, entry{at: time.Now(), kind: gotProbe, method: method, status: status})
	if b.readyWork {
		s.work(b)
	}
	if b.readyDrop > 0 && rand.Float64() < b.readyDrop || b.traffic == "silent" {
		_, _ = c.Read(make([]byte, 1)) // until the prober gives up
		return false
	}
	_, err := c.Write(s.message(status, "probe"))
	return err == nil
}

func (s *server) work(b *behaviour) {
	if s.workers != nil {
		s.workers <- struct{}{}
		defer func() { <-s.workers }()
	}
	time.Sleep(b.work(time.Since(s.started)))
}

// message is a good answer: who gave it, to which request, and enough bytes for
// half of it to be something.
func (s *server) message(status int, id string) []byte {
	body := fmt.Sprintf("by=%s id=%s %s\n", s.name, id, strings.Repeat(".", 200))
	var m bytes.Buffer
	fmt.Fprintf(&m, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n", status, http.StatusText(status), len(body))
	if s.draining.Load() {
		m.WriteString("Connection: close\r\n")
	}
	m.WriteString("\r\n" + body)
	return m.Bytes()
}

func (s *server) misbehave(c *net.TCPConn, mode, id string) bool {
	m := s.message(200, id)
	switch mode {
	case "silent":
		_, _ = c.Read(make([]byte, 1))
	case "reset_before":
		_ = c.SetLinger(0)
	case "reset_mid":
		_, _ = c.Write(m[:len(m)-150])
		time.Sleep(20 * time.Millisecond) // a reset overtakes what was not read yet
		_ = c.SetLinger(0)
	case "garbage":
		_, _ = c.Write([]byte("\x16\x03\x01 this is no answer\r\n\r\n"))
	case "truncated":
		_, _ = c.Write(m[:len(m)-150])
	case "overlong":
		_, err := c.Write(append(m, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"...))
		return err == nil
	case "trickle":
		for i := range m {
			if _, err := c.Write(m[i : i+1]); err != nil {
				return false
			}
			time.Sleep(250 * time.Millisecond)
		}
		return true
	}
	return false
}

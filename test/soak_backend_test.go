// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// span is a time; an open one has no end yet.
type span struct{ from, to time.Time }

// spans are times of the last minutes, oldest first. The zero value is none.
type spans struct {
	mu  sync.Mutex
	all []span // guarded by mu
}

// begin opens a span, unless one is open.
func (s *spans) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.all); n > 0 && s.all[n-1].to.IsZero() {
		return
	}
	if len(s.all) > 64 {
		s.all = append(s.all[:0], s.all[len(s.all)-32:]...)
	}
	s.all = append(s.all, span{from: time.Now()})
}

// end closes the open span.
func (s *spans) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.all); n > 0 && s.all[n-1].to.IsZero() {
		s.all[n-1].to = time.Now()
	}
}

// touch has the last span last until now at least.
func (s *spans) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.all); n > 0 && !s.all[n-1].to.IsZero() {
		s.all[n-1].to = time.Now()
	}
}

// add notes a span that is over.
func (s *spans) add(from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) > 64 {
		s.all = append(s.all[:0], s.all[len(s.all)-32:]...)
	}
	s.all = append(s.all, span{from, to})
}

// meet reports that a span and the time from..to have an instant in common.
func (s *spans) meet(from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if x.from.Before(to) && (x.to.IsZero() || x.to.After(from)) {
			return true
		}
	}
	return false
}

// since returns how long the open span has lasted; 0: none is open.
func (s *spans) since() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.all); n > 0 && s.all[n-1].to.IsZero() {
		return time.Since(s.all[n-1].from)
	}
	return 0
}

// ail is what is wrong with a backend of the soak.
type ail struct {
	kind string
	p    float64 // share of the requests that it concerns
}

// ails that make answers of a backend fail, and those that do not: the soak
// holds every failure against the former.
var (
	hardAils = []string{"down", "silent", "reset_before", "reset_mid", "garbage", "truncated", "overlong", "trickle", "busy", "idle", "refuses"}
	softAils = []string{"e500", "slow", "not_ready", "probe_silent"}
)

// soakBackend is a scripted server in the test's own process, that writes down
// in the book what it executes.
type soakBackend struct {
	pool *soakPool
	n    int
	name string // its id in the configuration
	addr string
	tls  *tls.Config // nil: plain
	book *soakBook

	hard, soft spans        // what was wrong with it
	away       spans        // the operator took it out, or has not put it in
	executed   atomic.Int64 // requests
	probes     atomic.Int64 //
	offSince   atomic.Int64 // since when it must get no new request, in ns; 0: it may

	mu      sync.Mutex
	ailing  ail               // guarded by mu
	changed chan struct{}     // guarded by mu: closed when ailing changes
	ln      net.Listener      // guarded by mu
	conns   map[net.Conn]bool // guarded by mu
}

func (b *soakBackend) now() (ail, chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ailing, b.changed
}

// start listens.
func (b *soakBackend) start() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		return err
	}
	b.ln = ln
	go b.accept(ln)
	return nil
}

// stop closes the listener, and resets all connections, as the kernel does for
// a process that is killed.
func (b *soakBackend) stop(reset bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ln != nil {
		_ = b.ln.Close()
		b.ln = nil
	}
	if !reset {
		return
	}
	for c := range b.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// fall makes it ail, and heal ends that.
func (b *soakBackend) fall(a ail) {
	for _, k := range hardAils {
		if k == a.kind {
			b.hard.begin()
		}
	}
	b.soft.begin()
	b.set(a)
	switch a.kind {
	case "down":
		b.stop(true)
	case "refuses":
		b.stop(false)
	}
}

func (b *soakBackend) heal() error {
	err := b.start()
	b.set(ail{})
	b.hard.end()
	b.soft.end()
	return err
}

func (b *soakBackend) set(a ail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ailing = a
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *soakBackend) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		if b.ln != ln {
			_ = c.Close()
		}
		b.conns[c] = true
		b.mu.Unlock()
		go func() {
			b.serve(c)
			_ = c.Close()
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		}()
	}
}

func (b *soakBackend) serve(raw net.Conn) {
	c := raw
	if b.tls != nil {
		tc := tls.Server(raw, b.tls)
		b.stopped()
		_ = tc.SetDeadline(time.Now().Add(10 * time.Second))
		if tc.Handshake() != nil {
			return
		}
		_ = tc.SetDeadline(time.Time{})
		c = tc
	}
	x := &soakExchange{b: b, raw: raw, c: c, r: bufio.NewReader(c)}
	for first := true; ; first = false {
		if a, _ := b.now(); a.kind == "idle" && !first {
			_ = c.SetReadDeadline(time.Now().Add(time.Duration(1+rand.IntN(40)) * time.Millisecond))
		}
		if _, err := x.r.Peek(1); err != nil {
			if !first {
				b.hard.touch() // it may be what the next request meets
			}
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		b.stopped()
		req, err := http.ReadRequest(x.r)
		if err != nil || !x.answer(req) {
			return
		}
		_ = c.SetReadDeadline(time.Time{})
	}
}

// stopped waits while the backend is one that SIGSTOP has stopped.
func (b *soakBackend) stopped() {
	for {
		a, changed := b.now()
		if a.kind != "silent" {
			return
		}
		<-changed
		b.hard.touch()
	}
}

// soakExchange is one connection of a soakBackend.
type soakExchange struct {
	b   *soakBackend
	raw net.Conn
	c   net.Conn
	r   *bufio.Reader
}

// answer executes one request and says whether the connection is kept.
func (x *soakExchange) answer(req *http.Request) bool {
	b := x.b
	a, changed := b.now()
	if req.URL.Path == "/readyz" {
		b.probes.Add(1)
		switch a.kind {
		case "not_ready":
			return x.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		case "probe_silent":
			select {
			case <-changed:
			case <-time.After(5 * time.Second):
			}
			return false
		}
		return x.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
	_, kind, id := soakPath(req.URL.Path)
	b.executed.Add(1)
	b.book.execute(id, req.Method, b)
	if strings.EqualFold(req.Header.Get("Expect"), "100-continue") {
		if !x.send("HTTP/1.1 100 Continue\r\n\r\n") {
			return false
		}
	}
	n, err := io.Copy(io.Discard, req.Body)
	if err != nil {
		return false
	}
	if a.p < 1 && rand.Float64() >= a.p {
		a.kind = ""
	}
	return x.play(a.kind, kind, id, req, n)
}

// head is a good answer's head, which says what it answers.
func (x *soakExchange) head(status int, id string, req *http.Request, body int64, more string) string {
	length := "Transfer-Encoding: chunked\r\n"
	if body >= 0 {
		length = "Content-Length: " + strconv.FormatInt(body, 10) + "\r\n"
	}
	if status == 204 || status == 101 {
		length = ""
	}
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nX-Id: %s\r\nX-By: %s\r\nX-Mark: %s\r\nX-Prefix: %s\r\n%s%s\r\n",
		status, http.StatusText(status), id, x.b.name, req.Header.Get("X-Mark"), req.Header.Get("X-Weir-Test"), more, length)
}

// play answers as the ail has it.
func (x *soakExchange) play(ailing, kind, id string, req *http.Request, got int64) bool {
	if ailing != "" {
		defer x.b.hard.touch()
	}
	switch ailing {
	case "reset_before":
		_ = x.raw.(*net.TCPConn).SetLinger(0)
		return false
	case "reset_mid", "truncated":
		x.send(x.head(200, id, req, 1000, "") + string(patternAt(0, 100)))
		if ailing == "reset_mid" {
			time.Sleep(20 * time.Millisecond) // a reset overtakes what was not read yet
			_ = x.raw.(*net.TCPConn).SetLinger(0)
		}
		return false
	case "garbage":
		x.send("\x16\x03\x01 this is no answer\r\n\r\n")
		return false
	case "overlong":
		return x.send(x.head(200, id, req, 4, "") + string(patternAt(0, 4)) + "HTTP/1.1 200 OK\r\nX-Id: poison\r\nContent-Length: 6\r\n\r\npoison")
	case "trickle":
		for _, c := range []byte(x.head(200, id, req, 4, "")) {
			if !x.send(string(c)) {
				return false
			}
			time.Sleep(20 * time.Millisecond)
		}
		return x.send(string(patternAt(0, 4)))
	case "e500":
		return x.send(x.head(500, id, req, 4, "") + "evil")
	case "busy":
		return x.send(x.head(503, id, req, 4, "Retry-After: 1\r\n") + "busy")
	case "slow":
		time.Sleep(time.Duration(100+rand.IntN(400)) * time.Millisecond)
	}
	return x.good(kind, id, req, got)
}

// good answers as it should.
func (x *soakExchange) good(kind, id string, req *http.Request, got int64) bool {
	time.Sleep(time.Duration(rand.ExpFloat64() * float64(2*time.Millisecond)))
	if req.Method == "HEAD" {
		return x.send(x.head(200, id, req, 100, ""))
	}
	switch kind {
	case "none":
		return x.send(x.head(204, id, req, 0, ""))
	case "big":
		return x.send(x.head(200, id, req, soakBig, "")) && x.pattern(soakBig)
	case "stream":
		return x.stream(id, req)
	case "ws":
		if x.send(x.head(101, id, req, 0, "Connection: upgrade\r\nUpgrade: websocket\r\n")) {
			_, _ = io.Copy(x.c, x.r)
		}
		return false
	case "up":
		return x.send(x.head(200, id, req, 0, "X-Got: "+strconv.FormatInt(got, 10)+"\r\n"))
	}
	n := 20 + (len(id)*37+int(id[len(id)-1])*13)%1500
	return x.send(x.head(200, id, req, int64(n), "") + string(patternAt(0, n)))
}

// stream sends a long answer in chunks.
func (x *soakExchange) stream(id string, req *http.Request) bool {
	if !x.send(x.head(200, id, req, -1, "")) {
		return false
	}
	var chunk bytes.Buffer
	offset := int64(0)
	for range 20 + rand.IntN(60) {
		chunk.Reset()
		n := 1000 + rand.IntN(3000)
		fmt.Fprintf(&chunk, "%x\r\n%s\r\n", n, patternAt(offset, n))
		offset += int64(n)
		if !x.write(chunk.Bytes()) {
			return false
		}
		time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
	}
	return x.send("0\r\n\r\n")
}

// pattern sends n bytes of content that a client can check.
func (x *soakExchange) pattern(n int64) bool {
	for offset := int64(0); offset < n; offset += downloadChunk {
		if !x.write(patternAt(offset, int(min(n-offset, downloadChunk)))) {
			return false
		}
	}
	return true
}

func (x *soakExchange) send(text string) bool { return x.write([]byte(text)) }

func (x *soakExchange) write(p []byte) bool {
	_ = x.c.SetWriteDeadline(time.Now().Add(30 * time.Second))
	_, err := x.c.Write(p)
	return err == nil
}

const soakBig = 128 << 10

// soakPath takes /POOL/KIND/ID apart.
func soakPath(path string) (pool, kind, id string) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", "", ""
	}
	pool, rest, _ = strings.Cut(rest, "/")
	kind, id, _ = strings.Cut(rest, "/")
	return pool, kind, id
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// soakClient is one client of the soak: it asks, waits, and holds each answer
// against what it asked for.
type soakClient struct {
	s      *soak
	name   string
	dice   *rand.Rand
	secure bool
	n      int

	conn  net.Conn // nil: none
	in    *bufio.Reader
	asked int // requests that conn has carried
}

// soakClients says how many of each kind there are, and how they behave.
var soakClients = []struct {
	kind  string
	n     int
	think time.Duration
	do    func(*soakClient)
}{
	{"keep", 10, 25 * time.Millisecond, (*soakClient).ask},
	{"once", 4, 50 * time.Millisecond, (*soakClient).askOnce},
	{"pipe", 2, 100 * time.Millisecond, (*soakClient).pipeline},
	{"slow", 2, 300 * time.Millisecond, (*soakClient).readSlowly},
	{"upload", 3, 150 * time.Millisecond, (*soakClient).upload},
	{"abort", 3, 100 * time.Millisecond, (*soakClient).leave},
	{"ws", 3, 500 * time.Millisecond, (*soakClient).tunnel},
	{"stream", 2, 500 * time.Millisecond, (*soakClient).stream},
}

// run asks until the soak ends, and lets go of its connection while the soak
// rests.
func (c *soakClient) run(think time.Duration, do func(*soakClient)) {
	for c.s.gate(c.hang) {
		do(c)
		time.Sleep(time.Duration(c.dice.ExpFloat64() * float64(think)))
	}
	c.hang()
}

func (c *soakClient) hang() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// next draws a request.
func (c *soakClient) next(kind string, methods ...string) *soakRequest {
	c.n++
	r := &soakRequest{
		id: fmt.Sprintf("%s-%d", c.name, c.n), kind: kind, pool: c.s.pools[c.dice.IntN(len(c.s.pools))],
		method: methods[c.dice.IntN(len(methods))],
	}
	r.replayable, r.least = r.method != "POST", c.s.mark.Load()
	return r
}

func (c *soakClient) head(r *soakRequest, more string) string {
	return fmt.Sprintf("%s /%s/%s/%s HTTP/1.1\r\nHost: soak.test\r\nX-Request-Id: %s\r\nX-Key: %d\r\n%s\r\n",
		r.method, r.pool.name, r.kind, r.id, r.id, c.dice.IntN(4096), more)
}

// content is a small request's content.
func (c *soakClient) content(r *soakRequest) (fields, body string) {
	if r.method != "POST" && r.method != "PUT" {
		return "", ""
	}
	body = string(patternAt(0, c.dice.IntN(3000)))
	return fmt.Sprintf("Content-Length: %d\r\n", len(body)), body
}

// connect makes a connection unless there is one that still stands. An idle one
// may be closed by weir at any time, but must not have bytes for nobody.
func (c *soakClient) connect() bool {
	if c.conn != nil {
		switch stale, unasked := peek(c.conn); {
		case c.in.Buffered() > 0 || unasked && !c.secure:
			b, _ := c.in.Peek(1)
			c.s.violate("bytes that nobody asked for", "on an idle connection of %s: %d buffered, %q", c.name, c.in.Buffered(), b)
			c.hang()
		case stale:
			c.hang()
		default:
			return true
		}
	}
	addr := c.s.web
	if c.secure {
		addr = c.s.secure
	}
	raw, err := net.DialTimeout("tcp", addr, soakPatience)
	if err == nil && c.secure {
		tc := tls.Client(raw, c.s.trust)
		_ = tc.SetDeadline(time.Now().Add(soakPatience))
		if err = tc.Handshake(); err != nil {
			_ = raw.Close()
		}
		raw = tc
	}
	if err != nil {
		if c.s.starved(soakPatience) {
			return false
		}
		c.s.violate("a client cannot connect", "%s to %s: %v", c.name, addr, err)
		return false
	}
	c.conn, c.in, c.asked = raw, bufio.NewReader(raw), 0
	return true
}

// peek looks at an idle connection: whether it has ended, or has bytes.
func peek(c net.Conn) (ended, bytes bool) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true, false
	}
	_ = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = err == nil && n == 0 || err != nil && !errors.Is(err, syscall.EAGAIN)
		bytes = err == nil && n > 0
		return true
	})
	return ended, bytes
}

// exchange sends one request and reads its answer. It reports whether the
// connection can be used again.
func (c *soakClient) exchange(r *soakRequest, head, body string) {
	if !c.connect() {
		return
	}
	_ = c.conn.SetDeadline(time.Now().Add(soakPatience))
	c.s.book.begin(r)
	_, err := io.WriteString(c.conn, head+body)
	c.asked++
	c.answer(r, err)
}

// answer reads one answer and notes it.
func (c *soakClient) answer(r *soakRequest, sending error) {
	defer c.s.book.end(r)
	resp, err := http.ReadResponse(c.in, &http.Request{Method: r.method})
	for err == nil && resp.StatusCode == 100 {
		resp, err = http.ReadResponse(c.in, &http.Request{Method: r.method})
	}
	if err != nil {
		c.noAnswer(r, errors.Join(sending, err))
		return
	}
	c.check(r, resp)
	if err := c.body(r, resp); err != nil {
		r.cut = true
		if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
			r.waited, r.trouble = true, "a client waited in vain for the rest of an answer"
		}
	}
	if r.cut || r.aborted || resp.Close {
		c.hang()
	}
}

// noAnswer tells a connection that was closed while it was idle, of which the
// request can say nothing, from an answer that never came.
func (c *soakClient) noAnswer(r *soakRequest, err error) {
	switch t, ok := errors.AsType[net.Error](err); {
	case ok && t.Timeout():
		r.waited, r.trouble = true, "a client waited in vain"
	case c.asked > 1 && c.s.mayClose():
		r.unread = true // holds if nobody knows of it
	default:
		r.trouble = "a client's connection ended without an answer: " + err.Error()
	}
	c.hang()
}

// check holds an answer's head against its request.
func (c *soakClient) check(r *soakRequest, resp *http.Response) {
	r.status, r.by = resp.StatusCode, resp.Header.Get("X-By")
	if id := resp.Header.Get("X-Request-Id"); id != r.id {
		r.trouble = fmt.Sprintf("the answer to another request came: %s", id)
	}
	if id := resp.Header.Get("X-Id"); r.by != "" && id != r.id {
		r.trouble = fmt.Sprintf("a backend's answer to another request came: %q", id)
	}
	if mark, _ := strconv.ParseInt(resp.Header.Get("X-Mark"), 10, 64); r.by != "" && mark < r.least && !c.s.twoProcesses() {
		r.trouble = fmt.Sprintf("configuration %d served a request that began after %d was in force", mark, r.least)
	}
	if r.by == "" && (resp.StatusCode < 500 || resp.Header.Get("Retry-After") == "" && resp.StatusCode == 503) {
		r.trouble = fmt.Sprintf("weir's own answer is %d without Retry-After", resp.StatusCode)
	}
}

// body reads an answer's content, and holds it against what it should be.
func (c *soakClient) body(r *soakRequest, resp *http.Response) error {
	buf := make([]byte, 8<<10)
	for offset := int64(0); ; {
		n, err := resp.Body.Read(buf)
		if r.by != "" && resp.StatusCode == 200 && r.kind != "up" && !bytes.Equal(buf[:n], patternAt(offset, n)) {
			r.trouble = fmt.Sprintf("other bytes than the backend's behind %d", offset)
		}
		offset += int64(n)
		if errors.Is(err, io.EOF) {
			if r.kind == "big" && r.method == "GET" && resp.StatusCode == 200 && offset != soakBig && offset != 4 {
				r.trouble = fmt.Sprintf("%d bytes of %d, and no error", offset, soakBig)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if r.kind == "stream" && c.s.resting() { // it would last for seconds
			r.aborted = true
			return nil
		}
		if c.quietly(r) {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// quietly says that the content is to be read slowly.
func (c *soakClient) quietly(r *soakRequest) bool {
	return r.kind == "big" && strings.HasPrefix(c.name, "slow")
}

func (c *soakClient) ask() {
	kind := "w"
	if c.dice.IntN(10) == 0 {
		kind = "none"
	}
	r := c.next(kind, "GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")
	fields, body := c.content(r)
	c.exchange(r, c.head(r, fields), body)
}

func (c *soakClient) askOnce() {
	r := c.next("w", "GET", "POST")
	fields, body := c.content(r)
	c.exchange(r, c.head(r, fields+"Connection: close\r\n"), body)
	c.hang()
}

func (c *soakClient) readSlowly() {
	r := c.next("big", "GET")
	if c.connect() {
		raw := c.conn
		if t, ok := raw.(*tls.Conn); ok {
			raw = t.NetConn()
		}
		_ = raw.(*net.TCPConn).SetReadBuffer(16 << 10)
	}
	c.exchange(r, c.head(r, "Connection: close\r\n"), "")
	c.hang()
}

func (c *soakClient) stream() {
	r := c.next("stream", "GET")
	c.exchange(r, c.head(r, ""), "")
}

// pipeline sends several requests at once and reads their answers in order.
func (c *soakClient) pipeline() {
	if !c.connect() {
		return
	}
	var all []*soakRequest
	var text strings.Builder
	for range 2 + c.dice.IntN(5) {
		r := c.next("w", "GET", "GET", "PUT", "POST")
		fields, body := c.content(r)
		text.WriteString(c.head(r, fields) + body)
		all = append(all, r)
	}
	_ = c.conn.SetDeadline(time.Now().Add(soakPatience))
	for _, r := range all {
		c.s.book.begin(r)
	}
	_, err := io.WriteString(c.conn, text.String())
	for i, r := range all {
		c.asked++
		if c.conn == nil { // those behind an answer that closed were not read
			r.unread = true
			c.s.book.end(r)
			continue
		}
		if i < len(all)-1 {
			c.answer(r, nil)
		} else {
			c.answer(r, err)
		}
	}
}

// upload sends content that does not fit into what is kept for a retry, with or
// without waiting to be asked for it.
func (c *soakClient) upload() {
	r := c.next("up", "PUT", "POST")
	r.replayable = false
	n := soakKept + 1 + c.dice.IntN(100<<10)
	fields := fmt.Sprintf("Content-Length: %d\r\n", n)
	chunked := c.dice.IntN(3) == 0
	if chunked {
		fields = "Transfer-Encoding: chunked\r\n"
	}
	expect := c.dice.IntN(2) == 0
	if expect {
		fields += "Expect: 100-continue\r\n"
	}
	if !c.connect() {
		return
	}
	_ = c.conn.SetDeadline(time.Now().Add(soakPatience))
	c.s.book.begin(r)
	c.asked++
	_, err := io.WriteString(c.conn, c.head(r, fields))
	if err == nil && expect {
		var early *http.Response
		if early, err = http.ReadResponse(c.in, &http.Request{Method: r.method}); err == nil && early.StatusCode != 100 {
			c.check(r, early)
			r.cut = c.body(r, early) != nil
			c.s.book.end(r)
			c.hang()
			return
		}
		if err != nil {
			c.noAnswer(r, err)
			c.s.book.end(r)
			return
		}
	}
	for sent := 0; sent < n && err == nil; {
		piece := patternAt(int64(sent), min(n-sent, downloadChunk))
		if chunked {
			_, err = fmt.Fprintf(c.conn, "%x\r\n%s\r\n", len(piece), piece)
		} else {
			_, err = c.conn.Write(piece)
		}
		sent += len(piece)
		if c.dice.IntN(4) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	if chunked && err == nil {
		_, err = io.WriteString(c.conn, "0\r\n\r\n")
	}
	c.answer(r, err)
	if err != nil {
		c.hang()
	}
}

// leave goes away in the middle of something.
func (c *soakClient) leave() {
	r := c.next([]string{"w", "big", "stream", "up"}[c.dice.IntN(4)], "GET", "POST")
	r.aborted = true
	if !c.connect() {
		return
	}
	_ = c.conn.SetDeadline(time.Now().Add(soakPatience))
	fields, body := c.content(r)
	if r.kind == "up" && r.method == "POST" {
		fields, body = "Content-Length: 100000\r\n", string(patternAt(0, c.dice.IntN(10000)))
	}
	c.s.book.begin(r)
	_, _ = io.WriteString(c.conn, c.head(r, fields)+body)
	time.Sleep(time.Duration(c.dice.ExpFloat64() * float64(15*time.Millisecond)))
	if c.dice.IntN(2) == 0 && r.kind != "up" { // what is not complete gets no answer
		_, _ = c.in.Peek(1)
	}
	if t, ok := c.conn.(*net.TCPConn); ok && c.dice.IntN(2) == 0 {
		_ = t.SetLinger(0)
	}
	c.hang()
	c.s.book.end(r)
}

// tunnel talks to an echo for a while.
func (c *soakClient) tunnel() {
	c.hang()
	r := c.next("ws", "GET")
	r.replayable = false
	if !c.connect() {
		return
	}
	defer c.hang()
	_ = c.conn.SetDeadline(time.Now().Add(soakPatience))
	c.s.book.begin(r)
	defer c.s.book.end(r)
	_, err := io.WriteString(c.conn, c.head(r, "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"))
	resp, err2 := http.ReadResponse(c.in, nil)
	if err = errors.Join(err, err2); err != nil {
		c.noAnswer(r, err)
		return
	}
	c.check(r, resp)
	if r.status != 101 {
		r.cut = c.body(r, resp) != nil
		return
	}
	for n := range 2 + c.dice.IntN(30) {
		if c.s.resting() {
			break
		}
		want := fmt.Sprintf("%s %d\n", r.id, n)
		_, _ = io.WriteString(c.conn, want)
		got, err := c.in.ReadString('\n')
		if err != nil {
			r.cut = true
			return
		}
		if got != want {
			r.trouble = fmt.Sprintf("a tunnel brought %q instead of %q", got, want)
			return
		}
		time.Sleep(time.Duration(c.dice.ExpFloat64() * float64(80*time.Millisecond)))
	}
	r.aborted = true // who ends a tunnel leaves
}

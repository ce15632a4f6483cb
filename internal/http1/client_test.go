// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// countingConn counts the writes.
type countingConn struct {
	net.Conn
	writes atomic.Int32
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// backend is the other end of a ClientConn: it says what it is told to, in
// pieces of the given size (0: whole), and keeps what it gets.
type backend struct {
	c     *ClientConn
	conn  *countingConn
	other net.Conn
}

func newBackend(t *testing.T) *backend {
	a, b := net.Pipe()
	conn := &countingConn{Conn: a}
	c := NewClientConn(netconn.New(conn), Limits{})
	t.Cleanup(func() { c.Close(); b.Close() })
	return &backend{c, conn, b}
}

// reply answers with raw after reading n bytes.
func (b *backend) reply(n int, raw string, piece int, end bool) (got chan string) {
	got = make(chan string, 1)
	go func() {
		buf := make([]byte, n)
		k, _ := io.ReadFull(b.other, buf)
		got <- string(buf[:k])
		for len(raw) > 0 {
			k := len(raw)
			if piece > 0 {
				k = min(k, piece)
			}
			if _, err := io.WriteString(b.other, raw[:k]); err != nil {
				return
			}
			raw = raw[k:]
		}
		if end {
			b.other.Close()
		}
	}()
	return got
}

func get(path string) *message.Request {
	r := &message.Request{Method: []byte("GET"), Path: []byte(path), Routed: []byte(path), Major: 1, Minor: 1}
	r.Fields.Add(message.Host, "Host", "x")
	return r
}

func getRaw(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }

// readAnswer reads the head and all content of one answer.
func readAnswer(c *ClientConn, toHEAD bool) (r *message.Response, body string, err error) {
	r = new(message.Response)
	for {
		if err := c.ReadHead(r, toHEAD, 0); err != nil {
			return r, "", err
		}
		if r.Status >= 200 || r.Status == 101 {
			break
		}
	}
	var b strings.Builder
	for {
		p, err := c.ReadBody()
		b.Write(p)
		if errors.Is(err, io.EOF) {
			return r, b.String(), nil
		}
		if err != nil {
			return r, b.String(), err
		}
	}
}

func TestAnswersRead(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		head, end bool
		body      string
		reusable  bool
	}{
		{"sized", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, false, "hello", true},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", false, false, "hello", true},
		{"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false, false, "", true},
		{"until close", "HTTP/1.1 200 OK\r\n\r\nhello", false, true, "hello", false},
		{"close announced", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", false, false, "x", false},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", false, false, "x", false},
		{"HTTP/1.0 that keeps", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx", false, false, "x", true},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, false, "", true},
		{"204", "HTTP/1.1 204 No Content\r\n\r\n", false, false, "", true},
		{"204 that announces content", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", false, false, "", false},
		{"304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", false, false, "", true},
		{"interim first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", false, false, "x", true},
		{"stray bytes", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200", false, false, "x", false},
		{"stray line end", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx\r\n", false, false, "x", false},
		{"stray bytes after chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nx", false, false, "x", false},
		{"stray bytes after 304", "HTTP/1.1 304 Not Modified\r\n\r\nhello", false, false, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{0, 1, 7} {
				stray := strings.HasPrefix(c.name, "stray")
				if piece != 0 && (stray || c.name == "204 that announces content") {
					continue // they must be there at once to be seen
				}
				b := newBackend(t)
				if err := b.ask(c.raw, piece, c.end); err != nil {
					t.Fatal(err)
				}
				r, body, err := readAnswer(b.c, c.head)
				if err != nil || body != c.body {
					t.Fatalf("pieces of %d: %d %q, %v; want %q", piece, r.Status, body, err, c.body)
				}
				if b.c.Reusable() != c.reusable {
					t.Errorf("pieces of %d: reusable %v", piece, !c.reusable)
				}
				if !b.c.ResponseStarted() || !b.c.BodyDone() {
					t.Error("started and done are not reported")
				}
			}
		})
	}
}

// ask writes a GET while the backend reads it and then answers.
func (b *backend) ask(raw string, piece int, end bool) error {
	b.reply(len(getRaw("/a")), raw, piece, end)
	return b.c.WriteHead(get("/a"), nil, true)
}

func TestAnswersRefused(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		end       bool
		reason    message.Reason // OK: a plain io.EOF
		body      string
	}{
		{"nothing", "", true, message.OK, ""},
		{"half a head", "HTTP/1.1 200", true, message.ResetBeforeResponse, ""},
		{"interim alone", "HTTP/1.1 103 x\r\n\r\n", true, message.ResetBeforeResponse, ""},
		{"short content", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", true, message.ResetMidResponse, "hel"},
		{"chunks without the last", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", true, message.ResetMidResponse, "hel"},
		{"chunks without the last line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n", true, message.ResetMidResponse, "hel"},
		{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n-1\r\n", false, message.BadResponse, "hel"},
		{"bad head", "HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\nx", false, message.BadResponse, ""},
		{"length and coding", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", false, message.BadResponse, ""},
		{"101 unasked", "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", false, message.BadResponse, ""},
		{"too many interims", strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 65), false, message.BadResponse, ""},
		{"large head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 65<<10), false, message.BadResponse, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBackend(t)
			if err := b.ask(c.raw, 0, c.end); err != nil {
				t.Fatal(err)
			}
			_, body, err := readAnswer(b.c, false)
			var e *Error
			switch {
			case c.reason == message.OK:
				if !errors.Is(err, io.EOF) || b.c.ResponseStarted() {
					t.Errorf("%v, started %v", err, b.c.ResponseStarted())
				}
			case !errors.As(err, &e) || e.Reason != c.reason:
				t.Errorf("%v, want %v", err, c.reason)
			case body != c.body:
				t.Errorf("content %q, want %q", body, c.body)
			}
			if b.c.Reusable() {
				t.Error("reusable")
			}
		})
	}
}

func TestRequestsWritten(t *testing.T) {
	b := newBackend(t)
	read := func(n int) string {
		buf := make([]byte, n)
		io.ReadFull(b.other, buf)
		return string(buf)
	}
	post := func(kind message.Body, n int64) *message.Request {
		r := get("/p")
		r.Method, r.Body, r.ContentLength, r.Query = []byte("POST"), kind, n, []byte("a=b")
		return r
	}
	sized := "POST /p?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	done := make(chan string, 1)
	go func() { done <- read(len(sized)) }()
	if err := b.c.WriteHead(post(message.Sized, 5), []byte("hello"), true); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != sized || b.conn.writes.Load() != 1 || b.c.BytesWritten() != int64(len(sized)) {
		t.Errorf("%q in %d writes, %d bytes", got, b.conn.writes.Load(), b.c.BytesWritten())
	}

	chunked := "POST /p?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nSum: 1\r\n\r\n"
	go func() { done <- read(len(chunked)) }()
	r := post(message.Chunked, 0)
	var trailers message.Fields
	trailers.Add(message.Other, "Sum", "1")
	if err := errors.Join(b.c.WriteHead(r, []byte("he"), false), b.c.WriteBody([]byte("llo"), false), b.c.WriteTrailers(&trailers)); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != chunked || b.c.BytesWritten() != int64(len(chunked)) {
		t.Errorf("%q, %d bytes", got, b.c.BytesWritten())
	}

	go func() { done <- read(len(sized) - 5) }()
	if err := b.c.WriteHead(post(message.Sized, 5), nil, false); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := b.c.WriteBody([]byte("hello!"), true); !errors.Is(err, errMismatch) {
		t.Errorf("content beyond the length: %v", err)
	}

	upgrade := "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
	go func() {
		done <- read(len(upgrade))
		io.WriteString(b.other, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframe")
	}()
	ws := get("/")
	ws.WebSocket = true
	ws.Fields.Add(message.Upgrade, "Upgrade", "websocket")
	if err := b.c.WriteHead(ws, nil, true); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != upgrade {
		t.Errorf("%q", got)
	}
	res := new(message.Response)
	if err := b.c.ReadHead(res, false, 0); err != nil || res.Status != 101 || !res.WebSocket {
		t.Fatalf("%d, %v", res.Status, err)
	}
	// What was read ahead of the tunnel goes along; here the rest came in one read.
	if _, early := b.c.Takeover(); string(early) != "frame" && len(early) != 0 {
		t.Errorf("early %q", early)
	}
	if b.c.Reusable() {
		t.Error("a tunnel is not reusable")
	}
}

// TestAnswerTimeout: a deadline while a head or content is awaited loses no
// byte, and the answer goes on where it stopped.
func TestAnswerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, other := net.Pipe()
		c := NewClientConn(netconn.New(a), Limits{})
		raw := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
		go func() {
			io.ReadFull(other, make([]byte, len(getRaw("/a"))))
			for _, b := range []byte(raw) {
				time.Sleep(time.Second)
				other.Write([]byte{b})
			}
		}()
		if err := c.WriteHead(get("/a"), nil, true); err != nil {
			t.Fatal(err)
		}
		r := new(message.Response)
		var timeouts int
		for {
			err := c.ReadHead(r, false, clock.Now().Add(700*time.Millisecond))
			if err == nil {
				break
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			timeouts++
		}
		var body string
		for {
			c.Conn().SetReadDeadline(clock.Now().Add(700 * time.Millisecond))
			p, err := c.ReadBody()
			body += string(p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			if err != nil {
				timeouts++
			}
		}
		if body != "hello" || timeouts < len(raw)/2 || !c.Reusable() {
			t.Errorf("%q after %d timeouts, reusable %v", body, timeouts, c.Reusable())
		}
		c.Close()
		other.Close()
	})
}

// TestUnaskedBytes: what a backend says before it is asked is no answer.
func TestUnaskedBytes(t *testing.T) {
	b := newBackend(t)
	raw := "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	if err := b.ask(raw, 0, false); err != nil {
		t.Fatal(err)
	}
	if _, body, err := readAnswer(b.c, false); body != "x" || err != nil {
		t.Fatalf("%q, %v", body, err)
	}
	if err := b.c.WriteHead(get("/b"), nil, true); err == nil || b.c.BytesWritten() != 0 {
		t.Errorf("the connection was used again: %v, %d bytes", err, b.c.BytesWritten())
	}
}

// TestSecondAnswer: two answers at once on a connection that was used before are
// none; on a new one the first is the answer, and the connection ends.
func TestSecondAnswer(t *testing.T) {
	const one = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
	for raw, body := range map[string]string{
		one + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil":    "",
		"HTTP/1.1 204 No Content\r\n\r\n" + one:                     "",
		one + "HTTP/1.1 100 Continue\r\n\r\n":                       "x",
		one + "\r\n":                                                "x",
		"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nHTTP/1.1 200": "HTTP/1.1 200",
	} {
		b := newBackend(t)
		if err := b.ask(one, 0, false); err != nil {
			t.Fatal(err)
		}
		if _, got, err := readAnswer(b.c, false); got != "x" || err != nil || !b.c.Reusable() {
			t.Fatalf("%q, %v", got, err)
		}
		if err := b.ask(raw, 0, false); err != nil {
			t.Fatal(err)
		}
		_, got, err := readAnswer(b.c, false)
		var e *Error
		if got != body || (body == "") != errors.As(err, &e) || e != nil && e.Reason != message.BadResponse {
			t.Errorf("%q: %q, %v; want %q", raw, got, err, body)
		}
		if b.c.Reusable() && !strings.HasSuffix(raw, body) {
			t.Errorf("%q: the connection would be used again", raw)
		}
	}
}

// TestUnaskedAnswer sends an answer that nobody asked for between two requests, on
// real sockets. It is not looked for, but nearly always found out. That depends
// on when the runtime takes notice of it, so this counts.
func TestUnaskedAnswer(t *testing.T) {
	const trials = 100
	const one = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
	step := make(chan struct{})
	s := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		s.Send(one + "ok")
		<-step
		s.Send(one + "NO")
		step <- struct{}{}
		if s.Request() != nil {
			_ = s.Try(one + "ok")
		}
		_, _ = s.End()
	})
	caught := 0
	for range trials {
		raw, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c := NewClientConn(netconn.New(raw), Limits{})
		for i := range 2 {
			c.AwaitBy(clock.Now().Add(weirtest.Patience))
			if err := c.WriteHead(get("/"), nil, true); err != nil {
				t.Fatal(err)
			}
			_, body, err := readAnswer(c, false)
			if i == 0 && (body != "ok" || err != nil || !c.Reusable()) {
				t.Fatalf("%q, %v", body, err)
			}
			if i == 1 {
				if err != nil {
					caught++
				}
				break
			}
			c.Release()
			step <- struct{}{}
			<-step
		}
		c.Close()
	}
	t.Logf("%d of %d early answers were found out", caught, trials)
	if caught < trials/2 {
		t.Errorf("%d of %d early answers were found out", caught, trials)
	}
}

// TestNoBufferWhileIdle: a kept connection holds no buffer.
func TestNoBufferWhileIdle(t *testing.T) {
	b := newBackend(t)
	if err := b.ask("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 0, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readAnswer(b.c, false); err != nil || !b.c.Reusable() {
		t.Fatal(err)
	}
	b.c.Release()
	if b.c.in.buf != nil || b.c.in.base != nil {
		t.Error("it holds one")
	}
}

// TestUntilCloseNeedsAlert: over TLS, content that ends with the connection is
// only whole when the peer said that it ended it.
func TestUntilCloseNeedsAlert(t *testing.T) {
	for _, alert := range []bool{true, false} {
		ca := weirtest.NewAuthority(t)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			s := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{ca.Issue("localhost")}})
			_, _ = s.Read(make([]byte, 1024))
			_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\n\r\npart")
			if alert {
				_ = s.CloseWrite()
			}
			_ = raw.Close()
		}()
		raw, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		nc := netconn.Client(raw, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
		if err := nc.Handshake(0); err != nil {
			t.Fatal(err)
		}
		c := NewClientConn(nc, Limits{})
		if _, err := io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		var h message.Response
		if err := c.ReadHead(&h, false, 0); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = c.ReadBody()
		}
		var e *Error
		if errors.Is(err, io.EOF) != alert || !alert && (!errors.As(err, &e) || e.Reason != message.ResetMidResponse) {
			t.Errorf("alert %v: %v", alert, err)
		}
		c.Close()
		<-done
		ln.Close()
	}
}

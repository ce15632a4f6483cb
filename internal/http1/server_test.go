// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// deadline bounds every wait of a test on real sockets.
const deadline = 10 * time.Second

// rig is a Server on a loopback socket.
type rig struct {
	t    *testing.T
	s    *Server
	addr string

	mu  sync.Mutex
	bad []*Error
}

func newRig(t *testing.T, s *Server) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, s: s, addr: ln.Addr().String()}
	if s.OnBadRequest == nil {
		s.OnBadRequest = func(c *ServerConn, e *Error) {
			c.ErrorHead().Fields.Add(message.XRequestID, "X-Request-Id", "id")
			r.mu.Lock()
			r.bad = append(r.bad, e)
			r.mu.Unlock()
		}
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() { s.Serve(netconn.New(c), "info") })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.CloseAll()
		s.Wait()
		accepting.Wait()
		if n := s.Counts(); n != (Counts{}) {
			t.Errorf("connections left: %+v", n)
		}
	})
	return r
}

// park gives the server a real epoll waiter.
func park(t *testing.T, s *Server) *netconn.Poller {
	t.Helper()
	p, err := netconn.NewPoller(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	s.Park = func(c *netconn.Conn, at balance.Instant, resume func(bool)) {
		if _, err := p.Wait(c, netconn.WantBytes, at, func(ev netconn.PollEvent) { resume(ev == netconn.PollReady) }); err != nil {
			go resume(false)
		}
	}
	return p
}

// client is a raw connection to the rig.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (r *rig) dial() *client {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
		r.t.Fatal(err)
	}
	return &client{r.t, c, bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// expect reads exactly the bytes of want.
func (c *client) expect(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c.r, got)
	if string(got[:n]) != want {
		c.t.Fatalf("got %q (%v), want %q", got[:n], err, want)
	}
}

// rest reads to the end.
func (c *client) rest() (string, error) {
	b, err := io.ReadAll(c.r)
	return string(b), err
}

// expectEnd expects the bytes and then a clean end.
func (c *client) expectEnd(want string) {
	c.t.Helper()
	if got, err := c.rest(); got != want || err != nil {
		c.t.Fatalf("got %q, %v, want %q and the end", got, err, want)
	}
}

// eventually polls a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// answer writes a small answer of weir's own making.
func answer(c *ServerConn, status int, body string) {
	h := &message.Response{Status: status}
	_ = c.WriteHead(h, []byte(body), true)
}

// echo answers with the request line and the content it read.
func echo(c *ServerConn) {
	r := c.Request()
	text := fmt.Sprintf("%s %s ", r.Method, r.Target)
	for {
		p, err := c.ReadBody()
		text += string(p)
		if err == io.EOF {
			break
		}
		if err != nil {
			c.Abort()
			return
		}
	}
	answer(c, 200, text)
}

func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestKeepAliveAndPipelining(t *testing.T) {
	r := newRig(t, &Server{Handler: echo})
	c := r.dial()
	c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expect(ok("GET /1 "))
	var reqs, want strings.Builder
	for i := range 300 { // more than a buffer holds
		if i%3 == 0 {
			fmt.Fprintf(&reqs, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n%03d", i, i)
			want.WriteString(ok(fmt.Sprintf("POST /%d %03d", i, i)))
		} else if i%3 == 1 {
			fmt.Fprintf(&reqs, "PUT /%d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", i)
			want.WriteString(ok(fmt.Sprintf("PUT /%d abc", i)))
		} else {
			fmt.Fprintf(&reqs, "\r\nGET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i)
			want.WriteString(ok(fmt.Sprintf("GET /%d ", i)))
		}
	}
	go c.Write([]byte(reqs.String()))
	c.expect(want.String())
	c.send("GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	c.expectEnd("HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nGET /last ")
}

// TestNothingAfterBad: a good request behind a bad one gets no answer.
func TestNothingAfterBad(t *testing.T) {
	r := newRig(t, &Server{Handler: echo})
	c := r.dial()
	c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n" + "GET /2 HTTP/1.1\r\nHost : x\r\n\r\n" + "GET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expect(ok("GET /1 "))
	got, err := c.rest()
	body := "400 Bad Request: white space before the colon of a field\n"
	if err != nil || !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nDate: ") ||
		!strings.HasSuffix(got, fmt.Sprintf(" GMT\r\nX-Request-Id: id\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)) {
		t.Fatalf("%q, %v", got, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.bad) != 1 || r.bad[0] != errNameSpace {
		t.Errorf("heard %v", r.bad)
	}
}

// TestBadContent: bad framing in mid-content reaches the handler as an Error,
// and the connection ends with its answer.
func TestBadContent(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		for {
			_, err := c.ReadBody()
			var e *Error
			if errors.As(err, &e) {
				answer(c, e.Status(), e.Detail)
				return
			} else if err != nil {
				answer(c, 200, err.Error())
				return
			}
		}
	}})
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0x1\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expectEnd("HTTP/1.1 400 Bad Request\r\nContent-Length: 18\r\nConnection: close\r\n\r\ninvalid chunk size")
}

func TestRefusedHeads(t *testing.T) {
	r := newRig(t, &Server{Handler: echo, Limits: Limits{MaxHeaderBytes: 30 << 10, MaxTarget: 10 << 10}})
	for _, c := range []struct {
		send, want string
	}{
		{"GET /" + strings.Repeat("a", 11<<10), "HTTP/1.1 414 "},
		{"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 31<<10), "HTTP/1.1 431 "},
		{"GET / HTTP/1.1\n", "HTTP/1.1 400 "},
		{"GET / HTTP/3.0\r\n\r\n", "HTTP/1.1 505 "},
		{"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: x\r\n\r\n", "HTTP/1.1 417 "},
		{"\x16\x03\x01\x02\x00", "HTTP/1.1 400 "},
	} {
		cl := r.dial()
		cl.send(c.send)
		if got, err := cl.rest(); err != nil || !strings.HasPrefix(got, c.want) {
			t.Errorf("%.40q: %q, %v", c.send, got, err)
		}
	}
	// A refused HEAD gets no content.
	c := r.dial()
	c.send("HEAD / HTTP/1.1\r\n\r\n")
	if got, err := c.rest(); err != nil || !strings.HasSuffix(got, "\r\n\r\n") || !strings.Contains(got, "Content-Length: 31\r\n") {
		t.Errorf("HEAD: %q, %v", got, err)
	}
}

// TestLargeHead: a head larger than the pooled buffer, in small pieces.
func TestLargeHead(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		v, _ := c.Request().Fields.Lookup("large")
		answer(c, 200, fmt.Sprint(len(v)))
	}})
	for _, n := range []int{7 << 10, 9 << 10, 33 << 10, 60 << 10} {
		c := r.dial()
		head := "GET / HTTP/1.1\r\nHost: x\r\nLarge: " + strings.Repeat("a", n) + "\r\n\r\n"
		go func() {
			for len(head) > 0 {
				k := min(len(head), 1000)
				io.WriteString(c, head[:k])
				head = head[k:]
			}
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}()
		c.expect(ok(fmt.Sprint(n)))
		c.expect(ok("0"))
	}
}

func TestAnswerFraming(t *testing.T) {
	fields := func(pairs ...string) (f message.Fields) {
		for i := 0; i < len(pairs); i += 2 {
			f.Add(FieldID([]byte(pairs[i])), pairs[i], pairs[i+1])
		}
		return f
	}
	for _, c := range []struct {
		name, request string
		head          message.Response
		pieces        []string
		want          string
		closes        bool
	}{
		{"sized", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Sized, ContentLength: 5, Fields: fields("content-length", "5")}, []string{"he", "llo"},
			"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", false},
		{"length added", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Sized, ContentLength: 2}, []string{"ab"}, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", false},
		{"empty", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Sized}, []string{""}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false},
		{"chunked", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Chunked, Fields: fields("Transfer-Encoding", "chunked")}, []string{"he", "", "llo"},
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", false},
		{"until close to 1.1", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.UntilClose}, []string{"he", "llo"},
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", false},
		{"chunked to 1.0", "GET / HTTP/1.0", message.Response{Status: 200, Body: message.Chunked, Fields: fields("Transfer-Encoding", "chunked")}, []string{"he", "llo"},
			"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", true},
		{"chunked to 1.0 that keeps", "GET / HTTP/1.0\r\nConnection: keep-alive", message.Response{Status: 200, Body: message.Chunked}, []string{"he", "llo"},
			"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", true},
		{"sized to 1.0 that keeps", "GET / HTTP/1.0\r\nConnection: keep-alive", message.Response{Status: 200, Body: message.Sized, ContentLength: 2}, []string{"ab"},
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nab", false},
		{"sized to 1.0", "GET / HTTP/1.0", message.Response{Status: 200, Body: message.Sized, ContentLength: 2}, []string{"ab"},
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", true},
		{"HEAD", "HEAD / HTTP/1.1", message.Response{Status: 200, Fields: fields("Content-Length", "9", "A", "b")}, []string{""}, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nA: b\r\n\r\n", false},
		{"HEAD, own answer", "HEAD / HTTP/1.1", message.Response{Status: 404}, []string{"none"}, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n", false},
		{"204", "GET / HTTP/1.1", message.Response{Status: 204, Fields: fields("Content-Length", "0", "Transfer-Encoding", "chunked")}, []string{""}, "HTTP/1.1 204 No Content\r\n\r\n", false},
		{"304", "GET / HTTP/1.1", message.Response{Status: 304, Fields: fields("Content-Length", "7")}, []string{""}, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", false},
		{"the backend's connection fields", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Sized, Fields: fields("Connection", "close", "Keep-Alive", "timeout=5", "Upgrade", "h2c", "Content-Length", "0")},
			[]string{""}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false},
		{"a length that contradicts", "GET / HTTP/1.1", message.Response{Status: 200, Body: message.Sized, ContentLength: 1, Fields: fields("Content-Length", "2", "content-length", "1")},
			[]string{"a"}, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, &Server{Handler: func(sc *ServerConn) {
				if sc.Request().Target[1:] != nil && string(sc.Request().Target) == "/next" {
					answer(sc, 200, "next")
					return
				}
				for i, p := range c.pieces {
					var err error
					if end := i == len(c.pieces)-1; i == 0 {
						err = sc.WriteHead(&c.head, []byte(p), end)
					} else {
						err = sc.WriteBody([]byte(p), end)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}})
			cl := r.dial()
			cl.send(c.request + "\r\nHost: x\r\n\r\n")
			if c.closes {
				cl.expectEnd(c.want)
				return
			}
			cl.expect(c.want)
			cl.send("GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
			cl.expect(ok("next"))
		})
	}
}

// TestLargeAnswers: content beyond every buffer, in each framing, is what
// net/http reads back.
func TestLargeAnswers(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		h := &message.Response{Status: 200, Body: message.Chunked}
		if string(c.Request().Path) == "/sized" {
			h.Body, h.ContentLength = message.Sized, int64(len(body))
		}
		h.Fields.Add(message.Other, "Large", strings.Repeat("x", 40<<10))
		if err := c.WriteHead(h, body[:100<<10], false); err != nil {
			t.Error(err)
		}
		if err := c.WriteBody(body[100<<10:], true); err != nil {
			t.Error(err)
		}
	}})
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for _, path := range []string{"/sized", "/chunked", "/sized"} {
		res, err := (&http.Client{Transport: tr}).Get("http://" + r.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
}

func TestTrailersBothWays(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		for {
			if _, err := c.ReadBody(); err != nil {
				break
			}
		}
		h := &message.Response{Status: 200, Body: message.Chunked}
		_ = c.WriteHead(h, []byte("x"), false)
		_ = c.WriteTrailers(c.Trailers())
	}})
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nSum: 1\r\nHost: evil\r\n\r\n")
	c.expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nSum: 1\r\n\r\n")
	c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
	c.send("GET / HTTP/1.0\r\n\r\n")
	c.expectEnd("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx")
}

func TestContinue(t *testing.T) {
	step := make(chan func(c *ServerConn))
	r := newRig(t, &Server{Handler: func(c *ServerConn) { (<-step)(c) }})
	head := "POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"

	c := r.dial()
	c.send(head)
	step <- echo
	c.expect("HTTP/1.1 100 Continue\r\n\r\n")
	c.send("ab")
	c.expect(ok("POST /p ab"))

	// Content that is there already needs no invitation.
	c.send(head + "ab")
	step <- echo
	c.expect(ok("POST /p ab"))

	// The backend's own 100 is passed on once.
	c.send(head)
	step <- func(c *ServerConn) {
		h := &message.Response{Status: 100}
		_ = c.WriteInterim(h)
		_ = c.WriteInterim(h)
		echo(c)
	}
	c.expect("HTTP/1.1 100 Continue\r\n\r\n")
	c.send("ab")
	c.expect(ok("POST /p ab"))

	// A final answer instead: no 100, and the connection ends, because the
	// client may or may not send its content.
	c.send(head)
	step <- func(c *ServerConn) {
		answer(c, 403, "no")
		if _, err := c.ReadBody(); !errors.Is(err, errNotAsked) {
			t.Errorf("reading after it: %v", err)
		}
	}
	c.expectEnd("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

	// An unasked 100 is not passed on; other interim answers are, but not to 1.0.
	c = r.dial()
	hints := func(c *ServerConn) {
		h := &message.Response{Status: 100}
		_ = c.WriteInterim(h)
		h = &message.Response{Status: 103}
		h.Fields.Add(message.Other, "Link", "</a>")
		_ = c.WriteInterim(h)
		answer(c, 200, "x")
	}
	c.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	step <- hints
	c.expect("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok("x"))
	c.send("GET / HTTP/1.0\r\n\r\n")
	step <- hints
	c.expectEnd("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
}

// TestEarlyAnswer: a client that is still sending gets the whole answer and no
// reset, though its content is never read by the handler.
func TestEarlyAnswer(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) { answer(c, 413, strings.Repeat("x", 5000)) }})
	for _, head := range []string{"Content-Length: 4000000", "Transfer-Encoding: chunked"} {
		c := r.dial()
		c.send("POST / HTTP/1.1\r\nHost: x\r\n" + head + "\r\n\r\n")
		sent := make(chan error, 1)
		go func() {
			piece := []byte("10000\r\n" + strings.Repeat("a", 1<<16) + "\r\n")
			for range 40 {
				if _, err := c.Write(piece); err != nil {
					sent <- err
					return
				}
			}
			c.Conn.(*net.TCPConn).CloseWrite()
			sent <- nil
		}()
		c.expectEnd("HTTP/1.1 413 Content Too Large\r\nContent-Length: 5000\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 5000))
		if err := <-sent; err != nil {
			t.Errorf("%s: sending: %v", head, err)
		}
	}
	// A small rest is read away and the connection goes on.
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
	c.expect("HTTP/1.1 413 Content Too Large\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000))
	c.send(strings.Repeat("a", 100000) + "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	c.expectEnd("HTTP/1.1 413 Content Too Large\r\nContent-Length: 5000\r\nConnection: close\r\n\r\n" + strings.Repeat("x", 5000))
}

// TestTornAnswers: whatever is not whole ends with a reset, never with an end
// that could be taken for one.
func TestTornAnswers(t *testing.T) {
	sized := func() *message.Response {
		return &message.Response{Status: 200, Body: message.Sized, ContentLength: 5}
	}
	for name, h := range map[string]func(*ServerConn){
		"nothing":   func(*ServerConn) {},
		"abort":     func(c *ServerConn) { c.Abort() },
		"too short": func(c *ServerConn) { _ = c.WriteHead(sized(), []byte("abc"), true) },
		"too long":  func(c *ServerConn) { _ = c.WriteHead(sized(), []byte("abc"), false); _ = c.WriteBody([]byte("def"), false) },
		"not ended": func(c *ServerConn) { _ = c.WriteHead(sized(), []byte("abc"), false) },
		"until close, not ended": func(c *ServerConn) {
			_ = c.WriteHead(&message.Response{Status: 200, Body: message.UntilClose}, []byte("abc"), false)
		},
		"panic": func(c *ServerConn) { panic("planted") },
	} {
		t.Run(name, func(t *testing.T) {
			var panics []any
			var mu sync.Mutex
			r := newRig(t, &Server{Handler: h, OnPanic: func(v any, stack []byte) {
				mu.Lock()
				panics = append(panics, v)
				mu.Unlock()
			}})
			c := r.dial()
			c.send("GET / HTTP/1.0\r\nHost: x\r\n\r\n")
			got, err := c.rest()
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("got %q and %v, want a reset", got, err)
			}
			if name == "panic" {
				eventually(t, "the panic is reported", func() bool { mu.Lock(); defer mu.Unlock(); return len(panics) == 1 })
			}
		})
	}
}

func TestTakeover(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		h := &message.Response{Status: 101}
		h.Fields.Add(message.Upgrade, "Upgrade", "websocket")
		h.Fields.Add(message.Other, "Sec-WebSocket-Accept", "x")
		if err := c.WriteHead(h, nil, false); err != nil {
			t.Error(err)
		}
		nc, early := c.Takeover()
		nc.Write(append([]byte("early "), early...))
		var b [10]byte
		n, _ := nc.Read(b[:])
		nc.Write(b[:n])
	}})
	c := r.dial()
	c.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframe")
	c.expect("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nConnection: Upgrade\r\n\r\nearly frame")
	c.send("more")
	c.expectEnd("more")
}

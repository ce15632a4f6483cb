// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
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

var eventually = weirtest.Eventually

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
		if errors.Is(err, io.EOF) {
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
		switch i % 3 {
		case 0:
			fmt.Fprintf(&reqs, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n%03d", i, i)
			want.WriteString(ok(fmt.Sprintf("POST /%d %03d", i, i)))
		case 1:
			fmt.Fprintf(&reqs, "PUT /%d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", i)
			want.WriteString(ok(fmt.Sprintf("PUT /%d abc", i)))
		default:
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
	body := "weir: 400 bad_request: white space before the colon of a field (request id)\n"
	if err != nil || !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nDate: ") ||
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
	if got, err := c.rest(); err != nil || !strings.HasSuffix(got, "\r\n\r\n") ||
		!strings.Contains(got, fmt.Sprintf("Content-Length: %d\r\n", len("weir: 400 bad_request: no Host field (request id)\n"))) {
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

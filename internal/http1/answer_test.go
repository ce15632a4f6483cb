// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

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
		{"426", "GET / HTTP/1.1", message.Response{Status: 426, Reason: []byte("Upgrade Required"), Body: message.Sized, Fields: fields("Upgrade", "websocket", "Content-Length", "0")},
			[]string{""}, "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nConnection: Upgrade\r\n\r\n", false},
		{"426 that closes", "GET / HTTP/1.1\r\nConnection: close", message.Response{Status: 426, Reason: []byte("Upgrade Required"), Body: message.Sized, Fields: fields("Upgrade", "websocket", "Content-Length", "0")},
			[]string{""}, "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nConnection: close, Upgrade\r\n\r\n", true},
		{"426 to 1.0", "GET / HTTP/1.0", message.Response{Status: 426, Reason: []byte("Upgrade Required"), Body: message.Sized, Fields: fields("Upgrade", "websocket", "Content-Length", "0")},
			[]string{""}, "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", true},
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
		"too long": func(c *ServerConn) {
			_ = c.WriteHead(sized(), []byte("abc"), false)
			_ = c.WriteBody([]byte("def"), false)
		},
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
		for {
			if _, err := c.ReadBody(); err != nil {
				break
			}
		}
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
	const head = " / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	for _, request := range []string{
		"GET" + head + "\r\n",
		"POST" + head + "Content-Length: 3\r\n\r\nabc",
		"POST" + head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	} {
		c := r.dial()
		c.send(request + "frame")
		c.expect("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nConnection: Upgrade\r\n\r\nearly frame")
		c.send("more")
		c.expectEnd("more")
	}
}

// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// Heads as clients and servers send them.
var (
	wrkHead  = crlf("GET / HTTP/1.1\nHost: 127.0.0.1:8080\n\n")
	curlHead = crlf("GET /api/v1/items?page=2 HTTP/1.1\nHost: shop.example.com\nUser-Agent: curl/8.5.0\nAccept: */*\n\n")
	webHead  = crlf(`GET /assets/app.js?v=41f2c HTTP/1.1
Host: www.example.com
Connection: keep-alive
Cache-Control: max-age=0
sec-ch-ua: "Chromium";v="128", "Not;A=Brand";v="24", "Google Chrome";v="128"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/128.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8
Sec-Fetch-Site: none
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9,de;q=0.8
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=yes

`)
	nginxHead = crlf(`HTTP/1.1 200 OK
Server: nginx/1.22.1
Date: Mon, 30 Nov 2026 02:11:39 GMT
Content-Type: text/plain
Content-Length: 128
Last-Modified: Mon, 30 Nov 2026 02:00:00 GMT
Connection: keep-alive
ETag: "6567ee80-80"
Accept-Ranges: bytes

`)
)

func BenchmarkParseRequest(b *testing.B) {
	for _, c := range []struct{ name, head string }{{"wrk", wrkHead}, {"curl", curlHead}, {"browser", webHead}} {
		b.Run(c.name, func(b *testing.B) {
			raw, lim, r := []byte(c.head), new(Limits), new(message.Request)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := ParseRequest(raw, lim, r); n != len(raw) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func BenchmarkParseResponse(b *testing.B) {
	raw, lim, r := []byte(nginxHead), new(Limits), new(message.Response)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := ParseResponse(raw, lim, r, false); n != len(raw) || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkAppendRequest(b *testing.B) {
	for _, c := range []struct{ name, head string }{{"wrk", wrkHead}, {"browser", webHead}} {
		b.Run(c.name, func(b *testing.B) {
			r := new(message.Request)
			if _, err := ParseRequest([]byte(c.head), new(Limits), r); err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, 4096)
			b.SetBytes(int64(len(c.head)))
			b.ReportAllocs()
			for b.Loop() {
				dst = AppendRequest(dst[:0], r)
			}
		})
	}
}

func BenchmarkChunks(b *testing.B) {
	var raw []byte
	for range 64 {
		raw = appendChunk(raw, make([]byte, 500))
	}
	raw = append(raw, lastChunk...)
	var c ChunkReader
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
		for p := raw; !c.Done(); {
			_, n, err := c.Next(p)
			if err != nil {
				b.Fatal(err)
			}
			p = p[n:]
		}
	}
}

// exchanger relays one bodyless request after the other from a client over
// loopback to a scripted backend and back, through both halves: what weir does
// but for routing, picking and accounting.
type exchanger struct {
	client net.Conn
	buf    []byte
	head   []byte
	done   func()
}

func newExchanger(tb testing.TB, head, answer string) *exchanger {
	listen := func() (net.Listener, func() (net.Conn, net.Conn)) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		return ln, func() (net.Conn, net.Conn) {
			a, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				tb.Fatal(err)
			}
			b, err := ln.Accept()
			if err != nil {
				tb.Fatal(err)
			}
			return a, b
		}
	}
	ln, pair := listen()
	defer ln.Close()
	client, server := pair()
	up, backend := pair()
	reply := []byte(answer)
	go func() { // the backend
		buf := make([]byte, 4096)
		for {
			if _, err := backend.Read(buf); err != nil {
				return
			}
			if _, err := backend.Write(reply); err != nil {
				return
			}
		}
	}()
	cc := NewClientConn(netconn.New(up), Limits{})
	res := new(message.Response)
	s := &Server{Timeouts: Timeouts{Header: 10 * time.Second, Idle: time.Minute, Write: 30 * time.Second, BodyMinRate: 240, BodyGrace: 10 * time.Second}}
	s.Handler = func(c *ServerConn) {
		r := c.Request()
		r.Routed = r.Path
		if err := cc.WriteHead(r, nil, true); err != nil {
			c.Abort()
			return
		}
		if err := cc.ReadHead(res, false, 0); err != nil {
			c.Abort()
			return
		}
		p, err := cc.ReadBody()
		if err != nil && !errors.Is(err, io.EOF) || c.WriteHead(res, p, cc.BodyDone()) != nil || !cc.Reusable() {
			c.Abort()
			return
		}
		cc.Release()
	}
	go s.Serve(netconn.New(server), nil)
	x := &exchanger{client: client, head: []byte(head), buf: make([]byte, len(answer)-len("Connection: keep-alive\r\n"))}
	x.done = func() {
		client.Close()
		s.CloseAll()
		s.Wait()
		cc.Close()
		backend.Close()
	}
	return x
}

func (x *exchanger) one(tb testing.TB) {
	if _, err := x.client.Write(x.head); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.ReadFull(x.client, x.buf); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkExchange(b *testing.B) {
	x := newExchanger(b, curlHead, nginxHead+string(make([]byte, 128)))
	defer x.done()
	b.ReportAllocs()
	for b.Loop() {
		x.one(b)
	}
}

// TestNoAllocations: the plain path allocates nothing per request.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop what it is given")
	}
	lim, req, res := new(Limits), new(message.Request), new(message.Response)
	dst := make([]byte, 0, 4096)
	heads := [][]byte{[]byte(wrkHead), []byte(curlHead), []byte(webHead)}
	answer := []byte(nginxHead)
	if n := testing.AllocsPerRun(100, func() {
		for _, h := range heads {
			if _, err := ParseRequest(h, lim, req); err != nil {
				t.Fatal(err)
			}
			dst = AppendRequest(dst[:0], req)
		}
		if _, err := ParseResponse(answer, lim, res, false); err != nil {
			t.Fatal(err)
		}
		dst = AppendResponse(dst[:0], res)
	}); n != 0 {
		t.Errorf("parsing and appending allocates %v times", n)
	}
	x := newExchanger(t, curlHead, nginxHead+string(make([]byte, 128)))
	defer x.done()
	x.one(t)
	// A collection in between may empty a pool; that is less than one in hundred.
	if n := testing.AllocsPerRun(1000, func() { x.one(t) }); n > 0 {
		t.Errorf("an exchange allocates %v times", n)
	}
}

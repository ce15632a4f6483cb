// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// TestDuplex: content is read on one goroutine while the answer is written on
// another, piece by piece, none held back.
func TestDuplex(t *testing.T) {
	r := newRig(t, &Server{Handler: func(c *ServerConn) {
		pieces := make(chan string)
		go func() {
			defer close(pieces)
			for {
				p, err := c.ReadBody()
				if err != nil {
					return
				}
				pieces <- string(p)
			}
		}()
		_ = c.WriteHead(&message.Response{Status: 200, Body: message.Streamed}, nil, false)
		for p := range pieces {
			_ = c.WriteBody([]byte(strings.ToUpper(p)), false)
		}
		_ = c.WriteTrailers(c.Trailers())
	}})
	c := r.dial()
	c.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
	got := make([]byte, 25)
	if _, err := io.ReadFull(c.r, got); err != nil || (string(got) != "HTTP/1.1 100 Continue\r\n\r\n") {
		// The head may leave first: then the content is never asked for.
		if !strings.HasPrefix(string(got), "HTTP/1.1 200 OK\r\n") {
			t.Fatalf("%q, %v", got, err)
		}
		c = r.dial()
		c.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	}
	c.expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
	for i := range 50 {
		p := strings.Repeat("abc", i+1)
		c.send(fmt.Sprintf("%x\r\n%s\r\n", len(p), p))
		c.expect(fmt.Sprintf("%x\r\n%s\r\n", len(p), strings.ToUpper(p)))
	}
	c.send("0\r\nSum: 1\r\n\r\n")
	c.expectEnd("0\r\nSum: 1\r\n\r\n")
}

// relay is a minimal proxy of one backend: content is spliced where it can be.
type relay struct {
	t       *testing.T
	backend string
	mu      sync.Mutex
	idle    *ClientConn
	spliced int64
}

func (p *relay) serve(c *ServerConn) {
	p.mu.Lock()
	up := p.idle
	p.idle = nil
	p.mu.Unlock()
	if up == nil {
		nc, err := net.Dial("tcp", p.backend)
		if err != nil {
			p.t.Error(err)
			return
		}
		up = NewClientConn(netconn.New(nc), Limits{})
	}
	if err := p.exchange(c, up); err != nil || !up.Reusable() {
		if err != nil {
			p.t.Error(err)
			c.Abort()
		}
		up.Close()
		return
	}
	up.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle != nil {
		up.Close()
		return
	}
	p.idle = up
}

func (p *relay) splice(dst, src *netconn.Conn, n int64, moved func(int64)) error {
	_, err := netconn.Splice(dst, src, n, func(k int64) error { moved(k); return nil })
	p.mu.Lock()
	p.spliced += n
	p.mu.Unlock()
	return err
}

func (p *relay) exchange(c *ServerConn, up *ClientConn) error {
	if err := up.WriteHead(c.Request(), nil, c.BodyDone()); err != nil {
		return err
	}
	for !c.BodyDone() {
		if n, ok := c.Spliceable(); ok {
			if room, ok := up.BodySpace(); ok && room == n {
				if err := p.splice(up.Conn(), c.Conn(), n, func(k int64) { c.Spliced(k); up.BodyMoved(k) }); err != nil {
					return err
				}
				continue
			}
		}
		b, err := c.ReadBody()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := up.WriteBody(b, c.BodyDone()); err != nil {
			return err
		}
	}
	var r message.Response
	head := string(c.Request().Method) == "HEAD"
	for {
		if err := up.ReadHead(&r, head, 0); err != nil {
			return err
		}
		if r.Status >= 200 {
			break
		}
		if err := c.WriteInterim(&r); err != nil {
			return err
		}
	}
	if err := c.WriteHead(&r, nil, up.BodyDone()); err != nil {
		return err
	}
	for !up.BodyDone() {
		if n, ok := up.Spliceable(); ok {
			if room, ok := c.AnswerSpace(); ok && room == n && n > 0 {
				if err := p.splice(c.Conn(), up.Conn(), n, func(k int64) { up.Spliced(k); c.AnswerMoved(k) }); err != nil {
					return err
				}
				continue
			}
		}
		b, err := up.ReadBody()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := c.WriteBody(b, up.BodyDone()); err != nil {
			return err
		}
	}
	return nil
}

// TestRelay runs net/http through both halves to net/http: sizes around every
// buffer, both framings, both ways, on kept connections.
func TestRelay(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(500)
			return
		}
		w.Header().Set("X-Path", r.URL.Path)
		switch r.URL.Path {
		case "/sized":
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			defer w.Header().Set("X-Sum", fmt.Sprint(len(body)))
		case "/hints":
			w.WriteHeader(103)
		case "/none":
			w.WriteHeader(204)
			return
		}
		for len(body) > 0 {
			n, _ := w.Write(body[:min(len(body), 5000)])
			body = body[n:]
			w.(http.Flusher).Flush()
		}
	}))
	defer backend.Close()
	p := &relay{t: t, backend: backend.Listener.Addr().String()}
	r := newRig(t, &Server{Handler: p.serve, Timeouts: times})
	tr := &http.Transport{}
	client := &http.Client{Transport: tr, Timeout: deadline}
	for _, size := range []int{0, 1, 100, 4095, 4096, 8191, 8192, 9000, 32768, 70000, 500_000} {
		body := bytes.Repeat([]byte("weir"), size/4+1)[:size]
		for _, path := range []string{"/sized", "/chunked", "/trailer", "/hints", "/none"} {
			for _, length := range []int64{int64(size), -1} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+r.addr+path, io.MultiReader(bytes.NewReader(body)))
				if err != nil {
					t.Fatal(err)
				}
				req.ContentLength = length
				res, err := client.Do(req)
				if err != nil {
					t.Fatalf("%s %d: %v", path, size, err)
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				want := body
				if path == "/none" {
					want = nil
				}
				if err != nil || !bytes.Equal(got, want) || res.Header.Get("X-Path") != path {
					t.Fatalf("%s %d, sent as %d: %d bytes, %v, %v", path, size, length, len(got), err, res.Header)
				}
			}
		}
	}
	tr.CloseIdleConnections()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spliced < 500_000 {
		t.Errorf("only %d bytes were spliced", p.spliced)
	}
	if p.idle == nil {
		t.Error("no connection was kept")
	} else {
		p.idle.Close()
	}
}

// TestTLS: the same over TLS, where nothing is parked or spliced.
func TestTLS(t *testing.T) {
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	cfg := certs.TLS
	pool := x509.NewCertPool()
	pool.AddCert(certs.Certificate())
	certs.Close()

	s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
		if !c.Request().TLS {
			t.Error("not marked as TLS")
		}
		if _, ok := c.Spliceable(); ok {
			t.Error("spliceable")
		}
		echo(c)
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var served sync.WaitGroup
	served.Go(func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		c := netconn.Server(nc, cfg)
		if err := c.Handshake(0); err != nil {
			t.Error(err)
		}
		s.Serve(c, nil)
	})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	nc, err := (&tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: "example.com"}}).DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(deadline))
	c := &client{t, nc, bufio.NewReader(nc)}
	body := strings.Repeat("x", 100000)
	for range 3 {
		c.send(fmt.Sprintf("POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		c.expect(ok("POST /1 " + body))
	}
	c.send("GET /1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	c.expectEnd("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nGET /1 ")
	nc.Close()
	s.Wait()
	served.Wait()
}

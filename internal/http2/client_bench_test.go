// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// nobody owns connections that nothing happens to.
type nobody struct{}

// Freed implements Owner.
func (nobody) Freed(*ClientConn, bool) {}

// More implements Owner.
func (nobody) More(*ClientConn) {}

// Over implements Owner.
func (nobody) Over(*ClientConn, error, time.Duration, bool) {}

// callRig connects a client to a server of this package and returns a function
// that carries one small exchange.
func callRig(tb testing.TB) func() {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	srv := &Server{Handler: func(s *ServerStream) {
		for !s.BodyDone() {
			if _, err := s.ReadBody(); err != nil {
				break
			}
		}
		h := &s.scratch
		h.Fields.Reset(nil)
		*h = message.Response{Status: 200, Body: message.Sized, ContentLength: 5, Fields: h.Fields}
		h.Fields.Add(message.ContentType, "Content-Type", "text/plain")
		_ = s.WriteHead(h, []byte("hello"), true)
	}}
	go func() {
		if c, err := ln.Accept(); err == nil {
			srv.Serve(netconn.New(c), nil, nil)
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	k := &Client{}
	conn, err := k.Start(netconn.New(c), ClientSettings{Ping: 10 * time.Second}, nobody{}, clock.Now().Add(5*time.Second))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		conn.Cut()
		k.Close()
		srv.CloseAll()
		srv.Wait()
		srv.workers.stop()
		_ = ln.Close()
	})
	r := &message.Request{Method: []byte("POST"), Path: []byte("/a/b"), Authority: []byte("example.com"), Body: message.Sized, ContentLength: 16}
	r.Fields.Add(http1.FieldID([]byte("User-Agent")), "User-Agent", "bench")
	body := make([]byte, 16)
	var res message.Response
	return func() {
		now := clock.Now()
		s := conn.Open(now)
		if err := s.WriteHead(r, body, true); err != nil {
			tb.Fatal(err)
		}
		if err := s.ReadHead(&res, false, now.Add(5*time.Second)); err != nil {
			tb.Fatal(err)
		}
		for {
			if _, err := s.ReadBody(); err != nil {
				if !errors.Is(err, io.EOF) {
					tb.Fatal(err)
				}
				break
			}
		}
		if !s.Reusable() {
			tb.Fatal("not complete")
		}
		s.Done()
	}
}

// BenchmarkCall is one exchange at a time over loopback, both halves.
func BenchmarkCall(b *testing.B) {
	call := callRig(b)
	b.ReportAllocs()
	for b.Loop() {
		call()
	}
}

// TestCallAllocates: an exchange leaves nothing to the garbage collector, but what
// the framer of x/net makes for a frame.
func TestCallAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	call := callRig(t)
	for range 100 {
		call()
	}
	if n := testing.AllocsPerRun(1000, call); n > 2 {
		t.Errorf("%v allocations per exchange, both halves together", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestEventsAreNotHeld lets a backend wait for the client's word before it sends
// the next event: nothing may be held back, neither head nor piece.
func TestEventsAreNotHeld(t *testing.T) {
	next := make(chan struct{})
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		s.Send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 3 {
			<-next
			s.Send("9\r\ndata: x\n\n\r\n")
		}
		<-next
		s.Send("0\r\nX-Sum: 3\r\nHost: evil\r\n\r\n")
		_ = s.Request()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send(get)
	if h := c.ReadHead(); h == nil || h.Status() != 200 {
		t.Fatalf("head %+v", h)
	}
	for range 3 {
		next <- struct{}{}
		if p, err := c.Chunk(); p != "data: x\n\n" || err != nil {
			t.Fatalf("event %q, %v", p, err)
		}
	}
	next <- struct{}{}
	if p, err := c.Bytes(len("0\r\nX-Sum: 3\r\n\r\n")); p != "0\r\nX-Sum: 3\r\n\r\n" {
		t.Errorf("end %q, %v", p, err)
	}
	if rec := r.want(200, message.OK, true); rec.BytesOut != 27 {
		t.Errorf("record %+v", rec)
	}
}

// TestRequestTrailers checks trailers toward the backend, with content that
// comes at once and with content that is pumped.
func TestRequestTrailers(t *testing.T) {
	for _, slow := range []bool{false, true} {
		got := make(chan *weirtest.Message, 1)
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			got <- s.Request()
			s.Send(ok2)
			_ = s.Request()
		})
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		c.Send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		if slow {
			time.Sleep(20 * time.Millisecond) // lets the first piece be taken alone; either way must work
		}
		c.Send("0\r\nX-Sum: 9\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
		if m := c.Final("POST"); m == nil || m.Status() != 200 {
			t.Fatalf("answer %+v", m)
		}
		if m := <-got; m.Body != "abc" || strings.Join(m.Trailer, "|") != "X-Sum: 9" {
			t.Errorf("slow %v: backend saw %q with trailers %q", slow, m.Body, m.Trailer)
		}
		r.want(200, message.OK, true)
	}
}

// TestInterim passes 103 on and then the final answer.
func TestInterim(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		s.Send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n" + ok2)
		_ = s.Request()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send(get)
	if m := c.Answer("GET"); m == nil || m.Head() != "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" {
		t.Errorf("interim %+v", m)
	}
	if m := c.Answer("GET"); m == nil || m.Status() != 200 {
		t.Errorf("answer %+v", m)
	}
}

// TestExpect covers the ways a backend may take Expect: 100-continue.
func TestExpect(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
	t.Run("asked", func(t *testing.T) {
		var asked bool
		got := make(chan *weirtest.Message, 1)
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			m := s.ReadHead()
			asked = strings.EqualFold(m.Get("Expect"), "100-continue")
			s.Send("HTTP/1.1 100 Continue\r\n\r\n")
			m.Body, m.Err = s.Bytes(3)
			s.Send(ok2)
			got <- m
			_ = s.Request()
		})
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		c.Send(head)
		if m := c.Answer("POST"); m == nil || m.Status() != 100 {
			t.Fatalf("interim %+v", m)
		}
		c.Send("abc")
		if m := c.Answer("POST"); m == nil || m.Status() != 200 || m.Has("Connection") {
			t.Errorf("answer %+v", m)
		}
		if m := <-got; !asked || m.Body != "abc" {
			t.Errorf("backend saw %+v", m)
		}
		r.want(200, message.OK, true)
	})
	t.Run("refused", func(t *testing.T) {
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			_ = s.ReadHead()
			s.Send("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
			if m := s.ReadHead(); m != nil {
				t.Errorf("backend got %q", m.Start)
			}
		})
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		c.Send(head)
		m := c.Answer("POST")
		if m == nil || m.Status() != 401 || m.Get("Connection") != "close" {
			t.Errorf("answer %+v", m)
		}
		r.want(401, message.OK, true)
	})
	t.Run("not known to the backend", func(t *testing.T) {
		b := weirtest.Always(t, ok2)
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		start := time.Now()
		c.Send(head)
		if m := c.Answer("POST"); m == nil || m.Status() != 100 {
			t.Fatalf("interim %+v", m)
		}
		if d := time.Since(start); d < expectWait {
			t.Errorf("content was asked for after %v", d)
		}
		c.Send("abc")
		if m := c.Answer("POST"); m == nil || m.Status() != 200 {
			t.Errorf("answer %+v", m)
		}
		if s := b.Seen(); len(s) != 1 || s[0].Body != "abc" {
			t.Errorf("backend saw %+v", s)
		}
	})
}

// TestLargeBothWays moves content that is spliced, and content that is not.
func TestLargeBothWays(t *testing.T) {
	const size = 1<<20 + 17
	content := strings.Repeat("weir", size/4+1)[:size]
	for _, chunked := range []bool{false, true} {
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			for m := s.Request(); m != nil; m = s.Request() {
				if m.Body != content {
					t.Errorf("chunked %v: backend got %d bytes, torn %v", chunked, len(m.Body), m.Torn)
				}
				if chunked {
					s.Sendf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, content)
				} else {
					s.Sendf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, content)
				}
			}
		})
		r := newRig(t, []string{b.Addr()}, edit(func(r *rig) {
			// Sending takes a while on a busy machine.
			r.upstreams.ReuseUnsafeWithin = time.Minute
			r.srv.Timeouts.Write, r.srv.Timeouts.BodyGrace = time.Minute, time.Minute
			r.rt.Timeouts.Request, r.rt.Timeouts.ResponseHeader, r.rt.Timeouts.StreamIdle = time.Minute, time.Minute, time.Minute
		}))
		c := r.dial()
		for range 2 {
			if chunked {
				c.Sendf("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, content)
			} else {
				c.Sendf("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", size, content)
			}
			m := c.Final("PUT")
			if m == nil || m.Status() != 200 || m.Body != content || m.Has("Connection") {
				t.Fatalf("chunked %v: answer %q, %d bytes", chunked, m.Head(), len(m.Body))
			}
			if rec := r.want(200, message.OK, true); rec.BytesIn != size || rec.BytesOut != size {
				t.Errorf("record %+v", rec)
			}
		}
		if n := b.Connections(); n != 1 {
			t.Errorf("chunked %v: %d connections to the backend", chunked, n)
		}
	}
}

// TestEarlyAnswer lets a backend refuse content in its midst: the client gets
// the answer while it is still sending.
func TestEarlyAnswer(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		_, _ = s.Bytes(1 << 10)
		s.Send("HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\n\r\nbig")
		_, _ = s.End()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Sendf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n%s", strings.Repeat("x", 4<<10))
	m := c.Final("POST")
	if m == nil || m.Status() != 413 || m.Body != "big" || m.Get("Connection") != "close" {
		t.Fatalf("answer %+v", m)
	}
	r.want(413, message.OK, true)
}

// TestEcho streams both ways at once: each piece comes back before the next is
// sent.
func TestEcho(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		s.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			p, err := s.Chunk()
			if err != nil || p == "" {
				break
			}
			s.Sendf("%x\r\n%s\r\n", len(p), p)
		}
		s.Send("0\r\n\r\n")
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.Send("2\r\nhi\r\n")
	if h := c.ReadHead(); h == nil || h.Status() != 200 {
		t.Fatalf("head %+v", h)
	}
	if p, err := c.Chunk(); p != "hi" {
		t.Fatalf("%q, %v", p, err)
	}
	for range 5 {
		c.Send("3\r\nabc\r\n")
		if p, err := c.Chunk(); p != "abc" {
			t.Fatalf("%q, %v", p, err)
		}
	}
	c.Send("0\r\n\r\n")
	if p, err := c.Chunk(); p != "" || err != nil {
		t.Errorf("end %q, %v", p, err)
	}
	if rec := r.want(200, message.OK, true); rec.BytesIn != 17 || rec.BytesOut != 17 {
		t.Errorf("record %+v", rec)
	}
}

// TestClientLeaves checks that the backend's attempt is cut at once: while an
// answer is awaited, while one streams, and while content is sent.
func TestClientLeaves(t *testing.T) {
	for _, c := range []struct {
		name, request, answer string
		status                int
	}{
		{"awaiting", get, "", 0},
		{"streaming", get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", 200},
		{"sending", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, cut := make(chan struct{}), make(chan struct{})
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				_ = s.ReadHead()
				s.Send(c.answer)
				close(here)
				_, _ = s.End()
				close(cut)
			})
			r := newRig(t, []string{b.Addr()})
			client := r.dial()
			client.Send(c.request)
			<-here
			if c.answer != "" {
				_ = client.ReadHead()
			}
			client.Reset()
			select {
			case <-cut:
			case <-time.After(5 * time.Second):
				t.Error("the backend was not told")
			}
			r.want(c.status, message.ClientAbort, true)
		})
	}
}

// TestHalfClose checks that a client that ends its sending half after the
// request is answered.
func TestHalfClose(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		time.Sleep(3 * watchAfter) // long enough for the watch to be on
		s.Send(ok2)
		_ = s.Request()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send(get)
	c.CloseWrite()
	if m := c.Final("GET"); m == nil || m.Status() != 200 {
		t.Errorf("answer %+v", m)
	}
	r.want(200, message.OK, true)
}

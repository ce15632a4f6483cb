// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"testing"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

// forwardedTail is what weir adds to a request of the rig's client.
const forwardedTail = "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nX-Forwarded-Port: 8080\r\n" +
	"X-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1;host=h;proto=http\r\nX-Request-Id: ID\r\ntraceparent: TRACE\r\n"

// TestPath drives client bytes through the whole path and compares the bytes
// that reach the backend, and those that come back.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		name     string
		request  string
		upstream string // head and content as the backend saw them
		answer   string // what the backend said
		client   string // head and content as the client saw them
	}{
		{
			"get", "GET /a?b=c HTTP/1.1\r\nHost: h\r\nUser-Agent: T\r\naccept:*/*\r\n\r\n",
			"GET /a?b=c HTTP/1.1\r\nHost: h\r\nUser-Agent: T\r\naccept:*/*\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"post", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
			"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n" + forwardedTail + "\r\nhello", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"head", "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
			"HEAD / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n",
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 77\r\n\r\n",
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 77\r\nX-Request-Id: ID\r\n\r\n",
		},
		{
			"no content", "DELETE /x HTTP/1.1\r\nHost: h\r\n\r\n",
			"DELETE /x HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n",
			"HTTP/1.1 204 No Content\r\nDate: D\r\n\r\n",
			"HTTP/1.1 204 No Content\r\nDate: D\r\nX-Request-Id: ID\r\n\r\n",
		},
		{
			"not modified", "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n",
			"HTTP/1.1 304 Not Modified\r\nDate: D\r\nETag: \"1\"\r\n\r\n",
			"HTTP/1.1 304 Not Modified\r\nDate: D\r\nETag: \"1\"\r\nX-Request-Id: ID\r\n\r\n",
		},
		{
			"date is added", "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: DATE\r\nX-Request-Id: ID\r\n\r\n",
		},
		{
			"hop-by-hop",
			"GET / HTTP/1.1\r\nHost: h\r\nConnection: close, X-Gone, Authorization, X-Forwarded-For\r\nX-Gone: 1\r\n" +
				"Keep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nAuthorization: a\r\n" +
				"Proxy-Authorization: p\r\nX-Weir-Attempt: 3\r\nTrailer: X-T\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nProxy-Authorization: p\r\nTrailer: X-T\r\n" + forwardedTail + "\r\n",
			"HTTP/1.1 200 OK\r\nDate: D\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nX-Weir-Retry: no\r\n" +
				"X-Request-Id: theirs\r\nContent-Length: 0\r\n\r\n",
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 0\r\nX-Request-Id: ID\r\nX-Weir-Retry: no\r\nConnection: close\r\n\r\n",
		},
		{
			"forged identity",
			"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=2.2.2.2\r\n" +
				"X-Real-IP: 3.3.3.3\r\nX_Forwarded_For: 4.4.4.4\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nX_Real-IP: 5.5.5.5\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"normalised path", "GET /a/../b//%7Ec?x=/../ HTTP/1.1\r\nHost: h\r\n\r\n",
			"GET /b/~c?x=/../ HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"options of the server", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
			"OPTIONS * HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"absolute form", "GET http://h/p HTTP/1.1\r\nHost: other\r\n\r\n",
			"GET /p HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"chunked both ways", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
			"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + forwardedTail + "\r\nabcde",
			"HTTP/1.1 200 OK\r\nDate: D\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n1\r\nz\r\n0\r\n\r\n",
			"HTTP/1.1 200 OK\r\nDate: D\r\nTransfer-Encoding: chunked\r\nX-Request-Id: ID\r\n\r\nxyz",
		},
		{
			"trailers wanted", "GET / HTTP/1.1\r\nHost: h\r\nTE: gzip;q=0.5, trailers\r\nConnection: TE\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "TE: trailers\r\nConnection: TE\r\n\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
		{
			"own id and trace",
			"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: my.id_1-2\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: my.id_1-2\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n" +
				forwardedTail[:len(forwardedTail)-len("X-Request-Id: ID\r\ntraceparent: TRACE\r\n")] + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: my.id_1-2\r\n\r\nok",
		},
		{
			"bad id and trace", "GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: a b\r\ntraceparent: nonsense\r\ntracestate: a=b\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: h\r\n" + forwardedTail + "\r\n", ok2,
			"HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\nX-Request-Id: ID\r\n\r\nok",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan *weirtest.Message, 1)
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				for m := s.Request(); m != nil; m = s.Request() {
					got <- m
					s.Send(c.answer)
				}
			})
			r := newRig(t, []string{b.Addr()})
			a := r.roundTrip(c.request)
			m := <-got
			if s := steady(m.Head() + m.Body); s != c.upstream {
				t.Errorf("backend saw\n%q\nwant\n%q", s, c.upstream)
			}
			if s := steady(a.Head() + a.Body); s != c.client {
				t.Errorf("client saw\n%q\nwant\n%q", s, c.client)
			}
			rec := r.want(a.Status(), message.OK, true)
			if rec.Backend != "b0" || rec.Route != "r" || rec.Pool != "app" || rec.Listener != "web" || rec.Attempts != 1 || rec.FirstByte <= 0 || rec.Total < rec.FirstByte {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// TestReuse checks that both sides keep their connections over many requests.
func TestReuse(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	for i := range 20 {
		c.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
		if m := c.Final("POST"); m.Status() != 200 || m.Body != "ok" {
			t.Fatalf("answer %d: %+v", i, m)
		}
		if rec := r.want(200, message.OK, true); rec.Reused != (i > 0) || rec.BytesIn != 1 || rec.BytesOut != 2 {
			t.Fatalf("record %d: %+v", i, rec)
		}
	}
	if n := b.Connections(); n != 1 {
		t.Errorf("%d connections to the backend, want 1", n)
	}
}

// TestPipelined checks that requests sent at once are answered in order.
func TestPipelined(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		for m := s.Request(); m != nil; m = s.Request() {
			s.Sendf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(m.Target()), m.Target())
		}
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxxGET /3 HTTP/1.1\r\nHost: h\r\n\r\n")
	for _, want := range []string{"/1", "/2", "/3"} {
		if m := c.Final("GET"); m == nil || m.Body != want {
			t.Fatalf("answer %+v, want %s", m, want)
		}
	}
}

// TestOldClient checks HTTP/1.0: a Host is made, chunks become content until
// close, interim answers are dropped.
func TestOldClient(t *testing.T) {
	got := make(chan *weirtest.Message, 1)
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		got <- s.Request()
		s.Send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		_ = s.Request()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send("GET / HTTP/1.0\r\n\r\n")
	m := c.Answer("GET")
	if m.Status() != 200 || m.Body != "abc" || m.Has("Transfer-Encoding") || m.Torn {
		t.Errorf("answer %+v", m)
	}
	if up := <-got; up.Get("Host") != "127.0.0.1:8080" || up.Has("X-Forwarded-Host") {
		t.Errorf("backend saw %q", up.Head())
	}
}

// TestOldBackend checks content that ends with the connection, toward a client
// that gets chunks.
func TestOldBackend(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		s.Send("HTTP/1.0 200 OK\r\n\r\nabc")
		s.Send("def")
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	for range 2 {
		c.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		if m := c.Final("GET"); m.Status() != 200 || m.Body != "abcdef" || !m.Has("Transfer-Encoding") {
			t.Errorf("answer %+v", m)
		}
	}
	if n := b.Connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// TestEdits checks rewrites and header edits both ways.
func TestEdits(t *testing.T) {
	b := weirtest.Always(t, "HTTP/1.1 200 OK\r\nServer: x\r\nA: 1\r\nDate: D\r\nContent-Length: 0\r\n\r\n")
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) {
		r.rt.Rewrite = Rewrite{StripPrefix: "/v1", Host: "inner"}
		r.rt.RequestHeaders = Edits{
			Remove: []string{"cookie", "Content-Length", "Connection"},
			Set:    []Header{{"X-Forwarded-For", "fixed"}, {"N", "1"}, {"Transfer-Encoding", "gzip"}}, Add: []Header{{"N", "2"}},
		}
		r.rt.ResponseHeaders = Edits{Remove: []string{"server"}, Set: []Header{{"A", "2"}}, Add: []Header{{"Strict-Transport-Security", "max-age=1"}}}
	}))
	m := r.roundTrip("POST /v1/x?q HTTP/1.1\r\nHost: h\r\nCookie: c\r\nContent-Length: 1\r\n\r\nx")
	up := b.Seen()[0]
	if up.Target() != "/x?q" || up.Get("Host") != "inner" || len(up.Values("Host")) != 1 || up.Has("Cookie") || up.Body != "x" || up.Has("Transfer-Encoding") {
		t.Errorf("backend saw %q", up.Head())
	}
	if strings.Join(up.Values("N"), ",") != "1,2" || strings.Join(up.Values("X-Forwarded-For"), ",") != "fixed" || up.Get("X-Forwarded-Host") != "h" {
		t.Errorf("backend saw %q", up.Head())
	}
	if m.Has("Server") || strings.Join(m.Values("A"), ",") != "2" || m.Get("Strict-Transport-Security") != "max-age=1" {
		t.Errorf("client saw %q", m.Head())
	}
}

// TestStripPrefix checks that whole segments are stripped, without magic.
func TestStripPrefix(t *testing.T) {
	for _, c := range [][3]string{
		{"/v1/x", "/v1", "/x"}, {"/v1", "/v1", "/"}, {"/v1/", "/v1", "/"}, {"/v10", "/v1", "/v10"},
		{"/v1/x", "/v1/", "/x"}, {"/v1", "/v1/", "/"}, {"/x", "/v1", "/x"}, {"/x", "/", "/x"}, {"/a/b/c", "/a/b", "/c"},
	} {
		if got := string(stripPrefix([]byte(c[0]), c[1])); got != c[2] {
			t.Errorf("%s without %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// TestRespond gives a fixed answer, also to HEAD, and keeps the connection.
func TestRespond(t *testing.T) {
	r := newRig(t, nil, edit(func(r *rig) { r.rt.Respond = &Respond{Status: 404, Body: []byte("gone\n")} }))
	c := r.dial()
	for _, method := range []string{"GET", "HEAD", "GET"} {
		c.Sendf("%s / HTTP/1.1\r\nHost: h\r\n\r\n", method)
		m := c.Final(method)
		want := "gone\n"
		if method == "HEAD" {
			want = ""
		}
		if m == nil || m.Status() != 404 || m.Body != want || m.Get("Content-Length") != "5" || m.Has("Connection") {
			t.Fatalf("answer %+v", m)
		}
		r.want(404, message.OK, false)
	}
}

// TestRedirect makes locations from the request and the rule.
func TestRedirect(t *testing.T) {
	for _, c := range []struct {
		rule       Redirect
		host, want string
	}{
		{Redirect{Status: 308, Scheme: "https"}, "h:8080", "https://h/a?b=c"},
		{Redirect{Status: 308, Scheme: "https", Port: 8443}, "h:8080", "https://h:8443/a?b=c"},
		{Redirect{Status: 301, Host: "other"}, "h:8080", "http://other/a?b=c"},
		{Redirect{Status: 302, Path: "/z"}, "h:8080", "http://h:8080/z"},
		{Redirect{Status: 302}, "[::1]:80", "http://[::1]:80/a?b=c"},
		{Redirect{Status: 302, Scheme: "https"}, "[::1]", "https://[::1]/a?b=c"},
	} {
		r := newRig(t, nil, edit(func(r *rig) { r.rt.Redirect = &c.rule }))
		m := r.roundTrip("GET /a?b=c HTTP/1.1\r\nHost: " + c.host + "\r\n\r\n")
		if m.Status() != c.rule.Status || m.Get("Location") != c.want || m.Get("Content-Length") != "0" {
			t.Errorf("%+v: %q, want %s", c.rule, m.Head(), c.want)
		}
	}
}

// TestHealthPath is answered by weir itself, whatever the routes say.
func TestHealthPath(t *testing.T) {
	var ready atomic.Bool
	r := newRig(t, nil, edit(func(r *rig) { r.h.HealthPath, r.h.Ready = "/ready", ready.Load }))
	if m := r.roundTrip("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n"); m.Status() != 503 || m.Body != "not ready\n" {
		t.Errorf("answer %+v", m)
	}
	ready.Store(true)
	if m := r.roundTrip("HEAD /ready HTTP/1.1\r\nHost: x\r\n\r\n"); m.Status() != 200 || m.Get("Content-Length") != "6" {
		t.Errorf("answer %+v", m)
	}
	if m := r.roundTrip("POST /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); m.Status() != 503 {
		t.Errorf("answer %+v", m)
	}
	r.want(503, message.NoBackend, false) // the POST alone is recorded
}

// TestDebugHeaders name the backend and the times.
func TestDebugHeaders(t *testing.T) {
	b := weirtest.Always(t, "HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1\r\nContent-Length: 0\r\n\r\n")
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) { r.h.DebugHeaders = true }))
	m := r.roundTrip(get)
	timing := m.Values("Server-Timing")
	if m.Get("X-Served-By") != "b0" || len(timing) != 2 || timing[0] != "db;dur=1" || !strings.HasPrefix(timing[1], "weir;dur=") {
		t.Errorf("client saw %q", m.Head())
	}
}

// TestErrorToHEAD has the length of the text, and no text.
func TestErrorToHEAD(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.Send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
	m := c.Final("HEAD")
	if m == nil || m.Status() != 503 || m.Get("Content-Length") == "0" || m.Has("Connection") {
		t.Fatalf("answer %+v", m)
	}
	c.Send(get) // the connection goes on
	if m := c.Final("GET"); m == nil || m.Status() != 503 {
		t.Errorf("answer %+v", m)
	}
}

// TestUnreadContent ends the connection after an error, with the answer intact.
func TestUnreadContent(t *testing.T) {
	r := newRig(t, nil, edit(func(r *rig) { r.h.MaxBody = 10 }))
	c := r.dial()
	c.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 50000))
	m := c.Final("POST")
	if m == nil || m.Status() != 413 || m.Get("Connection") != "close" {
		t.Fatalf("answer %+v", m)
	}
	if rest, err := c.End(); rest != "" || err != nil {
		t.Errorf("end %q, %v", rest, err)
	}
}

// TestFailureFunctions holds the refusals to their reasons, and every reason
// that is answered to a status.
func TestFailureFunctions(t *testing.T) {
	for r, want := range map[pool.Refusal]message.Reason{
		pool.NoBackend: message.NoBackend, pool.AllBroken: message.AllBroken, pool.Full: message.QueueFull, pool.QueueFull: message.QueueFull,
		pool.QueueTimeout: message.QueueTimeout, pool.Shed: message.Shed, pool.Aborted: message.ClientAbort,
	} {
		f := refused(r)
		if f.Reason != want || f.status() == 0 {
			t.Errorf("%v: %v, status %d", r, f.Reason, f.status())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/route"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// silent reads requests and never answers.
func silent(t *testing.T) *weirtest.Backend {
	return weirtest.NewBackend(t, func(s *weirtest.Conn) { _, _ = s.End() })
}

// dialFails makes every dial fail in one way.
func dialFails(kind upstream.DialErrorKind) rigOptions {
	return rigOptions{edit: func(r *rig) {
		r.wrap = func(t Target) Target {
			return &counting{Target: t, dialErr: func() error {
				return &upstream.DialError{Kind: kind, Addr: "x", Err: errors.New("test")}
			}}
		}
	}}
}

func edit(f func(*rig)) rigOptions { return rigOptions{edit: f} }

// TestDialFailureSays: where the reason leaves open what to do, the record tells what the
// handshake, the name servers or the kernel has said.
func TestDialFailureSays(t *testing.T) {
	for kind, said := range map[upstream.DialErrorKind]bool{
		upstream.Refused: false, upstream.Unreachable: false, upstream.Timeout: false, upstream.TLS: true, upstream.NotHTTP: true,
		upstream.DNS: true, upstream.LocalPorts: true, upstream.LocalFiles: true, upstream.LocalMemory: true, upstream.Limit: true,
	} {
		f := dialFailure(&upstream.DialError{Kind: kind, Addr: "x", Err: errors.New("certificate has expired")})
		if (f.Detail == "certificate has expired") != said {
			t.Errorf("%s: %q", kind, f.Detail)
		}
		if weirs := kind >= upstream.DNS; (f.Fault == FaultWeir) != weirs {
			t.Errorf("%s: fault %d", kind, f.Fault)
		}
	}
}

// TestReasons produces every reason that ends an exchange here, and checks
// answer and record.
func TestReasons(t *testing.T) {
	const short = 500 * time.Millisecond
	answers := func(a string) func(*testing.T) *weirtest.Backend {
		return func(t *testing.T) *weirtest.Backend { return weirtest.Always(t, a) }
	}
	for _, c := range []struct {
		reason  message.Reason
		name    string
		status  int
		sent    bool
		request string
		backend func(*testing.T) *weirtest.Backend // nil: none
		opts    []rigOptions
		later   bool // Retry-After is there
	}{
		{reason: message.NoRoute, status: 404, request: get, opts: []rigOptions{edit(func(r *rig) {
			r.h.Routes, _ = route.New([]route.Rule{{Host: "other"}})
		})}},
		{reason: message.NoBackend, status: 503, request: get, later: true},
		{reason: message.BadRequest, name: "path", status: 400, request: "GET /a%2fb HTTP/1.1\r\nHost: h\r\n\r\n", backend: answers(ok2)},
		{reason: message.BadRequest, name: "connect", status: 405, request: "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", backend: answers(ok2)},
		{reason: message.BadRequest, name: "trace", status: 405, request: "TRACE / HTTP/1.1\r\nHost: h\r\n\r\n", backend: answers(ok2)},
		{reason: message.BadRequest, name: "chunk", status: 400, request: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n", backend: answers(ok2)},
		{reason: message.BodyTooLarge, name: "announced", status: 413, request: post, backend: answers(ok2), opts: []rigOptions{edit(func(r *rig) { r.h.MaxBody = 2 })}},
		{reason: message.BodyTooLarge, name: "chunked", status: 413, request: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", backend: answers(ok2), opts: []rigOptions{edit(func(r *rig) { r.h.MaxBody = 2 })}},
		{reason: message.BodyTimeout, name: "before anything is sent", status: 408, request: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n", backend: answers(ok2), opts: []rigOptions{edit(func(r *rig) { r.srv.Timeouts.BodyGrace = short })}},
		{reason: message.BodyTimeout, name: "in its midst", status: 408, sent: true, request: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na", backend: silent, opts: []rigOptions{edit(func(r *rig) { r.srv.Timeouts.BodyGrace = short })}},
		{reason: message.RouteFull, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{edit(func(r *rig) {
			r.rt.Limit = NewLimiter(1)
			r.rt.Limit.acquire()
			r.t.Cleanup(func() {
				if n := r.rt.Limit.InFlight(); n != 1 {
					r.t.Errorf("%d in flight on the route, want the test's own", n)
				}
			})
		})}},
		{reason: message.ConnectRefused, status: 502, request: get, backend: answers(ok2), opts: []rigOptions{dialFails(upstream.Refused)}},
		{reason: message.Unreachable, status: 502, request: get, backend: answers(ok2), opts: []rigOptions{dialFails(upstream.Unreachable)}},
		{reason: message.ConnectTimeout, status: 504, request: get, backend: answers(ok2), opts: []rigOptions{dialFails(upstream.Timeout)}},
		{reason: message.TLSFailed, status: 502, request: get, backend: answers(ok2), opts: []rigOptions{dialFails(upstream.TLS)}},
		{reason: message.DNSFailed, status: 502, request: get, backend: answers(ok2), opts: []rigOptions{dialFails(upstream.DNS)}},
		{reason: message.LocalPorts, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{dialFails(upstream.LocalPorts)}},
		{reason: message.LocalFiles, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{dialFails(upstream.LocalFiles)}},
		{reason: message.LocalMemory, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{dialFails(upstream.LocalMemory)}},
		{reason: message.ConnLimit, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{dialFails(upstream.Limit)}},
		{reason: message.BadResponse, status: 502, sent: true, request: post, backend: answers("nonsense\r\n\r\n")},
		{reason: message.BadResponse, name: "in its first chunk", status: 502, sent: true, request: get, backend: answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")},
		{reason: message.ResponseTimeout, status: 504, sent: true, request: post, backend: silent, opts: []rigOptions{edit(func(r *rig) { r.rt.Timeouts.ResponseHeader = short })}},
		{reason: message.RequestTimeout, status: 504, sent: true, request: post, backend: silent, opts: []rigOptions{edit(func(r *rig) { r.rt.Timeouts.Request = short })}},
		{reason: message.UpgradeRefused, status: 502, sent: true, request: upgrade, backend: answers("HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n")},
		{reason: message.QueueFull, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{fullPool(0, time.Second)}},
		{reason: message.QueueTimeout, status: 503, request: get, backend: answers(ok2), later: true, opts: []rigOptions{fullPool(1, short)}},
		{reason: message.RequestTimeout, name: "in the queue", status: 504, request: get, backend: answers(ok2), opts: []rigOptions{fullPool(1, 5*time.Second), edit(func(r *rig) { r.rt.Timeouts.Request = short })}},
	} {
		t.Run(c.reason.String()+" "+c.name, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			if c.backend != nil {
				addrs = []string{c.backend(t).Addr()}
			}
			r := newRig(t, addrs, c.opts...)
			hold := r.fill()
			client := r.dial()
			client.Send(c.request)
			m := client.Final("GET")
			if m == nil || m.Status() != c.status {
				t.Fatalf("answer %+v, want %d", m, c.status)
			}
			if want := "weir: " + strings.Split(m.Start, " ")[1] + " " + c.reason.String() + " (request " + m.Get("X-Request-Id") + ")\n"; m.Body != want {
				t.Errorf("text %q, want %q", m.Body, want)
			}
			if m.Has("Retry-After") != c.later || !m.Has("Date") || m.Has("Allow") != (c.status == 405) {
				t.Errorf("head %q", m.Head())
			}
			r.want(c.status, c.reason, c.sent)
			hold()
		})
	}
}

// fullPool allows one request on the backend at a time and queues others.
func fullPool(queue int, timeout time.Duration) rigOptions {
	return rigOptions{pool: func(c *pool.Config) {
		c.Limits = pool.Limits{BackendRequests: 1, Queue: queue, QueueTimeout: timeout}
	}}
}

// fill takes the only slot of a limited pool; the result gives it back.
func (r *rig) fill() func() {
	if r.pool.Config().Limits.BackendRequests == 0 {
		return func() {}
	}
	var l pool.Lease
	e := exchange{x: r.x, rt: r.rt}
	if got := r.pool.Pick(&l, &e.breq); got != pool.Granted {
		r.t.Fatalf("pick: %v", got)
	}
	return func() { l.Done(pool.Outcome{Kind: pool.Success, Status: 200}) }
}

// TestQueueGrants checks that a queued request goes on when a slot comes free,
// and that the record tells how long it waited.
func TestQueueGrants(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()}, fullPool(4, 5*time.Second))
	free := r.fill()
	c := r.dial()
	c.Send(get)
	eventually(t, "queued", func() bool { return r.pool.Snapshot().Queue == 1 })
	free()
	if m := c.Final("GET"); m == nil || m.Status() != 200 {
		t.Fatalf("answer %+v", m)
	}
	if rec := r.want(200, message.OK, true); rec.Queue <= 0 {
		t.Errorf("record %+v", rec)
	}
}

// TestLeavesQueue checks that a client that leaves gives its place up.
func TestLeavesQueue(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()}, fullPool(4, 5*time.Second))
	free := r.fill()
	defer free()
	c := r.dial()
	c.Send(get)
	eventually(t, "queued", func() bool { return r.pool.Snapshot().Queue == 1 })
	c.Reset()
	eventually(t, "left", func() bool { return r.pool.Snapshot().Queue == 0 })
	r.want(0, message.ClientAbort, false)
}

// TestStreamTimeouts checks stream_idle and total: the client is reset in the
// midst of an answer.
func TestStreamTimeouts(t *testing.T) {
	for _, c := range []struct {
		name   string
		opt    rigOptions
		reason message.Reason
	}{
		{"stream_idle", edit(func(r *rig) { r.rt.Timeouts.StreamIdle = 150 * time.Millisecond }), message.StreamIdleTimeout},
		{"total", edit(func(r *rig) { r.rt.Timeouts.Total = 150 * time.Millisecond }), message.RequestTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				_ = s.ReadHead()
				s.Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
				_, _ = s.End()
			})
			r := newRig(t, []string{b.Addr()}, c.opt)
			client := r.dial()
			client.Send(get)
			_ = client.ReadHead()
			if rest, err := client.End(); err == nil {
				t.Errorf("a clean end after %q", rest)
			}
			r.want(200, c.reason, true)
		})
	}
}

// TestInterimRestarts checks that 1xx answers restart response_header.
func TestInterimRestarts(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			s.Send("HTTP/1.1 102 Processing\r\n\r\n")
		}
		s.Send(ok2)
	})
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) { r.rt.Timeouts.ResponseHeader = 300 * time.Millisecond }))
	if m := r.roundTrip(get); m.Status() != 200 {
		t.Errorf("answer %+v", m)
	}
}

// TestWriteTimeout lets a client stop reading.
func TestWriteTimeout(t *testing.T) {
	big := strings.Repeat("x", 8<<20)
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		_ = s.Try("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n" + big + "\r\n0\r\n\r\n")
	})
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) { r.srv.Timeouts.Write = 200 * time.Millisecond }))
	c := r.dial()
	_ = c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	c.Send(get)
	r.want(200, message.WriteTimeout, true)
}

// TestCodecRefusals checks that what never became an exchange is recorded and
// answered with an id.
func TestCodecRefusals(t *testing.T) {
	r := newRig(t, nil)
	m := r.roundTrip("GET /a?secret HTTP/1.1\r\n\r\n")
	if m.Status() != 400 || len(m.Get("X-Request-Id")) != 32 {
		t.Errorf("answer %+v", m)
	}
	rec := r.want(400, message.BadRequest, false)
	if string(rec.RequestID) != m.Get("X-Request-Id") || rec.ClientIP != netip.MustParseAddr("127.0.0.1") || string(rec.Path) != "/a" {
		t.Errorf("record %+v", rec)
	}
	if want := "weir: 400 bad_request: no Host field (request " + m.Get("X-Request-Id") + ")\n"; m.Body != want {
		t.Errorf("body %q, want %q", m.Body, want)
	}
	if m := r.roundTrip("GET /b?secret HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n"); m.Status() != 400 {
		t.Errorf("answer %+v", m)
	}
	if rec := r.want(400, message.BadRequest, false); string(rec.Path) != "/b" {
		t.Errorf("path %q", rec.Path)
	}
}

// TestPanic lets the innermost part panic: the lease is finished (the rig
// checks), the client is reset, and it is counted.
func TestPanic(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) {
		r.rt.Limit = NewLimiter(10)
		r.wrap = func(t Target) Target { return &counting{Target: t, onGet: func() { panic("test") }} }
	}))
	c := r.dial()
	c.Send(get)
	if rest, err := c.End(); err == nil || rest != "" {
		t.Errorf("the client saw %q, %v", rest, err)
	}
	eventually(t, "counted", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.bugs) == 1
	})
	eventually(t, "given back", func() bool { return r.rt.Limit.InFlight() == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bugs[0] != "l7: test" {
		t.Errorf("bugs %q", r.bugs)
	}
	r.bugs = nil
}

// TestCut checks that what the end of the process cuts is not blamed on the
// client.
func TestCut(t *testing.T) {
	b := silent(t)
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send(get)
	eventually(t, "in flight", func() bool { return b.Connections() == 1 })
	time.Sleep(2 * watchAfter) // until the client is watched
	r.x.Cut()
	r.srv.CloseAll()
	r.want(0, message.DrainCut, true)
	if n := r.x.CutCount(); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
}

// TestDrainCut cuts what is in flight at the deadline of a backend's drain:
// before an answer, within one, and a tunnel. It is nobody's failure, and what
// may be repeated gets its answer elsewhere.
func TestDrainCut(t *testing.T) {
	half := "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 10\r\n\r\nhalf"
	for _, c := range []struct {
		name, request, begin string
		status               int
		elsewhere            bool
	}{
		{"before the answer", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "", 503, false},
		{"within the answer", get, half, 200, false},
		{"tunnel", upgrade, switched, 101, false},
		{"repeated", get, "", 200, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				s.Note(s.Request())
				s.Send(c.begin)
				_, _ = s.End()
			})
			addrs := []string{b.Addr()}
			if c.elsewhere {
				addrs = append(addrs, weirtest.Always(t, ok2).Addr())
			}
			r := newRig(t, addrs, firstPick)
			client := r.dial()
			client.Send(c.request)
			eventually(t, "in flight", func() bool { return len(b.Seen()) == 1 })
			if c.begin != "" {
				if m := client.ReadHead(); m == nil {
					t.Fatal("no answer")
				}
			}
			r.targets[0].SetDraining(true)
			if n := r.targets[0].Cut(); n != 1 {
				t.Fatalf("%d cut", n)
			}
			if c.begin == "" {
				if m := client.Final("GET"); m == nil || m.Status() != c.status {
					t.Errorf("answer %+v", m)
				}
			}
			if c.elsewhere {
				rec := r.want(200, message.OK, true)
				if len(rec.Tried) != 1 || rec.Tried[0].Reason != message.DrainCut {
					t.Errorf("tried %+v", rec.Tried)
				}
			} else {
				r.want(c.status, message.DrainCut, true)
			}
			for _, b := range r.pool.Snapshot().Backends {
				if b.Failures != 0 || b.Share != 1 {
					t.Errorf("blamed: %+v", b)
				}
			}
			if n := r.x.CutCount(); n != 0 {
				t.Errorf("%d counted as cut by the end of the process", n)
			}
		})
	}
}

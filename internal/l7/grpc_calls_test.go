// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// caller makes gRPC calls of a rig, over HTTP/2.
type caller struct {
	t      *testing.T
	url    string
	client *http.Client
}

// called is how a call ended: its status and message, whether they came alone, and
// the content before them.
type called struct {
	http    int
	status  string
	text    string
	alone   bool
	content string
	err     error
	header  http.Header
}

func (r *rig) calls() *caller {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	srv := &http2.Server{
		Settings: http2.Settings{Timeouts: r.srv.Timeouts, Limits: http1.Limits{MaxFields: 20}},
		Info:     func(c any) any { return c.(*ClientInfo).Another() },
		Handler:  func(s *http2.ServerStream) { r.x.Serve(s, s.Info().(*ClientInfo)) },
		OnBadRequest: func(s *http2.ServerStream, e *http1.Error) {
			r.x.BadRequest(s, s.Info().(*ClientInfo), e)
		},
	}
	r.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			info := &ClientInfo{Peer: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Local: netip.MustParseAddrPort("127.0.0.1:8080")}
			r.conns.Go(func() { srv.Serve(netconn.New(c), nil, info) })
		}
	})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, DisableCompression: true}
	r.t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = ln.Close()
		srv.CloseAll()
		srv.Wait()
	})
	return &caller{r.t, "http://" + ln.Addr().String() + "/pkg.Service/Method", &http.Client{Transport: tr, Timeout: weirtest.Patience}}
}

// call makes a call with the fields, each "name: value".
func (c *caller) call(content io.Reader, fields ...string) called {
	c.t.Helper()
	return c.in(c.t.Context(), content, fields...)
}

func (c *caller) in(ctx context.Context, content io.Reader, fields ...string) (out called) {
	c.t.Helper()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, content)
	if err != nil {
		c.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("TE", "trailers")
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "content-type" {
			q.Header.Del(name)
		}
		q.Header.Add(name, value)
	}
	a, err := c.client.Do(q)
	if err != nil {
		return called{err: err}
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(a.Body)
	out = called{http: a.StatusCode, content: string(b), err: err, header: a.Header}
	from := a.Trailer
	if a.Header.Get("grpc-status") != "" {
		out.alone, from = true, a.Header
	}
	if v := from.Get("grpc-status"); v != "" {
		out.status = message.ParseGRPCStatus([]byte(v)).String()
	}
	out.text = from.Get("grpc-message")
	return out
}

func one() io.Reader { return bytes.NewReader([]byte("\x00\x00\x00\x00\x01x")) }

// alone is an answer of nothing but a status.
func alone(status int, fields ...string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\ngrpc-status: %d\r\n%sContent-Length: 0\r\n\r\n", status, strings.Join(append(fields, ""), "\r\n"))
}

// whole is an answer with a message and a status.
func whole(status int, trailers ...string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n\x00\x00\x00\x00\x01y\r\n0\r\ngrpc-status: %d\r\n%s\r\n", status, strings.Join(append(trailers, ""), "\r\n"))
}

// TestCall: what a backend answers passes, and the record tells its status.
func TestCall(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   called
		record observe.CallStatus
	}{
		"ok":          {whole(0), called{http: 200, status: "OK", content: "\x00\x00\x00\x00\x01y"}, observe.CallEnded(message.GRPCOK)},
		"trailers":    {whole(5, "grpc-message: a%20b", "x-more: 1"), called{http: 200, status: "NOT_FOUND", text: "a%20b", content: "\x00\x00\x00\x00\x01y"}, observe.CallEnded(message.GRPCNotFound)},
		"alone":       {alone(14, "grpc-message: busy"), called{http: 200, status: "UNAVAILABLE", text: "busy", alone: true}, observe.CallEnded(message.GRPCUnavailable)},
		"no status":   {"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nContent-Length: 2\r\n\r\nok", called{http: 200, content: "ok"}, observe.CallWithout},
		"HTTP status": {"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno", called{http: 403, content: "no"}, observe.CallEnded(message.GRPCPermissionDenied)},
		"odd status":  {alone(99), called{http: 200, status: "UNKNOWN", alone: true}, observe.CallEnded(message.GRPCUnknown)},
	} {
		t.Run(name, func(t *testing.T) {
			b := weirtest.Always(t, c.answer)
			r := newRig(t, []string{b.Addr()})
			got := r.calls().call(one())
			got.header = nil
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if rec := r.record(); rec.GRPC != c.record || rec.Reason != message.OK {
				t.Errorf("record: %s %s", rec.GRPC, rec.Reason)
			}
		})
	}
}

// failing are backends that fail, and what gRPC's clients are told.
func TestCallFails(t *testing.T) {
	torn := func(s *weirtest.Conn) {
		_ = s.Request()
		_ = s.Try("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n\x00\x00\x00\x00\x01y\r\n")
		time.Sleep(20 * time.Millisecond) // a reset may overtake what was sent
		s.Reset()
	}
	silent := func(s *weirtest.Conn) { _ = s.Request(); _, _ = s.End() }
	stalled := func(s *weirtest.Conn) {
		_ = s.Request()
		_ = s.Try("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n\x00\x00\x00\x00\x01y\r\n")
		_, _ = s.End()
	}
	for name, c := range map[string]struct {
		script func(*weirtest.Conn) // nil: nobody listens
		edit   func(*rig)
		fields []string
		want   called
		reason message.Reason
	}{
		"refused":              {nil, nil, nil, called{http: 200, status: "UNAVAILABLE", alone: true}, message.ConnectRefused},
		"reset":                {func(s *weirtest.Conn) { _ = s.Request(); s.Reset() }, nil, nil, called{http: 200, status: "UNAVAILABLE", alone: true}, message.ResetBeforeResponse},
		"torn":                 {torn, nil, nil, called{http: 200, status: "UNAVAILABLE", content: "\x00\x00\x00\x00\x01y"}, message.ResetMidResponse},
		"deadline":             {silent, nil, []string{"grpc-timeout: 100m"}, called{http: 200, status: "DEADLINE_EXCEEDED", alone: true}, message.DeadlineExceeded},
		"deadline in answer":   {stalled, nil, []string{"grpc-timeout: 100m"}, called{http: 200, status: "DEADLINE_EXCEEDED", content: "\x00\x00\x00\x00\x01y"}, message.DeadlineExceeded},
		"deadline and reset":   {func(s *weirtest.Conn) { _ = s.Request(); time.Sleep(95 * time.Millisecond); s.Reset() }, nil, []string{"grpc-timeout: 100m"}, called{http: 200, status: "DEADLINE_EXCEEDED", alone: true}, message.DeadlineExceeded},
		"no time":              {silent, nil, []string{"grpc-timeout: 0S"}, called{http: 200, status: "DEADLINE_EXCEEDED", alone: true}, message.DeadlineExceeded},
		"total":                {stalled, func(r *rig) { r.rt.Timeouts.Total = 300 * time.Millisecond }, []string{"grpc-timeout: 5S"}, called{http: 200, status: "DEADLINE_EXCEEDED", content: "\x00\x00\x00\x00\x01y"}, message.RequestTimeout},
		"idle":                 {stalled, func(r *rig) { r.rt.Timeouts.StreamIdle = 50 * time.Millisecond }, nil, called{http: 200, status: "UNAVAILABLE", content: "\x00\x00\x00\x00\x01y"}, message.StreamIdleTimeout},
		"timeout that is none": {silent, nil, []string{"grpc-timeout: 1s"}, called{http: 200, status: "INTERNAL", alone: true}, message.BadRequest},
		"two timeouts":         {silent, nil, []string{"grpc-timeout: 1S", "grpc-timeout: 2S"}, called{http: 200, status: "INTERNAL", alone: true}, message.BadRequest},
		"route full":           {silent, func(r *rig) { r.rt.Limit = NewLimiter(1); r.rt.Limit.acquire() }, nil, called{http: 200, status: "UNAVAILABLE", alone: true}, message.RouteFull},
		"too large":            {silent, func(r *rig) { r.h.MaxBody = 3 }, nil, called{http: 200, status: "RESOURCE_EXHAUSTED", alone: true}, message.BodyTooLarge},
		"large head":           {silent, nil, strings.Split(strings.Repeat("x-many: 1,", 20)+"x-more: 1", ","), called{http: 200, status: "RESOURCE_EXHAUSTED", alone: true}, message.HeaderTooLarge},
		"web":                  {nil, nil, []string{"content-type: application/grpc-web+proto"}, called{http: 502}, message.ConnectRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := ""
			if c.script != nil {
				addr = weirtest.NewBackend(t, c.script).Addr()
			} else {
				addr = weirtest.Dead(t)
			}
			r := newRig(t, []string{addr}, edit(func(r *rig) {
				r.rt.Timeouts.Request = 20 * time.Millisecond // not for calls
				r.rt.Timeouts.ResponseHeader = 20 * time.Millisecond
				if c.edit != nil {
					c.edit(r)
				}
			}))
			got := r.calls().call(one(), c.fields...)
			if got.http != c.want.http || got.status != c.want.status || got.alone != c.want.alone || got.err != nil || c.want.http == 200 && got.content != c.want.content {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if c.want.http == 200 && !strings.HasPrefix(got.text, "weir: "+c.reason.String()) {
				t.Errorf("message %q", got.text)
			}
			if rec := r.record(); rec.Reason != c.reason || c.want.status != "" && rec.GRPC.String() != c.want.status {
				t.Errorf("record: %s %s %q", rec.GRPC, rec.Reason, rec.Detail)
			}
		})
	}
}

// TestCallDeadlinePasses: the backend learns how long the call has left, in each
// attempt anew, and what the client does not say is not made up.
func TestCallDeadlinePasses(t *testing.T) {
	for _, c := range []struct{ asked, total string }{{"", ""}, {"10S", ""}, {"10S", "2s"}, {"", "2s"}, {"99999999H", ""}} {
		slow := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			for m := s.Request(); m != nil; m = s.Request() {
				s.Note(m)
				time.Sleep(30 * time.Millisecond)
				_ = s.Try(alone(14))
			}
		})
		good := weirtest.Always(t, whole(0))
		r := newRig(t, []string{slow.Addr(), good.Addr()}, firstPick, edit(func(r *rig) {
			r.rt.Retry.OnGRPC.Add(uint8(message.GRPCUnavailable))
			if c.total != "" {
				r.rt.Timeouts.Total, _ = time.ParseDuration(c.total)
			}
		}))
		var fields []string
		if c.asked != "" {
			fields = append(fields, "grpc-timeout: "+c.asked)
		}
		if got := r.calls().call(one(), fields...); got.status != "OK" {
			t.Fatalf("%+v: %+v", c, got)
		}
		first, second := slow.Seen()[0].Values("grpc-timeout"), good.Seen()[0].Values("grpc-timeout")
		switch {
		case c.total == "" && (c.asked == "" || c.asked == "99999999H"):
			if len(first) != len(fields) || len(second) != len(fields) {
				t.Errorf("%+v: %q, %q", c, first, second)
			}
			continue
		case len(first) != 1 || len(second) != 1:
			t.Errorf("%+v: %q, %q", c, first, second)
			continue
		}
		a, ok := parseGRPCTimeout([]byte(first[0]))
		b, ok2 := parseGRPCTimeout([]byte(second[0]))
		most := 10 * time.Second
		if c.total != "" {
			most = 2 * time.Second
		}
		if !ok || !ok2 || a > most || a < most-time.Second || b > a-30*time.Millisecond {
			t.Errorf("%+v: %q, then %q", c, first, second)
		}
	}
}

// TestCallRetry: an answer that is nothing but a status of the list is followed by
// another attempt, and what the server says against that holds.
func TestCallRetry(t *testing.T) {
	unavailable := func(r *rig) { r.rt.Retry.OnGRPC.Add(uint8(message.GRPCUnavailable)) }
	for name, c := range map[string]struct {
		first    string
		edit     func(*rig)
		content  int
		want     string
		attempts int
		least    time.Duration
	}{
		"listed":       {alone(14), unavailable, 1, "OK", 2, 0},
		"not listed":   {alone(14), nil, 1, "UNAVAILABLE", 1, 0},
		"another":      {alone(13), unavailable, 1, "INTERNAL", 1, 0},
		"not alone":    {whole(14), unavailable, 1, "UNAVAILABLE", 1, 0},
		"never":        {alone(14, "grpc-retry-pushback-ms: -1"), unavailable, 1, "UNAVAILABLE", 1, 0},
		"later":        {alone(14, "grpc-retry-pushback-ms: 60"), unavailable, 1, "OK", 2, 60 * time.Millisecond},
		"much later":   {alone(14, "grpc-retry-pushback-ms: 60000"), unavailable, 1, "UNAVAILABLE", 1, 0},
		"a large call": {alone(14), unavailable, 40 << 10, "OK", 2, 0},
		"too large":    {alone(14), unavailable, 200 << 10, "UNAVAILABLE", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(a string) *weirtest.Backend {
				return weirtest.NewBackend(t, func(s *weirtest.Conn) {
					for m := s.Request(); m != nil; m = s.Request() {
						s.Note(m)
						if s.Try(a) != nil {
							return
						}
					}
				})
			}
			first, good := answer(c.first), answer(whole(0))
			m := observe.NewMetrics(observe.MetricsOptions{})
			r := newRig(t, []string{first.Addr(), good.Addr()}, firstPick, metered(m), edit(func(r *rig) {
				if c.edit != nil {
					c.edit(r)
				}
			}))
			begun := time.Now()
			got := r.calls().call(bytes.NewReader(make([]byte, c.content)))
			if took := time.Since(begun); got.status != c.want || took < c.least {
				t.Errorf("got %+v after %v", got, took)
			}
			rec := r.record()
			if rec.Attempts != c.attempts || rec.GRPC.String() != c.want {
				t.Errorf("record %+v", rec)
			}
			if c.attempts == 2 {
				if n := len(good.Seen()[0].Body); n != c.content {
					t.Errorf("%d bytes of %d were sent again", n, c.content)
				}
				if tried := rec.Tried[0]; tried.GRPC.String() != "UNAVAILABLE" || tried.Status != 0 {
					t.Errorf("tried %+v", tried)
				}
				if s := series(m, "weir_retries_total"); len(s) != 1 || !strings.Contains(s[0], `cause="grpc_unavailable",outcome="success"`) {
					t.Errorf("counted %q", s)
				}
			}
		})
	}
}

// TestCallOutcomes: which statuses count against a backend, and how.
func TestCallOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		answer  string
		fields  []string
		ejected int  // after so many of them; 0: never
		sinks   bool // the share of the backend
	}{
		"UNAVAILABLE":        {alone(14), nil, 3, false},
		"in trailers":        {whole(14), nil, 3, false},
		"with pushback":      {alone(14, "grpc-retry-pushback-ms: 100"), nil, 0, true},
		"INTERNAL":           {alone(13), nil, 20, false},
		"UNKNOWN":            {whole(2), nil, 20, false},
		"DEADLINE_EXCEEDED":  {alone(4), nil, 20, false},
		"a deadline missed":  {"", []string{"grpc-timeout: 10m"}, 20, false},
		"UNIMPLEMENTED":      {alone(12), nil, 0, false},
		"INVALID_ARGUMENT":   {alone(3), nil, 0, false},
		"RESOURCE_EXHAUSTED": {whole(8), nil, 0, true},
		"exhausted, alone":   {alone(8), nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := weirtest.Always(t, c.answer), weirtest.Always(t, whole(0))
			r := newRig(t, []string{bad.Addr(), good.Addr()}, rigOptions{
				pool: func(p *pool.Config) {
					p.Overload = health.Overload{Enabled: true, RetryAfter503: true, GRPCExhausted: true}
					p.Passive = health.Passive{Enabled: true, Consecutive: 3, Eject: time.Minute, MaxEject: time.Minute, MaxEjected: 0.5}
				},
				edit: func(r *rig) { r.rt.GRPCExhausted = true },
			})
			calls := r.calls()
			at := func() (health.State, float64) {
				b := r.pool.Snapshot().Backends[0]
				return b.Health, b.Share
			}
			for n := range 60 {
				calls.call(one(), c.fields...)
				if s, _ := at(); s == health.StateBroken && (c.ejected == 0 || n < 2*c.ejected-2) {
					t.Fatalf("out after %d calls of both", n+1)
				}
			}
			switch {
			case c.ejected > 0:
				eventually(t, "the backend is out", func() bool { s, _ := at(); return s == health.StateBroken })
			case c.sinks:
				eventually(t, "the share sinks", func() bool { s, share := at(); return s == health.StateOverloaded && share < 1 && share > 0 })
			default:
				if s, share := at(); share != 1 {
					t.Errorf("%v %v", s, share)
				}
			}
		})
	}
}

// TestCallListensFirst: a stream whose client waits for the server's word gets it,
// and goes on.
func TestCallListensFirst(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		m := s.ReadHead()
		_ = s.Try("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
		s.Content(m)
		s.Note(m)
		_ = s.Try("0\r\ngrpc-status: 0\r\n\r\n")
	})
	r := newRig(t, []string{b.Addr()})
	c := r.calls()
	read, write := io.Pipe()
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, read)
	q.Header.Set("Content-Type", "application/grpc+proto")
	a, err := c.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	first := make([]byte, 5)
	if _, err := io.ReadFull(a.Body, first); err != nil || string(first) != "first" {
		t.Fatalf("%q %v", first, err)
	}
	_, _ = write.Write([]byte("then"))
	_ = write.Close()
	if _, err := io.ReadAll(a.Body); err != nil || a.Trailer.Get("grpc-status") != "0" || b.Seen()[0].Body != "then" {
		t.Errorf("%v %v %+v", err, a.Trailer, b.Seen()[0])
	}
}

// TestEndCalls: at the end of the drain calls end with UNAVAILABLE, and other
// requests go on.
func TestEndCalls(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		m := s.ReadHead()
		if m == nil {
			return
		}
		_ = s.Try("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
		s.Note(m)
		_, _ = s.End()
	})
	r := newRig(t, []string{b.Addr()})
	c := r.calls()
	ends := make(chan called, 3)
	reader, writer := io.Pipe()
	defer func() { _ = writer.Close() }()
	go func() { ends <- c.call(one()) }()
	go func() { ends <- c.call(reader) }() // a stream both ways
	ctx, cancel := context.WithCancel(t.Context())
	other := make(chan called, 1)
	go func() { other <- c.in(ctx, nil, "content-type: text/event-stream") }()
	eventually(t, "all are under way and known", func() bool {
		s := &r.x.calls
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.on) == 2 && len(b.Seen()) == 3
	})
	n, gone := r.x.EndCalls()
	<-gone
	if n != 2 {
		t.Errorf("%d calls end", n)
	}
	for range 2 {
		if got := <-ends; got.status != "UNAVAILABLE" || got.content != "first" || got.err != nil || !strings.Contains(got.text, "drain_cut") {
			t.Errorf("%+v", got)
		}
	}
	select {
	case got := <-other:
		t.Errorf("the other request ended, too: %+v", got)
	default:
	}
	cancel()
	<-other
	if got := c.call(one()); got.status != "UNAVAILABLE" {
		t.Errorf("afterwards: %+v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// where a backend kills the connection.
type kill int

const (
	killOnAccept  kill = iota // before a byte is read
	killAfterHead             // the head was read: it may have been executed
	killInHead                // within the answer's head
	killInBody                // within the answer's content
	closeInBody               // the same with a clean end
	answerGarbage
	answer503
	answer503Later // with Retry-After
)

// killer is a backend that fails every request in one way and counts them.
// gate holds killInBody back until the client has seen the head: a reset may
// overtake what was sent before it.
func killer(t *testing.T, how kill, executed *atomic.Int64, gate <-chan struct{}) *weirtest.Backend {
	return weirtest.NewBackend(t, func(s *weirtest.Conn) {
		if how == killOnAccept {
			s.Reset()
			return
		}
		for m := s.ReadHead(); m != nil; m = s.ReadHead() {
			executed.Add(1)
			switch how {
			case killAfterHead:
				s.Reset()
				return
			case killInHead:
				_ = s.Try("HTTP/1.1 200 OK\r\nContent-")
				return
			case killInBody:
				_ = s.Try("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
				<-gate
				s.Reset()
				return
			case closeInBody:
				_ = s.Try("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
				return
			case answerGarbage:
				_ = s.Try("HTTQ/1.1 200 OK\r\n\r\n")
				return
			case answer503:
				_ = s.Try("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
			case answer503Later:
				_ = s.Try("HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy")
			}
		}
	})
}

const (
	get  = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
	post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
	put  = "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
	keyd = "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 3\r\n\r\nabc"
)

// TestSecondAttempt lets the first backend fail in every way and checks what the
// client gets, that nothing is executed twice that may not be, and what the
// record says.
func TestSecondAttempt(t *testing.T) {
	for _, c := range []struct {
		how         kill
		request     string
		status      int
		reason      message.Reason
		sent        bool
		attempts    int
		executed    int64 // on the first backend
		retries     int
		interrupted bool
	}{
		{how: killOnAccept, request: get, status: 200, sent: true, attempts: 2, retries: 1},
		{how: killAfterHead, request: get, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: killAfterHead, request: put, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: killAfterHead, request: keyd, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: killAfterHead, request: post, status: 502, reason: message.ResetBeforeResponse, sent: true, attempts: 1, executed: 1},
		{how: killInHead, request: get, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: killInHead, request: post, status: 502, reason: message.ResetBeforeResponse, sent: true, attempts: 1, executed: 1},
		{how: killInBody, request: get, status: 200, reason: message.ResetMidResponse, sent: true, attempts: 1, executed: 1, interrupted: true},
		{how: closeInBody, request: get, status: 200, reason: message.ResetMidResponse, sent: true, attempts: 1, executed: 1, interrupted: true},
		{how: answerGarbage, request: get, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: answerGarbage, request: post, status: 502, reason: message.BadResponse, sent: true, attempts: 1, executed: 1},
		{how: answer503, request: get, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
		{how: answer503, request: post, status: 503, sent: true, attempts: 1, executed: 1},
		{how: answer503Later, request: get, status: 200, sent: true, attempts: 2, executed: 1, retries: 1},
	} {
		method, _, _ := strings.Cut(c.request, " ")
		t.Run(fmt.Sprintf("%d %s", c.how, method), func(t *testing.T) {
			var executed atomic.Int64
			gate := make(chan struct{})
			bad := killer(t, c.how, &executed, gate)
			good := weirtest.Always(t, ok2)
			r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick)
			client := r.dial()
			client.Send(c.request)
			if c.how == killInBody {
				if h := client.ReadHead(); h == nil || h.Status() != 200 {
					t.Errorf("head %+v", h)
				}
				close(gate)
			}
			if c.interrupted {
				if got, err := client.End(); err == nil {
					t.Errorf("the client saw a clean end after %q", got)
				}
			} else if m := client.Final(method); m == nil || m.Status() != c.status {
				t.Errorf("answer %+v, want %d", m, c.status)
			}
			rec := r.want(c.status, c.reason, c.sent)
			// A connection that is reset at once may die before or after a byte is sent.
			if rec.Attempts != c.attempts || rec.Retries+rec.Redispatches != c.retries {
				t.Errorf("record %+v, want %+v", rec, c)
			}
			if n := executed.Load(); n != c.executed {
				t.Errorf("executed %d times on the first backend, want %d", n, c.executed)
			}
			wantGood := 0
			if c.status == 200 && !c.interrupted {
				wantGood = 1
			}
			if n := len(good.Seen()); n != wantGood {
				t.Errorf("executed %d times on the second backend, want %d", n, wantGood)
			}
			if wantGood == 1 && method != "GET" && good.Seen()[0].Body != "abc" {
				t.Errorf("replayed %q", good.Seen()[0].Body)
			}
		})
	}
}

// firstPick makes the pool choose backends in order.
var firstPick = rigOptions{pool: func(c *pool.Config) { c.Policy = inOrder{} }}

// TestRedispatchToTheLiving: most of a fleet dies at once, and all that is known is
// which connections are still open. The second attempt goes to one of those.
func TestRedispatchToTheLiving(t *testing.T) {
	for _, req := range []string{get, post} {
		var fleet []*weirtest.Backend
		var addrs []string
		for i := range 5 {
			answer := ok2
			if i == 0 {
				answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok" // so that the first attempt dials
			}
			b := weirtest.Always(t, answer)
			fleet, addrs = append(fleet, b), append(addrs, b.Addr())
		}
		r := newRig(t, addrs, edit(func(r *rig) { r.upstreams.ReuseUnsafeWithin = 60e9 }))
		for range fleet {
			if m := r.roundTrip(get); m.Status() != 200 {
				t.Fatalf("answer %+v", m)
			}
			r.want(200, message.OK, true)
		}
		for _, b := range fleet[:4] {
			b.Close()
		}
		if m := r.roundTrip(req); m.Status() != 200 {
			t.Errorf("%.4s: answer %+v", req, m)
		}
		if rec := r.want(200, message.OK, true); rec.Backend != "b4" || rec.Attempts != 2 || rec.Redispatches != 1 || !rec.Reused {
			t.Errorf("%.4s: record %+v", req, rec)
		}
	}
}

// TestRedispatch checks that a backend that refuses connections costs nothing,
// for any method.
func TestRedispatch(t *testing.T) {
	for _, req := range []string{get, post} {
		good := weirtest.Always(t, ok2)
		r := newRig(t, []string{weirtest.Dead(t), good.Addr()}, firstPick)
		if m := r.roundTrip(req); m.Status() != 200 {
			t.Errorf("answer %+v", m)
		}
		rec := r.want(200, message.OK, true)
		if rec.Redispatches != 1 || rec.Retries != 0 || rec.Attempts != 2 || rec.Backend != "b1" {
			t.Errorf("record %+v", rec)
		}
		if len(rec.Tried) != 1 || rec.Tried[0] != (observe.Try{Backend: "b0", Reason: message.ConnectRefused}) {
			t.Errorf("tried %+v", rec.Tried)
		}
	}
}

// TestAllRefuse checks that the reason tells what happened, not that nobody was
// left.
func TestAllRefuse(t *testing.T) {
	r := newRig(t, []string{weirtest.Dead(t), weirtest.Dead(t)})
	m := r.roundTrip(post)
	if m.Status() != 502 || !strings.HasPrefix(m.Body, "weir: 502 connect_refused (request ") {
		t.Errorf("answer %+v", m)
	}
	if m.Has("Retry-After") || m.Get("Content-Type") != "text/plain; charset=utf-8" || m.Get("X-Request-Id") == "" {
		t.Errorf("head %q", m.Head())
	}
	r.want(502, message.ConnectRefused, false)
}

// TestStale lets kept connections die between two requests: a GET is sent again
// on a fresh one, to the same backend; a POST too when the death was noticed
// before a byte was sent.
func TestStale(t *testing.T) {
	t.Run("reset on the second request", func(t *testing.T) {
		var gets atomic.Int64
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			if s.Request() == nil {
				return
			}
			gets.Add(1)
			s.Send(ok2)
			if s.N == 0 {
				_ = s.ReadHead()
				s.Reset()
				return
			}
			_ = s.ReadHead()
		})
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		for range 2 {
			c.Send(get)
			if m := c.Final("GET"); m == nil || m.Status() != 200 {
				t.Fatalf("answer %+v", m)
			}
		}
		r.want(200, message.OK, true)
		if rec := r.want(200, message.OK, true); rec.Attempts != 2 || rec.Reused {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("closed while idle", func(t *testing.T) {
		closed := make(chan struct{}, 1)
		b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
			if s.Request() == nil {
				return
			}
			s.Send(ok2)
			if s.N > 0 {
				_ = s.ReadHead()
			}
			_ = s.Close()
			closed <- struct{}{}
		})
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		c.Send(get)
		_ = c.Final("GET")
		<-closed
		c.Send(post)
		if m := c.Final("POST"); m == nil || m.Status() != 200 {
			// The close may not have been seen in time; then the POST is lost, not
			// repeated. That is the one honest answer.
			t.Logf("answer %+v", m)
		}
	})
}

// TestReplayOfLargerContent pumps content that does not fit one piece and lets
// the first backend die in its midst: what was read is sent again, and the rest
// follows.
func TestReplayOfLargerContent(t *testing.T) {
	const size = 48 << 10
	half := make(chan struct{})
	bad := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		_, _ = s.Bytes(size / 2)
		s.Reset()
		close(half)
	})
	good := weirtest.Always(t, ok2)
	r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick)
	c := r.dial()
	content := strings.Repeat("0123456789abcdef", size/16)
	c.Sendf("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", size, content[:size/2])
	<-half
	c.Send(content[size/2:])
	if m := c.Final("PUT"); m == nil || m.Status() != 200 {
		t.Fatalf("answer %+v", m)
	}
	rec := r.want(200, message.OK, true)
	if rec.Retries != 1 || rec.BytesIn != size {
		t.Errorf("record %+v", rec)
	}
	if got := good.Seen(); len(got) != 1 || got[0].Body != content {
		t.Error("the second backend did not get the content whole")
	}
}

// TestTooLargeToReplay checks that content above the bound is not kept: the
// answer is an error, and the client hears it while it still sends.
func TestTooLargeToReplay(t *testing.T) {
	bad := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		_, _ = s.Bytes(100 << 10)
		s.Reset()
	})
	good := weirtest.Always(t, ok2)
	r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick)
	c := r.dial()
	c.Send("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.Sendf("%x\r\n%s\r\n", 128<<10, strings.Repeat("x", 128<<10))
	m := c.Final("PUT")
	if m == nil || m.Status() != 502 || m.Get("Connection") != "close" {
		t.Fatalf("answer %+v", m)
	}
	if rec := r.want(502, message.ResetBeforeResponse, true); rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
	if n := len(good.Seen()); n != 0 {
		t.Errorf("executed %d times on the second backend", n)
	}
}

// TestNeverTwice sends many POSTs with unique ids at backends that kill
// connections at random places, and counts executions.
func TestNeverTwice(t *testing.T) {
	var sum atomic.Int64
	script := func(s *weirtest.Conn) {
		for i := 0; ; i++ {
			m := s.Request()
			if m == nil || m.Torn {
				return
			}
			s.Note(m)
			switch n := sum.Add(1); {
			case n%7 == 3:
				s.Reset()
				return
			case n%11 == 5:
				_ = s.Try("HTTP/1.1 200")
				return
			case n%5 == 2:
				_ = s.Try(ok2)
				return // closes behind an answer that promised nothing
			}
			if s.Try(ok2) != nil {
				return
			}
		}
	}
	a, b := weirtest.NewBackend(t, script), weirtest.NewBackend(t, script)
	r := newRig(t, []string{a.Addr(), b.Addr()})
	const clients, each = 8, 50
	done := make(chan struct{})
	for k := range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			c := r.dial()
			for i := range each {
				if c.Try(fmt.Sprintf("POST /%d-%d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", k, i)) != nil {
					t.Errorf("client %d: send failed", k)
					return
				}
				m := c.Final("POST")
				if m == nil || m.Status() != 200 && !strings.Contains(m.Body, "reset_before_response") {
					t.Errorf("client %d: answer %+v", k, m)
					return
				}
			}
		}()
	}
	for range clients {
		<-done
	}
	times := map[string]int{}
	for _, m := range append(a.Seen(), b.Seen()...) {
		if times[m.Target()]++; times[m.Target()] > 1 {
			t.Errorf("%s was executed %d times", m.Target(), times[m.Target()])
		}
	}
	for range clients * each {
		rec := r.record()
		id := string(rec.Path)
		if !rec.Sent && times[id] > 0 {
			t.Errorf("%s was executed, but the record says that nothing was sent", id)
		}
		if rec.Reason == message.OK && times[id] != 1 {
			t.Errorf("%s: ok, executed %d times", id, times[id])
		}
	}
}

// TestIdempotencyKey: a POST is sent again only with one key that is not empty,
// in the field that the route says.
func TestIdempotencyKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		key    *IdempotencyKey
		fields string
		again  bool
	}{
		{"none", nil, "", false},
		{"one", nil, "Idempotency-Key: k\r\n", true},
		{"in any case", nil, "idempotency-KEY: k\r\n", true},
		{"empty", nil, "Idempotency-Key: \r\n", false},
		{"two", nil, "Idempotency-Key: k\r\nIdempotency-Key: l\r\n", false},
		{"of one hop", nil, "Connection: Idempotency-Key\r\nIdempotency-Key: k\r\n", false},
		{"another field", &IdempotencyKey{"X-Once"}, "x-once: k\r\n", true},
		{"another field, empty", &IdempotencyKey{"X-Once"}, "X-Once:\r\n", false},
		{"another field, twice", &IdempotencyKey{"X-Once"}, "X-Once: k\r\nX-Once: k\r\n", false},
		{"the usual one means nothing then", &IdempotencyKey{"X-Once"}, "Idempotency-Key: k\r\n", false},
		{"off", &IdempotencyKey{}, "Idempotency-Key: k\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var executed atomic.Int64
			bad := killer(t, killAfterHead, &executed, nil)
			good := weirtest.Always(t, ok2)
			r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick, rigOptions{edit: func(r *rig) { r.rt.IdempotencyKey = c.key }})
			m := r.roundTrip("POST / HTTP/1.1\r\nHost: h\r\n" + c.fields + "Content-Length: 3\r\n\r\nabc")
			if again := m.Status() == 200; again != c.again || len(good.Seen()) == 1 != c.again {
				t.Errorf("answer %d, %d requests on the second backend", m.Status(), len(good.Seen()))
			}
			r.record()
		})
	}
}

// TestPassedOnFor: a 503 with Retry-After that is passed on although another
// backend could have been asked says in the log why none was.
func TestPassedOnFor(t *testing.T) {
	busy := "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy"
	r := newRig(t, []string{weirtest.Always(t, busy).Addr(), weirtest.Always(t, busy).Addr()}, rigOptions{pool: func(c *pool.Config) { c.Retry = pool.Budget{} }})
	r.roundTrip(get)
	if rec, want := r.want(503, message.OK, true), "backend answered 503 with Retry-After; retry budget empty"; rec.Detail != want || rec.Attempts != 1 {
		t.Errorf("%d attempts, %q, want %q", rec.Attempts, rec.Detail, want)
	}
}

// TestResetBeforeStalledUpload: a backend that resets in the midst of an upload is an
// answer at once, although the client has stopped sending and may be waited for longer.
func TestResetBeforeStalledUpload(t *testing.T) {
	down := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		s.ReadHead()
		_, _ = s.Bytes(1)
		s.Reset()
	})
	r := newRig(t, []string{down.Addr()}, rigOptions{})
	c := r.dial()
	began := time.Now()
	c.Send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na")
	if m := c.Answer("PUT"); m.Status() != 502 {
		t.Errorf("answered %d", m.Status())
	}
	if took := time.Since(began); took > r.srv.Timeouts.BodyGrace/2 {
		t.Errorf("answered after %v: the client was waited for", took)
	}
	if rec := r.record(); rec.Reason != message.ResetBeforeResponse {
		t.Errorf("ended %s: %s", rec.Reason, rec.Detail)
	}
}

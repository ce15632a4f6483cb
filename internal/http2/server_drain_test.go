// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

const (
	firstGoAway = "GOAWAY 0 last 2147483647 NO_ERROR"
	leavePinged = `PING 0 false "weirgone"`
)

// TestDrain: the client hears that the connection is to end, what it had sent
// by then is answered, and only then a last stream is named.
func TestDrain(t *testing.T) {
	var release chan struct{}
	s := &Server{Handler: answers{"/wait": func(s *ServerStream) { <-release; ok(s) }, "/ok": ok}.serve}
	play(t, s, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		p.headers(1, true, get("/wait")...)
		p.wait()
		s.Drain(0)
		p.expect(firstGoAway, leavePinged)
		p.headers(3, true, get("/ok")...) // was on its way
		p.expect("HEADERS 3 :status=204 END")
		p.must(p.fr.WritePing(true, leavePing))
		p.expect("GOAWAY 0 last 3 NO_ERROR")
		p.headers(5, true, get("/ok")...) // was not to be: it is not answered, and the table is kept
		p.expect()
		time.Sleep(time.Minute) // one stream goes on
		if p.ended() {
			t.Fatal("ended with a stream open")
		}
		close(release)
		p.expect("HEADERS 1 :status=204 END")
		if !p.ended() {
			t.Error("goes on after the last stream")
		}
	})
}

// TestDrainIdle: connections without streams are told within the time, new ones not
// before they had a second to ask, and who does not answer is named a last stream
// after another.
func TestDrainIdle(t *testing.T) {
	for name, c := range map[string]struct{ age, spread, quiet, told time.Duration }{
		"old": {2 * time.Second, 4 * time.Second, time.Second, 4 * time.Second},
		"new": {0, 0, 950 * time.Millisecond, 1050 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Server{Handler: answers{}.serve}
			play(t, s, func(p *peer) {
				p.begin()
				time.Sleep(c.age)
				s.Drain(c.spread)
				time.Sleep(c.quiet)
				p.expect()
				time.Sleep(c.told - c.quiet + 1001*time.Millisecond)
				p.expect(firstGoAway, leavePinged, "GOAWAY 0 last 0 NO_ERROR")
				if !p.ended() {
					t.Error("goes on")
				}
			})
		})
	}
}

// TestDrainSaysSoWithTheNextAnswer as Connection: close does.
func TestDrainSaysSoWithTheNextAnswer(t *testing.T) {
	s := &Server{Handler: answers{"/ok": ok}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, true, get("/ok")...)
		p.take()
		time.Sleep(2 * time.Second)
		s.Drain(time.Hour)
		p.headers(3, true, get("/ok")...)
		p.expect("HEADERS 3 :status=204 END", firstGoAway, leavePinged)
		time.Sleep(time.Second)
		p.expect("GOAWAY 0 last 3 NO_ERROR")
		if !p.ended() {
			t.Error("goes on")
		}
	})
}

// TestUndrain: who was not told goes on.
func TestUndrain(t *testing.T) {
	s := &Server{Handler: answers{"/ok": ok}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, true, get("/ok")...)
		p.take()
		time.Sleep(2 * time.Second)
		s.Drain(time.Hour)
		s.Undrain()
		p.headers(3, true, get("/ok")...)
		p.expect("HEADERS 3 :status=204 END")
	})
}

// TestPressure: what ends connections while memory is short.
func TestPressure(t *testing.T) {
	var short atomic.Bool
	s := &Server{Handler: answers{"/ok": ok}.serve, Closing: short.Load}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, true, get("/ok")...)
		p.expect("HEADERS 1 :status=204 END")
		short.Store(true)
		p.headers(3, true, get("/ok")...)
		p.expect("HEADERS 3 :status=204 END", firstGoAway, leavePinged)
	})
}

// TestMaxAge: told at its age, less up to a tenth, cut after the grace.
func TestMaxAge(t *testing.T) {
	s := &Server{Handler: answers{"/wait": func(s *ServerStream) {
		gone := make(chan struct{})
		s.OnAbort(func() { close(gone) })
		<-gone
	}}.serve, Settings: Settings{Timeouts: times, MaxAge: 30 * time.Second, AgeGrace: 10 * time.Second}}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, true, get("/wait")...)
		time.Sleep(26 * time.Second)
		p.expect()
		time.Sleep(5500 * time.Millisecond) // told within 30 s, and named the last stream a second later
		p.expect(firstGoAway, leavePinged, "GOAWAY 0 last 1 NO_ERROR")
		time.Sleep(10 * time.Second)
		if heard := p.take(); !p.ended() || !slices.Contains(heard, "GOAWAY 0 last 1 NO_ERROR too old") {
			t.Errorf("heard %q", heard)
		}
	})
}

// TestCloseAll cuts, and counts what it cut.
func TestCloseAll(t *testing.T) {
	s := &Server{Handler: answers{"/wait": func(s *ServerStream) { _, _ = readAll(s) }}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/wait")...)
		p.headers(3, false, post("/wait")...)
		p.wait()
		if n := s.Counts(); n != (Counts{Connections: 1, Streams: 2}) {
			t.Errorf("%+v", n)
		}
		if n := s.CloseAll(); n != 2 {
			t.Errorf("%d were cut", n)
		}
		s.Wait()
	})
}

// TestLeaving: who watches a stream hears of its reset and of the client's
// going, once, and not after it has stopped watching.
func TestLeaving(t *testing.T) {
	var heard atomic.Int32
	var stopped atomic.Bool
	s := &Server{Handler: answers{"/watch": func(s *ServerStream) {
		gone := make(chan struct{})
		w := s.OnAbort(func() { heard.Add(1); close(gone) })
		<-gone
		if w.Stop() {
			t.Error("stopped after it was told")
		}
		if _, err := s.ReadBody(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read %v", err)
		}
		if s.WriteHead(&message.Response{Status: 200}, []byte("x"), true) == nil {
			t.Error("written to a stream that is gone")
		}
	}, "/stop": func(s *ServerStream) {
		w := s.OnAbort(func() { t.Error("told after it has stopped") })
		stopped.Store(w.Stop())
		_, _ = readAll(s)
	}}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/watch")...)
		p.headers(3, false, post("/watch")...)
		p.headers(5, false, post("/stop")...)
		p.must(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		p.wait()
		if heard.Load() != 1 || !stopped.Load() {
			t.Errorf("told %d", heard.Load())
		}
		p.c.Close()
		p.wait()
		if heard.Load() != 2 {
			t.Errorf("told %d", heard.Load())
		}
	})
}

// TestTunnel: a WebSocket over a stream is an upgrade to the exchange, and a
// connection afterwards.
func TestTunnel(t *testing.T) {
	s := &Server{Handler: answers{"/ws": func(s *ServerStream) {
		r := s.Request()
		key, _ := r.Fields.Lookup("sec-websocket-key")
		if string(r.Method) != "GET" || !r.WebSocket || len(key) != 24 || !s.BodyDone() {
			t.Errorf("%s %v %s", r.Method, r.WebSocket, key)
		}
		h := &message.Response{Status: 101}
		h.Fields.Add(message.Upgrade, "Upgrade", "websocket")
		h.Fields.Add(message.Connection, "Connection", "Upgrade")
		h.Fields.Add(message.Other, "Sec-WebSocket-Accept", s.accept)
		h.Fields.Add(message.Other, "Sec-WebSocket-Protocol", "chat")
		if err := s.WriteHead(h, nil, true); err != nil {
			t.Error(err)
		}
		c, _ := s.Takeover()
		buf := make([]byte, 100)
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != "ping" {
			t.Errorf("%q %v", buf[:n], err)
		}
		if _, err := c.Write([]byte("pong")); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		_ = c.CloseWrite()
		_ = c.Close()
	}, "/wrong": func(s *ServerStream) {
		h := &message.Response{Status: 101}
		h.Fields.Add(message.Other, "Sec-WebSocket-Accept", "x")
		if s.WriteHead(h, nil, true) == nil {
			t.Error("taken")
		}
	}, "/no": func(s *ServerStream) { _ = s.WriteHead(&message.Response{Status: 403}, []byte("no"), true) }}.serve}
	play(t, s, func(p *peer) {
		p.raw(preface)
		p.must(p.fr.WriteSettings())
		p.must(p.fr.WriteSettingsAck())
		p.take()
		ask := func(id uint32, path string) {
			p.headers(id, false, ":method: CONNECT", ":protocol: websocket", ":scheme: http", ":authority: a", ":path: "+path, "sec-websocket-version: 13")
		}
		ask(1, "/ws")
		p.expect("HEADERS 1 :status=200 sec-websocket-protocol=chat")
		time.Sleep(time.Minute) // no least rate
		p.send(1, false, "ping")
		p.expect(`DATA 1 4 "pong"`)
		p.send(1, true, "")
		p.expect(`DATA 1 0 "" END`)
		ask(3, "/wrong")
		p.expect("RST_STREAM 3 INTERNAL_ERROR")
		ask(5, "/no")
		p.expect("HEADERS 5 :status=403 content-length=2", `DATA 5 2 "no" END`, "RST_STREAM 5 NO_ERROR")
	})
}

// TestBothWays: an answer goes on while content comes, piece by piece.
func TestBothWays(t *testing.T) {
	s := &Server{Handler: answers{"/chat": func(s *ServerStream) {
		_ = s.WriteHead(&message.Response{Status: 200, Body: message.Chunked}, nil, false)
		s.MarkClose()
		for {
			b, err := s.ReadBody()
			if err != nil {
				_ = s.WriteBody(nil, true)
				return
			}
			_ = s.WriteBody([]byte(strings.ToUpper(string(b))), false)
		}
	}}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/chat")...)
		p.expect("HEADERS 1 :status=200")
		p.send(1, false, "a")
		p.expect(`DATA 1 1 "A"`)
		p.send(1, false, "b")
		p.expect(`DATA 1 1 "B"`)
		p.send(1, true, "")
		p.expect(`DATA 1 0 "" END`)
	})
}

// TestIdleShedsStreams: a connection that has been without a stream for a while
// holds none for those to come, and serves the next one as before.
func TestIdleShedsStreams(t *testing.T) {
	s := &Server{Handler: ok, Settings: Settings{Timeouts: http1.Timeouts{Idle: time.Minute}}}
	play(t, s, func(p *peer) {
		kept := func() (n int) {
			for _, c := range s.all() {
				c.mu.Lock()
				n += len(c.free)
				c.mu.Unlock()
			}
			return n
		}
		p.begin()
		for id := uint32(1); id < 7; id += 2 {
			p.headers(id, true, get("/")...)
			p.wait()
			if n := kept(); n != 1 {
				t.Fatalf("%d streams are kept for the next one, want 1", n)
			}
			time.Sleep(shedAfter + time.Millisecond)
			p.wait()
			if n := kept(); n != 0 {
				t.Fatalf("%d streams are kept after %s", n, shedAfter)
			}
			if got := strings.Join(p.take(), "\n"); !strings.Contains(got, ":status=204") {
				t.Fatalf("heard %s", got)
			}
		}
		time.Sleep(time.Minute)
		if !p.ended() {
			t.Error("the idle connection goes on")
		}
	})
}

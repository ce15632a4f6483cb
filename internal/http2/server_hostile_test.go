// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/message"
)

// TestBehindTheLastStream: what is on its way for streams behind the one that the
// final GOAWAY named is dropped, all kinds of frames, and costs those that are open
// nothing (RFC 9113 section 6.8). Without end it is a flood as any other.
func TestBehindTheLastStream(t *testing.T) {
	var release chan struct{}
	server := func() *Server {
		return &Server{Handler: answers{"/wait": func(s *ServerStream) { <-release; ok(s) }}.serve}
	}
	begin := func(p *peer) {
		release = make(chan struct{})
		p.begin()
		p.headers(1, true, get("/wait")...)
		p.wait()
		p.srv.Drain(0)
		p.expect(firstGoAway, leavePinged)
		p.must(p.fr.WritePing(true, leavePing))
		p.expect("GOAWAY 0 last 1 NO_ERROR")
	}
	play(t, server(), func(p *peer) {
		begin(p)
		p.headers(3, false, post("/ok")...)
		p.send(3, false, "abc")
		_ = p.fr.WriteWindowUpdate(3, 100)
		p.headers(3, true, "trailer: x")
		p.headers(5, false, post("/ok")...)
		_ = p.fr.WriteRSTStream(5, http2.ErrCodeCancel)
		p.expect()
		close(release)
		p.expect("HEADERS 1 :status=204 END")
	})
	play(t, server(), func(p *peer) {
		begin(p)
		id := uint32(3)
		for ; id < 2000 && !p.over1(); id += 2 {
			p.headers(id, true, get("/ok")...)
			if id%32 == 1 {
				p.wait()
			}
		}
		if !p.ended() || len(p.calms) != 1 {
			t.Errorf("%d streams were taken, %v", id/2, p.calms)
		}
		close(release)
	})
}

// TestRefusedWithoutWindow: an error's text that does not fit into the client's
// window is left out, and the stream ends.
func TestRefusedWithoutWindow(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		end    bool
		want   []string
	}{
		"too large": {get("/", "x: "+strings.Repeat("a", 70<<10)), true, []string{":status=431", "END"}},
		"malformed": {get("/", "connection: close"), true, []string{":status=400", "RST_STREAM 1 PROTOCOL_ERROR"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, &Server{Handler: echo}, func(p *peer) {
				p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				block := p.block(c.fields...)
				_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:min(len(block), maxFrame)], EndStream: c.end, EndHeaders: len(block) <= maxFrame})
				for len(block) > maxFrame {
					block = block[maxFrame:]
					_ = p.fr.WriteContinuation(1, len(block) <= maxFrame, block[:min(len(block), maxFrame)])
				}
				got := strings.Join(p.take(), "\n")
				for _, w := range c.want {
					if !strings.Contains(got, w) {
						t.Errorf("heard %q, not %q", got, w)
					}
				}
			})
		})
	}
}

// TestWokenInVain: a stream that was woken for room of the connection, and whose own
// window has gone meanwhile, lets the next one have it.
func TestWokenInVain(t *testing.T) {
	for _, id := range []uint32{1, 3} {
		play(t, &Server{Handler: answers{"/big": big(1 << 20)}.serve}, func(p *peer) {
			p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			p.headers(1, true, get("/big")...)
			p.wait()
			p.headers(3, true, get("/big")...)
			if n := p.received(1) + p.received(3); n != startWindow { // both wait for the connection's window
				t.Fatalf("%d bytes came", n)
			}
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			_ = p.fr.WriteWindowUpdate(id, 1<<20)
			before := p.received(id)
			_ = p.fr.WriteWindowUpdate(0, 1000) // enough for one of them
			if n := p.received(id) - before; n != 1000 {
				t.Errorf("%d bytes came of stream %d, which alone may send, want 1000", n, id)
			}
		})
	}
}

// TestManyCutUploads: content that is on its way for as many streams as may be open,
// all of which weir has answered early, is not held against the client.
func TestManyCutUploads(t *testing.T) {
	var release chan struct{}
	s := &Server{Handler: answers{"/early": func(s *ServerStream) {
		<-release
		_ = s.WriteHead(&message.Response{Status: 413}, nil, true)
	}}.serve}
	play(t, s, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		for i := range uint32(DefaultStreams) {
			p.headers(2*i+1, false, post("/early")...)
		}
		p.wait()
		close(release)
		p.take()
		for range 3 {
			for i := range uint32(DefaultStreams) {
				p.send(2*i+1, false, strings.Repeat("a", maxFrame))
			}
			p.wait()
		}
		for i := range uint32(DefaultStreams) {
			p.headers(2*i+1, true, "trailer: x")
		}
		heard := slices.DeleteFunc(p.take(), func(h string) bool { return strings.HasPrefix(h, "WINDOW_UPDATE 0") })
		if p.ended() || len(heard) > 0 {
			t.Errorf("ended: %v, %v, heard %q", p.ended(), p.calms, tail(heard, 3))
		}
	})
}

// TestEarlyAnswersForEver: a client that uploads again and again to who answers early
// (401, 413) is no flood.
func TestEarlyAnswersForEver(t *testing.T) {
	s := &Server{Handler: answers{"/early": func(s *ServerStream) {
		_ = s.WriteHead(&message.Response{Status: 413}, nil, true)
	}}.serve}
	play(t, s, func(p *peer) {
		p.begin()
		id := uint32(1)
		for range 2000 {
			p.headers(id, false, post("/early")...)
			for range 4 {
				p.send(id, false, strings.Repeat("a", maxFrame-1))
			}
			p.take()
			id += 2
		}
		if p.ended() {
			t.Errorf("ended, %v", p.calms)
		}
	})
}

// TestFreeStreamsAreSmall: what requests with large heads needed is not kept for as
// many streams as there were.
func TestFreeStreamsAreSmall(t *testing.T) {
	var release chan struct{}
	s := &Server{Handler: answers{"/wait": func(s *ServerStream) { <-release; ok(s) }}.serve}
	play(t, s, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		for i := range uint32(DefaultStreams) {
			fields := get("/wait")
			for k := range 100 {
				fields = append(fields, fmt.Sprintf("x-%d: %s", k, strings.Repeat("a", 100)))
			}
			p.headers(2*i+1, true, fields...)
		}
		p.wait()
		close(release)
		p.wait()
		time.Sleep(shedAfter / 2)
		kept := 0
		for _, c := range s.all() {
			c.mu.Lock()
			for _, f := range c.free {
				kept += f.holds()
			}
			c.mu.Unlock()
		}
		if kept > 1<<20 {
			t.Errorf("%d bytes are kept by a connection without streams", kept)
		}
	})
}

// TestTunnelHasNoContent: what would let a backend take tunnelled bytes, or another
// client's request, for the content of this one never reaches it.
func TestTunnelHasNoContent(t *testing.T) {
	connect := func(more ...string) []string {
		return append([]string{":method: CONNECT", ":protocol: websocket", ":scheme: http", ":authority: a.example", ":path: /ws"}, more...)
	}
	for _, length := range []string{"0", "30"} {
		play(t, &Server{Handler: echo}, func(p *peer) {
			p.begin()
			p.headers(1, false, connect("content-length: "+length)...)
			if got := strings.Join(p.take(), "\n"); !strings.Contains(got, ":status=400") || !strings.Contains(got, "RST_STREAM 1 PROTOCOL_ERROR") {
				t.Errorf("with a length of %s: heard %q", length, got)
			}
		})
	}
	play(t, &Server{Handler: func(s *ServerStream) {
		if s.Request().Fields.Has(message.Expect) || s.Request().ExpectContinue {
			t.Error("Expect is passed on")
		}
		_ = s.WriteHead(&message.Response{Status: 404}, nil, true)
	}}, func(p *peer) {
		p.begin()
		p.headers(1, false, connect("expect: 100-continue")...)
		p.expect("HEADERS 1 :status=404 content-length=0 END", "RST_STREAM 1 NO_ERROR")
	})
}

// TestSeenToEndBeforeItHas: a client that has seen the end of as many streams as may
// be open opens as many again, though nobody has cleaned up behind the first ones; what
// it only has reset is counted for as long as somebody works on it.
func TestSeenToEndBeforeItHas(t *testing.T) {
	var release chan struct{}
	s := &Server{Settings: Settings{MaxStreams: 4}, Handler: func(s *ServerStream) {
		if string(s.Request().Path) == "/slow" { // to give up
			<-release
			return
		}
		ok(s)
		s.conn.flush(1)
		<-release
	}}
	play(t, s, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		open := func(from uint32, path string) (heard string) {
			for i := range uint32(4) {
				p.headers(from+2*i, true, get(path)...)
			}
			return strings.Join(p.take(), "\n")
		}
		for _, from := range []uint32{1, 11} {
			if got := open(from, "/ok"); strings.Count(got, ":status=204 END") != 4 {
				t.Errorf("heard %q", got)
			}
		}
		if got := open(21, "/ok"); strings.Count(got, "REFUSED_STREAM") != 4 {
			t.Errorf("with 8 at work: heard %q", got)
		}
		close(release)
		p.take()
		release = make(chan struct{})
		open(31, "/slow")
		if got := open(41, "/slow"); strings.Count(got, "REFUSED_STREAM") != 4 {
			t.Errorf("with 4 open: heard %q", got)
		}
		for i := range uint32(4) {
			_ = p.fr.WriteRSTStream(31+2*i, http2.ErrCodeCancel)
		}
		if got := open(51, "/slow"); got != "" {
			t.Errorf("after resets: heard %q", got)
		}
		if got := open(61, "/slow"); strings.Count(got, "REFUSED_STREAM") != 4 {
			t.Errorf("with 8 at work: heard %q", got)
		}
		close(release)
	})
}

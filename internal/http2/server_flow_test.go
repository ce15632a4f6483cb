// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// big answers with n bytes.
func big(n int) func(*ServerStream) {
	return func(s *ServerStream) {
		_ = s.WriteHead(&message.Response{Status: 200, Body: message.Sized, ContentLength: int64(n)}, nil, false)
		piece := make([]byte, 32<<10)
		for left := n; left > 0; {
			k := min(left, len(piece))
			if s.WriteBody(piece[:k], k == left) != nil {
				return
			}
			left -= k
		}
	}
}

// TestSendWindows: no more is sent than the client takes, of its stream and of
// its connection, and one that takes nothing holds up nobody.
func TestSendWindows(t *testing.T) {
	play(t, &Server{Handler: answers{"/big": big(200_000)}.serve}, func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
		p.headers(1, true, get("/big")...)
		if n := p.received(1); n != 1000 {
			t.Fatalf("%d bytes of a window of 1000", n)
		}
		p.must(p.fr.WriteWindowUpdate(1, 500))
		if n := p.received(1); n != 1500 {
			t.Fatalf("%d bytes of a window of 1500", n)
		}
		p.must(p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 200})) // 800 less: it is negative now
		p.must(p.fr.WriteWindowUpdate(1, 801))
		if n := p.received(1); n != 1501 {
			t.Fatalf("%d bytes of a window of 1501", n)
		}
		for id := uint32(3); id < 100; id += 2 { // they take nothing
			p.headers(id, true, get("/big")...)
		}
		p.headers(101, true, get("/big")...)
		p.must(p.fr.WriteWindowUpdate(0, 1<<20))
		p.must(p.fr.WriteWindowUpdate(101, 1<<20))
		if n := p.received(101); n != 200_000 {
			t.Fatalf("%d bytes beside streams that are not read", n)
		}
		// The connection's window is shared evenly among those that want it.
		p.take()
		for id := uint32(201); id < 209; id += 2 {
			p.headers(id, true, get("/big")...)
			p.must(p.fr.WriteWindowUpdate(id, 1<<20))
		}
		p.take()
		for range 400 { // what the connection had left, and then little by little
			p.must(p.fr.WriteWindowUpdate(0, 2000))
			p.wait()
		}
		for id := uint32(201); id < 209; id += 2 {
			if n := p.received(id); n != 200_000 {
				t.Errorf("stream %d got %d", id, n)
			}
		}
	})
}

// TestNotRead: a stream that takes nothing for the write time is reset, and one
// that takes a little is not, where there is no least rate (see TestTrickled).
func TestNotRead(t *testing.T) {
	s := &Server{Handler: answers{"/big": big(100_000)}.serve}
	s.Settings.Timeouts.Write = 30 * time.Second
	play(t, s, func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
		p.headers(1, true, get("/big")...)
		p.headers(3, true, get("/big")...)
		for range 3 {
			time.Sleep(20 * time.Second)
			p.must(p.fr.WriteWindowUpdate(3, 1))
			p.wait()
		}
		got := strings.Join(p.take(), "\n")
		if !strings.Contains(got, "RST_STREAM 1 CANCEL") || strings.Contains(got, "RST_STREAM 3") {
			t.Errorf("heard %s", got)
		}
	})
}

// TestTrickled: windows that are opened byte by byte are no progress, be it a stream's
// or the connection's; a client that takes little, but at the least rate, goes on,
// however long it does.
func TestTrickled(t *testing.T) {
	least := func() *Server {
		s := &Server{Handler: answers{"/big": big(100_000)}.serve}
		s.Settings.Timeouts.Write, s.Settings.Timeouts.BodyMinRate = 30*time.Second, 240
		return s
	}
	play(t, least(), func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
		p.headers(1, true, get("/big")...)
		p.headers(3, true, get("/big")...)
		for range 100 {
			time.Sleep(time.Second)
			p.must(p.fr.WriteWindowUpdate(1, 1))
			p.must(p.fr.WriteWindowUpdate(3, 300))
			p.wait()
		}
		if got := strings.Join(p.take(), "\n"); !strings.Contains(got, "RST_STREAM 1 CANCEL") || strings.Contains(got, "RST_STREAM 3") {
			t.Errorf("heard %s", got)
		}
	})
	play(t, least(), func(p *peer) { // two streams share what the connection is opened by
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		p.headers(1, true, get("/big")...)
		p.headers(3, true, get("/big")...)
		for range 100 {
			time.Sleep(time.Second)
			p.must(p.fr.WriteWindowUpdate(0, 300))
			p.wait()
		}
		if got := strings.Join(p.take(), "\n"); strings.Contains(got, "RST_STREAM") {
			t.Errorf("at 300 bytes a second: %s", got)
		}
		for range 40 {
			time.Sleep(time.Second)
			p.must(p.fr.WriteWindowUpdate(0, 1))
			p.wait()
		}
		if got := strings.Join(p.take(), "\n"); !strings.Contains(got, "RST_STREAM 1 CANCEL") || !strings.Contains(got, "RST_STREAM 3 CANCEL") {
			t.Errorf("at a byte a second: %s", got)
		}
	})
}

// TestConnectionNotRead: a client that does not read is cut after the write time,
// and meanwhile what it asks for gathers only up to a bound.
func TestConnectionNotRead(t *testing.T) {
	s := &Server{Handler: answers{"/big": big(10 << 20)}.serve}
	play(t, s, func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		p.must(p.fr.WriteWindowUpdate(0, 1<<30))
		p.take()
		resume := p.pause()
		for id := uint32(1); id < 101; id += 2 {
			p.headers(id, true, get("/big")...)
		}
		p.wait()
		for _, c := range s.all() {
			c.mu.Lock()
			if n := len(c.out); n > outLimit+100*(maxFrame+100) {
				t.Errorf("%d bytes wait to be written", n)
			}
			c.mu.Unlock()
		}
		time.Sleep(61 * time.Second) // a part of it was read
		resume()
		if !p.ended() {
			t.Error("the connection goes on")
		}
	})
}

// TestReceiveWindows: what a client may send comes back as its content is taken;
// the connection's as it comes, so that a stream that is not read holds up nobody.
func TestReceiveWindows(t *testing.T) {
	var release chan struct{}
	play(t, &Server{Handler: answers{"/wait": func(s *ServerStream) { <-release; ok(s) }}.serve}, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		// Far more than the connection's window, by streams each of which fills its own.
		for id := uint32(1); id < 2*100; id += 2 {
			p.headers(id, false, post("/wait")...)
			for range firstWindow / maxFrame {
				p.send(id, false, strings.Repeat("x", maxFrame))
			}
		}
		p.headers(1001, false, post("/")...)
		p.send(1001, true, "hello")
		if got := strings.Join(p.take(), "\n"); !strings.Contains(got, "HEADERS 1001 :status=200") || strings.Contains(got, "GOAWAY") {
			t.Fatalf("heard %.500s", got)
		}
		p.send(1, false, "x")
		if got := strings.Join(p.take(), "\n"); !strings.Contains(got, "RST_STREAM 1 FLOW_CONTROL_ERROR") {
			t.Errorf("heard %s", got)
		}
		close(release)
		p.wait()
	})
}

// TestWindowGrows: of an upload that is taken as fast as it comes.
func TestWindowGrows(t *testing.T) {
	play(t, &Server{Handler: answers{"/": func(s *ServerStream) {
		for {
			if _, err := s.ReadBody(); err != nil {
				ok(s)
				return
			}
		}
	}}.serve}, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/")...)
		open, most := firstWindow, 0
		for sent := 0; sent < 8<<20; {
			for n := open; n > 0; {
				k := min(n, maxFrame)
				p.send(1, false, strings.Repeat("x", k))
				n -= k
				sent += k
			}
			open = 0
			for _, h := range p.take() {
				var n int
				if _, err := fmt.Sscanf(h, "WINDOW_UPDATE 1 %d", &n); err == nil {
					open += n
				}
			}
			most = max(most, open)
			if open == 0 {
				t.Fatal("nothing is given back")
			}
		}
		if most < mostWindow/2 || most > mostWindow {
			t.Errorf("the window has grown to %d", most)
		}
	})
}

// TestBudget: under pressure windows shrink, new streams with content are refused,
// and a stream whose content nobody takes is reset. What is held stays within the budget.
func TestBudget(t *testing.T) {
	budget := &netconn.Budget{}
	budget.SetLimit(1 << 20)
	var release chan struct{}
	play(t, &Server{Budget: budget, Handler: answers{"/wait": func(s *ServerStream) { <-release; s.Abort() }}.serve}, func(p *peer) {
		release = make(chan struct{})
		p.begin()
		for id := uint32(1); id < 2*60; id += 2 {
			p.headers(id, false, post("/wait")...)
			if id == 2*40-1 { // of 40 streams that are open by now
				for id := uint32(1); id < 2*40; id += 2 {
					for range firstWindow / maxFrame {
						p.send(id, false, strings.Repeat("x", maxFrame))
					}
				}
			}
		}
		got := strings.Join(p.take(), "\n")
		if used := budget.Used(); used > 1<<20+64*leastWindow {
			t.Errorf("%d bytes are held", used)
		}
		if !strings.Contains(got, "REFUSED_STREAM") || !strings.Contains(got, "ENHANCE_YOUR_CALM") {
			t.Errorf("heard %.800s", got)
		}
		p.headers(1001, true, get("/")...) // without content there is nothing to hold
		if got := strings.Join(p.take(), "\n"); !strings.Contains(got, "HEADERS 1001 :status=200") {
			t.Errorf("heard %.800s", got)
		}
		close(release)
		p.wait()
	})
}

// TestRecvWindow is the arithmetic of windows against a model: whatever is taken
// when, open and held never exceed the size, and nothing is lost.
func TestRecvWindow(t *testing.T) {
	w := newRecvWindow(firstWindow)
	open, held := firstWindow, 0
	for i := range 10_000 {
		n := (i*7919)%maxFrame + 1
		if i%3 == 0 && held > 0 {
			k := min(n, held)
			back := w.take(k, nil)
			held -= k
			open += back
		} else if n <= open {
			if !w.arrive(n) {
				t.Fatal("refused what was allowed")
			}
			open -= n
			held += n
		} else if w.arrive(n) && n > open {
			t.Fatal("took more than was allowed")
		}
		if w.open != open || w.held != held || open+held > w.size || w.size > mostWindow {
			t.Fatalf("step %d: %+v, model %d %d", i, w, open, held)
		}
	}
}

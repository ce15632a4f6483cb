// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/message"
)

// streamBackend is a server of net/http that holds requests back until it is told.
type streamBackend struct {
	addr  string
	conns atomic.Int32
	hold  chan struct{} // closed: answer
}

func newStreamBackend(t *testing.T, most int) *streamBackend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &streamBackend{addr: ln.Addr().String(), hold: make(chan struct{})}
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Protocols: p, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: most}, ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				b.conns.Add(1)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				<-b.hold
			}
			_, _ = io.WriteString(w, "hello")
		}),
	}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return b
}

func newStreamTarget(t *testing.T, b *streamBackend, edit func(*Options)) *Target {
	t.Helper()
	k := new(http2.Client)
	o := Options{
		Address: b.addr, Protocol: HTTP2, HTTP2: k, ConnectTimeout: 2 * time.Second, TLSTimeout: 2 * time.Second, KeepAlive: time.Minute,
		MaxIdle: 8, MaxStreams: 100, Ping: 10 * time.Second,
	}
	if edit != nil {
		edit(&o)
	}
	target := NewTarget(o)
	t.Cleanup(func() {
		target.Close()
		target.SetDraining(true)
		target.Cut()
		k.Close()
	})
	return target
}

// open opens an exchange: on a connection that is there, or on another one.
func open(target *Target, within time.Duration) (*http2.ClientStream, error) {
	now := clock.Now()
	if s := target.GetStream(now, true, nil); s != nil {
		return s, nil
	}
	s, _, err := target.DialStream(now, now.Add(within), nil, nil)
	return s, err
}

func request(t *testing.T, s *http2.ClientStream, path string) {
	t.Helper()
	r := &message.Request{Method: []byte("GET"), Path: []byte(path), Authority: []byte("a")}
	if err := s.WriteHead(r, nil, true); err != nil {
		t.Error(err)
	}
}

func finish(t *testing.T, s *http2.ClientStream) {
	t.Helper()
	var r message.Response
	if err := s.ReadHead(&r, false, clock.Now().Add(10*time.Second)); err != nil || r.Status != 200 {
		t.Error(r.Status, err)
	}
	for {
		if _, err := s.ReadBody(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
	s.Done()
}

// TestStreamsShare: what comes together shares one connection, and as many more
// as the backend's limit of streams asks for; they spread evenly.
func TestStreamsShare(t *testing.T) {
	b := newStreamBackend(t, 10)
	target := newStreamTarget(t, b, nil)
	var wg sync.WaitGroup
	streams := make([]*http2.ClientStream, 30)
	for i := range streams {
		wg.Go(func() {
			s, err := open(target, 5*time.Second)
			if err != nil {
				t.Error(err)
				return
			}
			request(t, s, "/hold")
			streams[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if n := b.conns.Load(); n < 3 || n > 6 {
		t.Errorf("%d connections for 30 requests, 10 on each", n)
	}
	if s := target.Stats(); s.InUse < 3 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	close(b.hold)
	for _, s := range streams {
		finish(t, s)
	}
	s, err := open(target, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	request(t, s, "/")
	finish(t, s)
	if s := target.Stats(); s.Reused == 0 || s.Idle != s.Open {
		t.Errorf("%+v", s)
	}
}

// TestStreamsWait: where no further connection may be made, who comes waits for
// room, and is refused when the time is over.
func TestStreamsWait(t *testing.T) {
	b := newStreamBackend(t, 2)
	target := newStreamTarget(t, b, func(o *Options) { o.MaxConns = 1 })
	first, err := open(target, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	second, err := open(target, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	request(t, first, "/hold")
	request(t, second, "/hold")
	var d *DialError
	if _, err := open(target, 30*time.Millisecond); !errors.As(err, &d) || d.Kind != Limit {
		t.Error(err)
	}
	got := make(chan *http2.ClientStream)
	go func() {
		s, err := open(target, 10*time.Second)
		if err != nil {
			t.Error(err)
		}
		got <- s
	}()
	eventually(t, "a request waits", func() bool { return target.waiting.Load() == 1 })
	close(b.hold)
	finish(t, first)
	third := <-got
	if third == nil {
		return
	}
	request(t, third, "/")
	finish(t, third)
	finish(t, second)
	if n := b.conns.Load(); n != 1 {
		t.Error(n, "connections")
	}
}

// TestStreamsDrain: while a backend drains, connections end with their last
// exchange; the deadline cuts what is left, and that is told apart.
func TestStreamsDrain(t *testing.T) {
	b := newStreamBackend(t, 100)
	target := newStreamTarget(t, b, nil)
	s, err := open(target, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	request(t, s, "/hold")
	target.SetDraining(true)
	if target.Stats().Open != 1 {
		t.Error("draining has ended a connection that is at work")
	}
	if n := target.Cut(); n != 1 {
		t.Error(n, "connections were cut")
	}
	var r message.Response
	if err := s.ReadHead(&r, false, clock.Now().Add(5*time.Second)); err == nil || !s.CutShort() {
		t.Error(err, s.CutShort())
	}
	s.Close()
	if _, err := open(target, time.Second); err == nil {
		t.Error("dialed behind the deadline of the drain")
	}
	close(b.hold)
	target.SetDraining(false)
	s, err = open(target, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	request(t, s, "/")
	target.SetDraining(true)
	finish(t, s)
	eventually(t, "the connection has ended", func() bool { return target.Stats().Open == 0 })
}

// TestStreamsRefused: a backend that is not there fails all who wait for the one
// attempt, and one that speaks HTTP/1.1 is told apart.
func TestStreamsRefused(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(ln) }()
	b := &streamBackend{addr: ln.Addr().String()}
	target := newStreamTarget(t, b, nil)
	var d *DialError
	if _, err := open(target, 5*time.Second); !errors.As(err, &d) || d.Kind != NotHTTP {
		t.Error(err)
	}
	_ = s.Close()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			var d *DialError
			if _, err := open(target, 5*time.Second); !errors.As(err, &d) || d.Kind != Refused {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := target.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestConnectionsInVain: a backend that allows no stream on the connections that it takes
// is as good as one that refuses them: it is not asked for ever, and they do not pile up.
func TestConnectionsInVain(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &streamBackend{addr: ln.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.conns.Add(1)
			serving.Go(func() {
				defer c.Close() //nolint:errcheck // a test's
				fr := xhttp2.NewFramer(c, c)
				_ = fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingMaxConcurrentStreams})
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	defer serving.Wait()
	defer ln.Close() //nolint:errcheck // a test's
	target := newStreamTarget(t, b, nil)
	defer target.CloseIdle()
	_, err = open(target, 10*time.Second)
	if d := new(DialError); !errors.As(err, &d) || d.Kind != Refused {
		t.Errorf("got %v", err)
	}
	if n := b.conns.Load(); n != vainMost {
		t.Errorf("%d connections were made, want %d", n, vainMost)
	}
}

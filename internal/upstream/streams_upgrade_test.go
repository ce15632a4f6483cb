// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// choosy is a backend over TLS that agrees to h2 and says whether it takes WebSockets
// so. It counts the connections of each protocol.
type choosy struct {
	addr     string
	connects atomic.Bool
	h1, h2   atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

func newChoosy(t *testing.T, ca *weirtest.Authority) *choosy {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{ca.Issue("127.0.0.1")}, NextProtos: []string{"h2", "http/1.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &choosy{addr: ln.Addr().String()}
	t.Cleanup(func() { _ = ln.Close(); b.cut() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, c)
			b.mu.Unlock()
			go b.serve(c.(*tls.Conn))
		}
	}()
	return b
}

func (b *choosy) serve(c *tls.Conn) {
	if c.Handshake() != nil {
		return
	}
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		b.h1.Add(1)
		return
	}
	b.h2.Add(1)
	fr := xhttp2.NewFramer(c, c)
	var set []xhttp2.Setting
	if b.connects.Load() {
		set = append(set, xhttp2.Setting{ID: xhttp2.SettingEnableConnectProtocol, Val: 1})
	}
	if fr.WriteSettings(set...) == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// cut ends the connections.
func (b *choosy) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
}

// restart ends the connections, as a backend does that is started anew.
func (b *choosy) restart(t *testing.T, target *Target, connects bool) {
	t.Helper()
	b.connects.Store(connects)
	b.cut()
	eventually(t, "the connections are gone", func() bool { return target.muxed.Load() == 0 })
}

// TestUpgradeAskedAgain: a backend that has taken no WebSockets over HTTP/2 is asked in
// HTTP/1.1 as long as a connection lasts on which it has said so, and anew on the next
// one: it may be another program by then.
func TestUpgradeAskedAgain(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	b := newChoosy(t, ca)
	target := newStreamTarget(t, &streamBackend{addr: b.addr}, func(o *Options) {
		o.Protocol, o.TLS = HTTP2Offered, &tls.Config{RootCAs: ca.Pool()}
	})
	ask := func() string {
		t.Helper()
		now := clock.Now()
		s := target.GetUpgrade(now, nil)
		var c *Conn
		var err error
		if s == nil {
			s, c, err = target.DialUpgrade(now, now.Add(10*time.Second), nil, nil)
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case c != nil:
			c.Close()
			return "HTTP/1.1"
		}
		defer s.Close()
		if !s.Connects() {
			return "no"
		}
		return "HTTP/2"
	}
	said := func(want string, h1, h2 int64) {
		t.Helper()
		for range 3 {
			if got := ask(); got != want {
				t.Errorf("over %s, want %s", got, want)
			}
		}
		eventually(t, "connections", func() bool { return b.h1.Load() >= h1 })
		if b.h1.Load() != h1 || b.h2.Load() != h2 {
			t.Errorf("%d connections over HTTP/1.1 and %d over HTTP/2, want %d and %d", b.h1.Load(), b.h2.Load(), h1, h2)
		}
	}
	said("HTTP/1.1", 3, 1)
	b.restart(t, target, true)
	said("HTTP/2", 3, 2)
	b.restart(t, target, false)
	said("HTTP/1.1", 6, 3)
}

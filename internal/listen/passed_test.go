// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// passing is a plain listener that reads a few bytes and has another one go on.
type passing struct {
	front, to *Listener
	ca        *weirtest.Authority
	info      chan Info
	shaken    atomic.Int64
}

func startPassing(t *testing.T, opt Options, handler func(*netconn.Conn, Info)) *passing {
	t.Helper()
	p := &passing{ca: weirtest.NewAuthority(t), info: make(chan Info, 10)}
	cert, key := p.ca.Write(t.TempDir(), "a", p.ca.Issue("a.test"))
	opt.Name, opt.Bind = "to", []string{}
	opt.TLS = &TLSOptions{Certificates: []CertFile{{cert, key}}, ReloadEvery: -1}
	opt.OnShaken = func(bool, time.Duration) { p.shaken.Add(1) }
	p.to = start(t, opt, nil)
	ready := make(chan struct{}) // p.front is set
	defer close(ready)
	p.front = start(t, Options{Name: "front", Mute: true}, func(c *netconn.Conn, i Info) {
		<-ready
		first := make([]byte, 7)
		n, err := io.ReadFull(c, first)
		if err != nil {
			_ = c.Close()
			return
		}
		p.front.Pass(c, p.to, first[:n], i, func(c *netconn.Conn, i Info) {
			p.info <- i
			handler(c, i)
		})
	})
	return p
}

func (p *passing) counts(t *testing.T, n int) {
	t.Helper()
	eventually(t, "both count the same", func() bool { return p.front.Connections() == n && p.to.Connections() == n })
}

// TestPass: TLS begins with bytes that were read before, sent at once or one by one;
// both listeners count the connection until it is closed, and what is told of it is
// the other one's.
func TestPass(t *testing.T) {
	p := startPassing(t, Options{}, echoing)
	for _, size := range []int{1, 1 << 16} {
		raw := dial(t, p.front)
		c := tls.Client(inPieces{raw, size}, &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"})
		echo(t, c, "hello")
		p.counts(t, 1)
		i := <-p.info
		if i.Listener != "to" || !i.TLS || i.SNI != "a.test" || i.Remote != addrPort(raw.LocalAddr()) {
			t.Errorf("info %+v", i)
		}
		_ = c.Close()
		p.counts(t, 0)
	}
	if n := p.to.Handshakes()[HandshakeFull]; n != 2 || p.shaken.Load() != 2 {
		t.Errorf("%d handshakes are counted, %d told", n, p.shaken.Load())
	}
	// Whoever came in before the end is served, though the other one has stopped.
	p.to.Stop()
	c := tls.Client(dial(t, p.front), &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"})
	echo(t, c, "hello")
}

// inPieces is a connection that sends so many bytes at a time.
type inPieces struct {
	net.Conn
	size int
}

func (c inPieces) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.Conn.Write(p[n:min(n+c.size, len(p))])
		n += m
	}
	return n, err
}

// TestPassRefuses: a handshake that does not come about, one that is not complete in
// time, a ceiling, no memory and a handler that panics each end one connection, and
// are counted where TLS would have ended.
func TestPassRefuses(t *testing.T) {
	var short, crash atomic.Bool
	p := startPassing(t, Options{HandshakeTimeout: 300 * time.Millisecond, MaxConnections: 1, Short: short.Load}, func(c *netconn.Conn, i Info) {
		if crash.Load() {
			panic("handler")
		}
		echoing(c, i)
	})
	ends := func(c net.Conn) {
		t.Helper()
		_, _ = io.Copy(io.Discard, c) // a reset is an end
		p.counts(t, 0)
	}
	garbage := dial(t, p.front)
	_, _ = io.WriteString(garbage, "GET / HTTP/1.1\r\n\r\n")
	ends(garbage)
	silent := dial(t, p.front)
	_, _ = io.WriteString(silent, "\x16\x03\x01\x02\x00\x01\x00\x01")
	ends(silent)
	if f, s := p.to.Refused(HandshakeFailed), p.to.Refused(HandshakeTimeout); f != 1 || s != 1 {
		t.Errorf("%d failed and %d slow handshakes are counted", f, s)
	}
	one := tls.Client(dial(t, p.front), &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"})
	echo(t, one, "hello")
	if err := tls.Client(dial(t, p.front), &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"}).Handshake(); err == nil || p.to.Refused(ListenerLimit) != 1 {
		t.Errorf("beyond the ceiling: %v, %d refused", err, p.to.Refused(ListenerLimit))
	}
	_ = one.Close()
	p.counts(t, 0)
	short.Store(true)
	if err := tls.Client(dial(t, p.front), &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"}).Handshake(); err == nil || p.to.Refused(NoMemory) != 1 {
		t.Errorf("without memory: %v, %d refused", err, p.to.Refused(NoMemory))
	}
	short.Store(false)
	crash.Store(true)
	crashed := tls.Client(dial(t, p.front), &tls.Config{RootCAs: p.ca.Pool(), ServerName: "a.test"})
	if err := crashed.Handshake(); err != nil {
		t.Errorf("the handshake before a panic: %v", err)
	}
	ends(crashed)
}

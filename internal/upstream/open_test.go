// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestOpenWith: a session's connection begins with its PROXY header, then TLS, in which
// what is asked for is offered and nothing else; the Target's own settings stay.
func TestOpenWith(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	const header = "PROXY UNKNOWN\r\n"
	type met struct {
		line    string
		offered []string
	}
	seen := make(chan met, 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // a test's
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			var m met
			cfg := &tls.Config{Certificates: []tls.Certificate{ca.Issue("127.0.0.1")}, NextProtos: []string{"imap"}}
			cfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				m.offered = h.SupportedProtos
				return nil, nil //nolint:nilnil // what crypto/tls wants
			}
			in := bufio.NewReader(c)
			if b, _ := in.Peek(1); string(b) == "P" {
				m.line, _ = in.ReadString('\n')
			}
			s := tls.Server(readAhead{c, in}, cfg)
			_ = s.Handshake()
			seen <- m
			_, _ = io.Copy(io.Discard, s)
			_ = c.Close()
		}
	}()
	opt := options(ln.Addr().String())
	opt.TLS = &tls.Config{RootCAs: ca.Pool()}
	target := newTarget(t, opt)
	if !target.Secure() {
		t.Error("there is TLS, and it says that there is none")
	}
	for _, c := range []struct {
		as   Opening
		want met
	}{
		{Opening{Header: []byte(header), Protocol: "imap"}, met{header, []string{"imap"}}},
		{Opening{}, met{}},
	} {
		nc, _, err := target.OpenWith(clock.Now(), 0, nil, c.as)
		if err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got.line != c.want.line || !slices.Equal(got.offered, c.want.offered) {
			t.Errorf("%+v: the backend met %+v", c.as, got)
		}
		_ = nc.Close()
	}
	if n := target.Stats().Open; n != 0 {
		t.Errorf("%d connections are still counted", n)
	}
}

// readAhead is a connection of which something was read ahead.
type readAhead struct {
	net.Conn
	in io.Reader
}

func (c readAhead) Read(p []byte) (int, error) { return c.in.Read(p) }

// TestOpenInTime: a backend that accepts and does not answer the hello is given up when
// connecting has to be over, however long a handshake of requests may take.
func TestOpenInTime(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // a test's; the kernel accepts
	opt := options(ln.Addr().String())
	opt.TLS = &tls.Config{ServerName: "db.test"}
	opt.ConnectTimeout, opt.TLSTimeout = 200*time.Millisecond, time.Hour
	target := newTarget(t, opt)
	began := time.Now()
	_, _, err = target.OpenWith(clock.Now(), clock.Now().Add(time.Hour), nil, Opening{})
	if d := time.Since(began); kind(t, err) != TLS || d < 200*time.Millisecond || d > patience {
		t.Errorf("%v after %v", err, d)
	}
}

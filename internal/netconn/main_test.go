// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen "at once" on a busy machine.
const patience = 10 * time.Second

// tcpPair returns the two ends of a TCP connection.
func tcpPair(tb testing.TB) (*net.TCPConn, *net.TCPConn) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// unixPair returns the two ends of a unix connection.
func unixPair(tb testing.TB) (net.Conn, net.Conn) {
	tb.Helper()
	ln, err := net.Listen("unix", tb.TempDir()+"/s")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// tlsPair returns both ends of a TLS connection; the handshake is over.
func tlsPair(tb testing.TB) (client, server *Conn) {
	tb.Helper()
	a, b := tcpPair(tb)
	ca := weirtest.NewAuthority(tb)
	client = Client(a, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
	server = Server(b, &tls.Config{Certificates: []tls.Certificate{ca.Issue("localhost")}})
	done := make(chan error, 1)
	go func() { done <- server.Handshake(clock.Now().Add(patience)) }()
	if err := client.Handshake(clock.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
	return client, server
}

// kinds runs a test over every kind of connection.
func kinds(t *testing.T, test func(t *testing.T, a, b *Conn)) {
	t.Run("tcp", func(t *testing.T) {
		a, b := tcpPair(t)
		test(t, New(a), New(b))
	})
	t.Run("unix", func(t *testing.T) {
		a, b := unixPair(t)
		test(t, New(a), New(b))
	})
	t.Run("tls", func(t *testing.T) {
		a, b := tlsPair(t)
		test(t, a, b)
	})
	t.Run("pipe", func(t *testing.T) {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
		test(t, New(a), New(b))
	})
}

// Names that read well in tests.
var (
	within     = weirtest.Within
	eventually = weirtest.Eventually
)

func mustWrite(tb testing.TB, c io.Writer, p string) {
	tb.Helper()
	if _, err := io.WriteString(c, p); err != nil {
		tb.Fatal(err)
	}
}

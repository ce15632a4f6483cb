// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weirlb/weir/internal/weirtest"
)

// quicBackend echoes streams, its name before them.
func quicBackend(t *testing.T, name string, cert tls.Certificate) string {
	t.Helper()
	ln, err := quic.ListenAddr("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"echo"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				for {
					s, err := c.AcceptStream(context.Background())
					if err != nil {
						return
					}
					go func() {
						_, _ = io.WriteString(s, name)
						_, _ = io.Copy(s, s)
						_ = s.Close()
					}()
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// quicEcho sends bytes on a stream and wants them back; while is called in their
// midst.
func quicEcho(ctx context.Context, c *quic.Conn, body []byte, while func()) (string, error) {
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		return "", err
	}
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	sent := make(chan error, 1)
	go func() {
		_, err := s.Write(body[:len(body)/2])
		if while != nil {
			while()
		}
		if err == nil {
			_, err = s.Write(body[len(body)/2:])
		}
		if err == nil {
			err = s.Close()
		}
		sent <- err
	}()
	got, err := io.ReadAll(s)
	if err == nil {
		err = <-sent
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("after %d bytes: %w", len(got), err)
	case len(got) < 2 || sha256.Sum256(got[2:]) != sha256.Sum256(body):
		return "", fmt.Errorf("%d bytes came back of %d", len(got), len(body))
	}
	return string(got[:2]), nil
}

// TestQUIC: connections of QUIC go through weir, and through its upgrade, with
// quic-go as client and as server. Both use UDP_SEGMENT and UDP_GRO.
func TestQUIC(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	cert := ca.Issue("quic.test")
	listen := freeUDP(t)
	w := startLive(t, binary, func(dir string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
listeners:
  quic: {bind: %q, protocol: udp, pool: quic}
pools:
  quic: {balance: round_robin, backends: ["udp://%s", "udp://%s"]}
`, dir, listen, quicBackend(t, "q0", cert), quicBackend(t, "q1", cert))
	})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	t.Cleanup(cancel)
	dial := func() *quic.Conn {
		t.Helper()
		c, err := quic.DialAddr(ctx, listen, &tls.Config{RootCAs: ca.Pool(), ServerName: "quic.test", NextProtos: []string{"echo"}}, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, w.said())
		}
		t.Cleanup(func() { _ = c.CloseWithError(0, "") })
		return c
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	for i := range body {
		body[i] ^= byte(rand.Uint32())
	}
	with := map[string]int{}
	first := dial()
	for i := range 4 {
		c := first
		if i > 0 {
			c = dial()
		}
		name, err := quicEcho(ctx, c, body, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, w.said())
		}
		with[name]++
	}
	if with["q0"] != 2 || with["q1"] != 2 {
		t.Errorf("connections fell %v", with)
	}
	old := w.pid
	var before string
	var err error
	upgraded, echoed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(echoed)
		before, err = quicEcho(ctx, first, body, func() { <-upgraded })
	}()
	if kerr := syscall.Kill(old, syscall.SIGUSR2); kerr != nil {
		t.Fatal(kerr)
	}
	eventually(t, 60*time.Second, "another process serves", func() bool { return w.ask().PID != old })
	close(upgraded)
	<-echoed
	if err != nil {
		t.Fatalf("in an upgrade: %v\n%s", err, w.said())
	}
	w.pid = w.ask().PID
	w.reap(w.pid)
	if after, err := quicEcho(ctx, first, body, nil); err != nil || after != before {
		t.Fatalf("after the upgrade: %q, %v, before %q\n%s", after, err, before, w.said())
	}
	if _, err := quicEcho(ctx, dial(), body, nil); err != nil {
		t.Fatalf("a new connection: %v\n%s", err, w.said())
	}
}

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// served accepts one connection, reads nothing and says who it is.
func served(t *testing.T, ln net.Listener, name string) {
	t.Helper()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte(name))
	_ = c.Close()
}

func answeredBy(t *testing.T, c net.Conn) string {
	t.Helper()
	defer c.Close()
	b := make([]byte, 8)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// TestYieldDeclined: a socket that the successor does not want is served here to
// the end, with those who wait in its queue, and its file goes with it.
func TestYieldDeclined(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, bind := range []string{"127.0.0.1:0", "unix:" + path} {
		old, next := NewSockets(), NewSockets()
		k, err := old.Take(bind)
		if err != nil {
			t.Fatal(err)
		}
		k.serve(greeter{})
		hand, err := old.Hand()
		if err != nil || len(hand) != 1 {
			t.Fatal(hand, err)
		}
		if err := next.Inherit(hand[0].Bind, hand[0].File); err != nil {
			t.Fatal(err)
		}
		declined := next.Decline()
		if len(declined) != 1 || declined[0] != bind {
			t.Fatalf("declined %q", declined)
		}
		old.Yield(declined...)
		dial := func() net.Conn {
			t.Helper()
			c, err := net.Dial(k.Addr().Network(), k.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			return c
		}
		for range 20 {
			if got := answeredBy(t, dial()); got != "old" {
				t.Errorf("answered by %q", got)
			}
		}
		last := dial()
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if got := answeredBy(t, last); got != "old" {
			t.Errorf("at the end answered by %q", got)
		}
		<-k.Done()
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket file: %v", err)
	}
}

// greeter says who it is and ends.
type greeter struct{}

func (greeter) accepted(nc net.Conn, _ *turn) bool {
	_, _ = nc.Write([]byte("old"))
	_ = nc.Close()
	return true
}

func (greeter) failed(error) {}

// TestYield plays an upgrade in one process: while a successor accepts from
// the same sockets this one gets nothing, and when it is gone those who connected
// meanwhile are served here.
func TestYield(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, bind := range []string{"127.0.0.1:0", "unix:" + path} {
		old, next := NewSockets(), NewSockets()
		k, err := old.Take(bind)
		if err != nil {
			t.Fatal(err)
		}
		lo := k.Listener()
		dial := func() net.Conn {
			t.Helper()
			c, err := net.Dial(lo.Addr().Network(), lo.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := dial()
		served(t, lo, "old")
		if got := answeredBy(t, c); got != "old" {
			t.Errorf("before: %s", got)
		}
		hand, err := old.Hand()
		if err != nil || len(hand) != 1 {
			t.Fatal(hand, err)
		}
		if err := next.Inherit(hand[0].Bind, hand[0].File); err != nil {
			t.Fatal(err)
		}
		n, err := next.Take(bind)
		if err != nil {
			t.Fatal(err)
		}
		yield := func() { // and wait until the accept loop rests: who comes before that is still its own
			t.Helper()
			before := k.o.rounds.Load()
			old.Yield()
			eventually(t, "the accept loop rests", func() bool { return k.o.rounds.Load() > before })
		}
		yield()
		old.Yield() // once is enough
		ln := n.Listener()
		for range 50 {
			c := dial()
			served(t, ln, "next")
			if got := answeredBy(t, c); got != "next" {
				t.Errorf("after Yield: %s", got)
			}
		}
		next.KeepPaths() // it dies, and removes nothing
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		<-n.Done()
		waits := dial()
		old.Return()
		old.Return()
		served(t, lo, "old")
		if got := answeredBy(t, waits); got != "old" {
			t.Errorf("after Return: %s", got)
		}

		// To its end without Return: nothing waits for ever, and a socket file stays.
		yield()
		last := dial()
		if err := lo.Close(); err != nil {
			t.Fatal(err)
		}
		<-k.Done()
		if _, err := last.Read(make([]byte, 1)); err == nil {
			t.Error("it was accepted after Yield")
		}
		_ = last.Close()
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket file: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	// A file left by a process that is gone.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	s, err := Listen(Options{Bind: "unix:" + path, Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
	if _, err := Listen(Options{Bind: "unix:" + path, Controller: newFake()}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server on the same socket: %v", err)
	}
	c, err := NewClient(ClientOptions{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(t.Context()); err != nil || st.Version != "1.2.3" {
		t.Errorf("%+v, %v", st, err)
	}
	c.Close()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestUnixSuccessor: closing must not take the path away from a successor.
func TestUnixSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, cleanup, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the old one no longer answers
	next, cleanupNext, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	cleanup()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the successor's socket is gone: %v", err)
	}
	next.Close()
	cleanupNext()
}

func TestCloseUnstarted(t *testing.T) {
	s, err := Listen(Options{Bind: "127.0.0.1:0", Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Error("still bound after Close")
	}
}

// TestCloseCutsHangers: a client that sends nothing does not hold Close up.
func TestCloseCutsHangers(t *testing.T) {
	s, err := Listen(Options{Bind: "127.0.0.1:0", Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Close(ctx) // reports that it had to cut
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Close hangs")
	}
}

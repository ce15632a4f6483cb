// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSocketShared(t *testing.T) {
	s := NewSockets()
	a, err := s.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	where := a.Addr().String()
	b, err := s.Take(where)
	if err != nil {
		t.Fatal(err)
	}
	if b.Addr().String() != where {
		t.Errorf("%v, want %s", b.Addr(), where)
	}
	la := a.Listener()
	c, err := net.Dial("tcp", where)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := la.Accept()
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	la.Close()
	c2, err := net.Dial("tcp", where) // nobody serves, but somebody holds it
	if err != nil {
		t.Fatal(err)
	}
	defer c2.Close()
	lb := b.Listener()
	if in, err = lb.Accept(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	<-a.Done()
	lb.Close()
	<-b.Done()
	if _, err := net.Dial("tcp", where); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the last: %v", err)
	}
}

// TestHandInherit: a duplicate serves on under the bind it had.
func TestHandInherit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, bind := range []string{"127.0.0.1:0", "unix:" + path} {
		old := NewSockets()
		k, err := old.TakePrivate(bind)
		if err != nil {
			t.Fatal(err)
		}
		handed, err := old.Hand()
		if err != nil || len(handed) != 1 || handed[0].Bind != bind {
			t.Fatalf("%+v, %v", handed, err)
		}
		next := NewSockets()
		if err := next.Inherit(bind, handed[0].File); err != nil {
			t.Fatal(err)
		}
		n, err := next.Take(bind)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := n.Addr().String(), k.Addr().String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		old.KeepPaths()
		k.Close()
		<-k.Done()
		ln := n.Listener()
		c, err := net.Dial(n.Addr().Network(), n.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		in, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		c.Close()
		ln.Close()
		<-n.Done()
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the path is left: %v", err)
	}
}

func TestUnclaimed(t *testing.T) {
	old := NewSockets()
	k, err := old.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	handed, err := old.Hand()
	if err != nil {
		t.Fatal(err)
	}
	next := NewSockets()
	if err := next.Inherit("systemd:web", handed[0].File); err != nil {
		t.Fatal(err)
	}
	// A configuration with a mistake gives back what it took, and what is then
	// said of it is not that its sockets are missing.
	given, err := next.Take("systemd:web")
	if err != nil {
		t.Fatal(err)
	}
	if err := given.Close(); err != nil {
		t.Error(err)
	}
	if err := next.Check("systemd:web", false); err != nil {
		t.Errorf("taken and given back: %v", err)
	}
	if _, err := next.Take("systemd:other"); err == nil || !strings.Contains(err.Error(), "FileDescriptorName=other") {
		t.Error(err)
	}
	if got := next.Unclaimed(); len(got) != 1 || got[0] != "systemd:web" {
		t.Errorf("%v", got)
	}
	if _, err := next.Take("systemd:web"); err == nil {
		t.Error("taken after it was closed")
	}
}

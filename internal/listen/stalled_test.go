// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"slices"
	"testing"

	"github.com/weirlb/weir/internal/weirtest"
)

// A loop is stuck when clients wait at two looks and nothing was done between.
func TestStalled(t *testing.T) {
	s := NewSockets()
	k, err := s.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stuck := make(stuckServer)
	k.serve(stuck)
	defer k.Close()
	idle, err := s.Take("127.0.0.1:0") // nobody serves it: that is no loop that is stuck
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	dial := func(addr net.Addr) {
		t.Helper()
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	accept := func() {
		t.Helper()
		_ = (<-stuck).Close()
	}
	stalled := func(want ...string) {
		t.Helper()
		if got := s.Stalled(); !slices.Equal(got, want) {
			t.Errorf("stalled: %q, want %q", got, want)
		}
	}
	stalled()
	stalled()
	dial(idle.Addr())
	dial(k.Addr()) // the loop holds this one out to nobody
	dial(k.Addr()) // this one waits behind it
	row := 0
	weirtest.Eventually(t, "the loop is stuck", func() bool {
		if row++; len(s.Stalled()) == 0 {
			row = 0
		}
		return row == 5 // two looks may come before the loop has run at all
	})
	stalled(k.Bind())
	stalled(k.Bind())
	rounds := k.o.rounds.Load()
	accept()
	dial(k.Addr())
	weirtest.Eventually(t, "another waits", func() bool { return k.o.rounds.Load() > rounds && pending(k.o.ln) })
	stalled() // as many wait, but one was accepted
	stalled(k.Bind())
	accept()
	accept()
	stalled()
	stalled()
}

// A socket that comes to its end is not stuck.
func TestStalledEnds(t *testing.T) {
	s := NewSockets()
	k, err := s.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = k.Listener()
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := s.Stalled(); len(got) > 0 {
			t.Errorf("stalled: %q", got)
		}
	}
	<-k.Done()
}

// stuckServer holds the loop up until somebody receives.
type stuckServer chan net.Conn

func (s stuckServer) accepted(nc net.Conn, _ *turn) bool { s <- nc; return true }
func (stuckServer) failed(error)                         {}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// retrying is an owner whose attempt is ended, and which begins another one with the same
// pair at once, as a session does that is sent to another backend.
type retrying struct {
	l             *loop
	p             *pair
	next          int32 // the descriptor of the second attempt
	ends, reaches atomic.Int32
	addErr        error
}

func (o *retrying) moved(side, int) {}
func (o *retrying) lasting()        {}
func (o *retrying) told() bool      { return o.ends.Load() == 0 }
func (o *retrying) ended(end) {
	if o.ends.Add(1) == 1 {
		o.l.prepare(o.p, pair{fd: [2]int32{-1, o.next}, owner: o, slot: -1, pos: -1, connecting: true, last: clock.Now()})
		o.addErr = o.l.add(o.p)
	}
}
func (o *retrying) reached(balance.Instant) bool                   { o.reaches.Add(1); return false }
func (o *retrying) unreached(balance.Instant, syscall.Errno, bool) {}

// halfPair has one end for a loop, ready to be written or not.
func halfPair(t *testing.T, full bool) (near, far int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	for b := make([]byte, 1<<16); full; {
		if _, err := unix.Write(fds[0], b); err != nil {
			break
		}
	}
	return fds[0], fds[1]
}

// TestToldWithEventOfSameTurn: an attempt that is told to end in the very turn in which
// its backend answers is ended once, and the answer is not taken for that of the attempt
// that follows with the same pair.
func TestToldWithEventOfSameTurn(t *testing.T) {
	l, err := newLoop(func(v any) { t.Error(v) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	first, far := halfPair(t, true)
	second, _ := halfPair(t, true) // connects, and nobody answers
	p := &pair{}
	o := &retrying{l: l, p: p, next: int32(second)}
	l.prepare(p, pair{fd: [2]int32{-1, int32(first)}, owner: o, slot: -1, pos: -1, connecting: true, last: clock.Now()})
	if err := l.add(p); err != nil {
		t.Fatal(err)
	}
	// Both while the loop cannot look: it needs mu to begin a turn.
	l.mu.Lock()
	for b := make([]byte, 1<<16); ; {
		if _, err := unix.Read(far, b); err != nil {
			break
		}
	}
	l.told = append(l.told, p)
	l.ring()
	l.mu.Unlock()
	weirtest.Eventually(t, "the end", func() bool { return o.ends.Load() > 0 })
	turned := func() { // a turn later
		_, c, b := joined(t, l, &pair{owner: quietOwner{}, slot: -1, pos: -1})
		_, _ = unix.Write(c, []byte("x"))
		arrives(t, b)
	}
	turned()
	turned()
	if o.addErr != nil {
		t.Fatal(o.addErr)
	}
	if n := o.reaches.Load(); n != 0 {
		t.Errorf("the second attempt was taken for connected %d times, by the answer of the first", n)
	}
	if n := o.ends.Load(); n != 1 {
		t.Errorf("ended %d times", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// quietOwner is told and says nothing; one that is broken panics when it is asked.
type quietOwner struct{ broken bool }

func (o quietOwner) moved(side, int) {}
func (o quietOwner) ended(end)       {}
func (o quietOwner) lasting()        {}
func (o quietOwner) told() bool {
	if o.broken {
		panic("a broken owner")
	}
	return true
}
func (o quietOwner) reached(balance.Instant) bool                   { return true }
func (o quietOwner) unreached(balance.Instant, syscall.Errno, bool) {}

// TestLoopOutlivesPanic: what panics outside of one session's own turn costs that turn,
// and not the loop: sessions that come later are served.
func TestLoopOutlivesPanic(t *testing.T) {
	bugs := make(chan any, 8)
	l, err := newLoop(func(v any) { bugs <- v })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	p, _, _ := joined(t, l, &pair{owner: quietOwner{broken: true}, slot: -1, pos: -1})
	l.end(p)
	select {
	case <-bugs:
	case <-time.After(patience):
		t.Fatal("nobody hears of the panic")
	}
	_, c, b := joined(t, l, &pair{owner: quietOwner{}, slot: -1, pos: -1})
	if _, err := unix.Write(c, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	arrives(t, b)
}

// TestFlowLoopOutlivesPanic is the same of datagrams.
func TestFlowLoopOutlivesPanic(t *testing.T) {
	bugs := make(chan any, 8)
	l, err := newFlowLoop(func(v any) { bugs <- v }, true, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.ask(func() { panic("a broken wish") })
	<-bugs
	ran := make(chan struct{})
	l.await(func() { // what follows is one turn's
		l.ask(func() { panic("another one") })
		l.ask(func() { close(ran) })
	})
	select {
	case <-ran:
	case <-time.After(patience):
		t.Fatal("the loop has ended")
	}
}

// TestFlowsGivenAreNotRead: what another process has, and was to be read on in the next
// turn when it was given away, is the other's from then on.
func TestFlowsGivenAreNotRead(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0")}, nil)
	c := r.client()
	asks(t, c, "one")
	r.relay.Pause()
	for _, l := range r.relay.running() {
		l.await(func() {
			for _, p := range l.ports {
				l.later(p)
				for _, e := range p.table.entries {
					if e.f != nil {
						e.f.again = true
						l.again = append(l.again, e.f)
					}
				}
			}
		})
	}
	if _, err := c.Write([]byte("meanwhile")); err != nil {
		t.Fatal(err)
	}
	r.relay.GiveAway(func(Group) bool { return false })
	for range 2 {
		for _, l := range r.relay.running() {
			l.await(func() {}) // a turn
		}
	}
	waiting := 0
	for _, fd := range r.group.fds {
		var b [16]byte
		if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err == nil && string(b[:n]) == "meanwhile" {
			waiting++
		}
	}
	if waiting != 1 {
		t.Error("what came for the other process was read")
	}
	r.relay.TakeBack()
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "b0meanwhile" {
		t.Errorf("taken back: %q, %v", b[:n], err)
	}
}

// lastingOwner says when it hears that its session lasts, and when that has ended.
type lastingOwner struct {
	quietOwner
	lasted, over chan struct{}
}

func (o lastingOwner) lasting()  { close(o.lasted) }
func (o lastingOwner) ended(end) { close(o.over) }

// TestLoopWithoutIdleTime: a session that may be silent for ever is not ended when it is
// found to last, and is served after that.
func TestLoopWithoutIdleTime(t *testing.T) {
	l, err := newLoop(func(v any) { t.Error(v) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	o := lastingOwner{lasted: make(chan struct{}), over: make(chan struct{})}
	_, c, b := joined(t, l, &pair{owner: o, slot: -1, pos: -1, lasts: clock.Now().Add(time.Millisecond)})
	select {
	case <-o.lasted:
	case <-time.After(patience):
		t.Fatal("nobody hears that it lasts")
	}
	if _, err := unix.Write(c, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	arrives(t, b)
	select {
	case <-o.over:
		t.Error("the session was ended")
	default:
	}
}

// joined gives a loop a pair of sockets, and returns their far ends.
func joined(t *testing.T, l *loop, p *pair) (_ *pair, c, b int) {
	t.Helper()
	far := [2]int{}
	for s := range p.fd {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fds[1]) })
		p.fd[s], far[s] = int32(fds[0]), fds[1]
	}
	if err := l.add(p); err != nil {
		t.Fatalf("a session is not taken: %v", err)
	}
	return p, far[client], far[backend]
}

// arrives waits until there is something to read.
func arrives(t *testing.T, fd int) {
	t.Helper()
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(look[:], int(patience/time.Millisecond))
	if n != 1 || err != nil || look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
		t.Fatalf("nothing arrives: %d, %v, %#x", n, err, look[0].Revents)
	}
}

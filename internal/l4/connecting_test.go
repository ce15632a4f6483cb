// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// deaf is an address whose kernel answers nobody any more: its queue is full.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}).String()
	for range 8 {
		c, err := net.DialTimeout("tcp", addr, 300*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue takes them all")
	return ""
}

// TestConnectTimeout: a backend that does not answer is passed over when its time to
// connect is over, and nothing of the attempt is left.
func TestConnectTimeout(t *testing.T) {
	r := newRig(t, []string{deaf(t), server(t, echo)}, func(r *rig, _ *pool.Config) { r.rt.Connect = 200 * time.Millisecond })
	late := 0
	for range 2 { // by turns: one of the two begins with who does not answer
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		_ = c.CloseWrite()
		ends(t, c, false)
		rec := r.want(message.OK, 1, 1)
		if len(rec.Tried) == 1 && rec.Tried[0].Reason == message.ConnectTimeout && rec.Total >= 200*time.Millisecond {
			late++
		}
	}
	if late != 1 {
		t.Errorf("%d sessions were late", late)
	}
}

// TestQuitWhileConnecting: who waits for a backend is let go when nothing is dialed
// any more.
func TestQuitWhileConnecting(t *testing.T) {
	r := newRig(t, []string{deaf(t)}, func(r *rig, _ *pool.Config) { r.rt.Connect = time.Minute })
	r.ups.ConnectTimeout = time.Minute
	c := r.dial()
	r.connects(1)
	r.px.Quit()
	r.px.Wait()
	ends(t, c, true)
	if rec := r.record(); rec.Reason != message.DrainCut || rec.Attempts != 1 {
		t.Errorf("ended %s after %d attempts: %s", rec.Reason, rec.Attempts, rec.Detail)
	}
}

// TestCutWhileConnecting: a drain that is over before the backend has answered sends
// the session to another one.
func TestCutWhileConnecting(t *testing.T) {
	r := newRig(t, []string{deaf(t), server(t, echo)}, func(r *rig, _ *pool.Config) {
		r.rt.Connect = time.Minute
		r.ups.ConnectTimeout = time.Minute
	})
	conns := []*net.TCPConn{r.dial(), r.dial()} // by turns: one of them has the other backend
	r.connects(1)
	r.session()
	r.targets[0].SetDraining(true)
	if n := r.targets[0].Cut(); n != 1 {
		t.Errorf("%d were cut", n)
	}
	for _, c := range conns {
		say(t, c, "x")
		hear(t, c, "x")
		_ = c.CloseWrite()
		ends(t, c, false)
		r.want(message.OK, 1, 1)
	}
}

// TestManyRefused: attempts that fail in a loop give everything back.
func TestManyRefused(t *testing.T) {
	r := newRig(t, []string{deadPort(t), deadPort(t)}, nil)
	for range 50 {
		r.turnedAway()
		if rec := r.record(); rec.Reason != message.ConnectRefused || rec.Attempts != 2 || rec.Detail == "" {
			t.Fatalf("ended %s after %d attempts: %s", rec.Reason, rec.Attempts, rec.Detail)
		}
	}
}

// connects waits until so many sessions wait for a backend.
func (r *rig) connects(n int) {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		now := -int(r.px.Open()) // the established ones
		all, err := r.relay.loops()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, l := range all {
			l.mu.Lock()
			now += l.live
			l.mu.Unlock()
		}
		if now == n {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("%d sessions wait for a backend, not %d", now, n)
		}
	}
}

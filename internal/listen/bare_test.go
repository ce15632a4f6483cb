// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// queueUp connects many clients before the listener serves, so that they wait in
// the queue together.
func queueUp(t *testing.T, l *Listener, n int) []net.Conn {
	t.Helper()
	var all []net.Conn
	for range n {
		all = append(all, dial(t, l))
	}
	return all
}

// TestBare: those who wait together come as descriptors, with their addresses and
// the options that the net package would have set; each is served, counted, and
// given back, whichever way it came.
func TestBare(t *testing.T) {
	const n = 60
	l, err := Listen(Options{Name: "test", Bind: []string{"127.0.0.1:0"}, KeepAlive: 42 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var bare, whole, refusedBare atomic.Int32
	remotes := make(chan netip.AddrPort, n)
	l.ServeBare(Bare{
		Wanted: func() bool { return true },
		Serve: func(b netconn.Bare, i *Info) bool {
			if i.Remote.Port()%3 == 0 { // it is to come like any other
				refusedBare.Add(1)
				return false
			}
			bare.Add(1)
			if i.Listener != "test" || i.Local != addrPort(l.Addrs()[0]) {
				t.Errorf("info %+v", i)
			}
			for opt, want := range map[[2]int]int{
				{unix.IPPROTO_TCP, unix.TCP_NODELAY}: 1, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 42,
			} {
				if v, err := unix.GetsockoptInt(b.FD, opt[0], opt[1]); err != nil || v != want {
					t.Errorf("option %v: %d, %v; want %d", opt, v, err, want)
				}
			}
			remotes <- i.Remote
			fd, closed := b.Take()
			b.Reset() // does nothing any more
			netconn.RawClose(fd)
			closed()
			return true
		},
	})
	clients := queueUp(t, l, n)
	served := make(chan error, 1)
	go func() {
		served <- l.Serve(func(c *netconn.Conn, i Info) {
			whole.Add(1)
			remotes <- i.Remote
			_ = c.Close()
		})
	}()
	want := map[netip.AddrPort]bool{}
	for _, c := range clients {
		want[addrPort(c.LocalAddr())] = true
		if got, err := io.ReadAll(c); err != nil || len(got) > 0 {
			t.Errorf("%q, %v; want the end", got, err)
		}
	}
	eventually(t, "close", func() bool { return l.Connections() == 0 })
	l.Stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	within(t, "wait", l.Wait)
	for range n {
		a := <-remotes
		if !want[a] {
			t.Errorf("%v was served twice, or is nobody", a)
		}
		delete(want, a)
	}
	if bare.Load() == 0 || bare.Load()+whole.Load() != n || whole.Load() < refusedBare.Load() {
		t.Errorf("%d bare and %d whole ones, %d of them not wanted bare", bare.Load(), whole.Load(), refusedBare.Load())
	}
}

// TestBareLimits: a ceiling is one for both ways, and who is over it is refused.
func TestBareLimits(t *testing.T) {
	const n, most = 40, 10
	l, err := Listen(Options{Name: "test", Bind: []string{"127.0.0.1:0"}, MaxConnections: most, Mute: true})
	if err != nil {
		t.Fatal(err)
	}
	var admitted atomic.Int32
	held := make(chan netconn.Bare, n)
	l.ServeBare(Bare{
		Wanted: func() bool { return true },
		Serve:  func(b netconn.Bare, _ *Info) bool { admitted.Add(1); held <- b; return true },
	})
	clients := queueUp(t, l, n)
	served := make(chan error, 1)
	go func() {
		served <- l.Serve(func(c *netconn.Conn, _ Info) {
			admitted.Add(1)
			fd, closed, err := c.Detach(nil)
			if err != nil {
				t.Error(err)
				return
			}
			held <- netconn.Bare{FD: fd, Closed: closed}
		})
	}()
	eventually(t, "refusals", func() bool { return l.Refused(ListenerLimit) == n-most && admitted.Load() == most })
	if got := l.Connections(); got != most {
		t.Errorf("%d connections", got)
	}
	for range most {
		b := <-held
		b.Reset()
	}
	for _, c := range clients {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a client reads something")
		}
	}
	if got := l.Connections(); got != 0 {
		t.Errorf("%d connections at the end", got)
	}
	l.Stop()
	<-served
	within(t, "wait", l.Wait)
}

// TestBarePanics: a handler that panics takes no other connection along.
func TestBarePanics(t *testing.T) {
	var panics, calls, bare atomic.Int32
	fds := make(chan int, 8)
	l, err := Listen(Options{Name: "test", Bind: []string{"127.0.0.1:0"}, OnPanic: func(any, []byte) { panics.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	l.ServeBare(Bare{
		Wanted: func() bool { return true },
		Serve: func(b netconn.Bare, _ *Info) bool {
			fd, closed := b.Take()
			fds <- fd
			closed()
			calls.Add(1)
			if bare.Add(1) == 1 {
				panic("the first")
			}
			return true
		},
	})
	queueUp(t, l, 4)
	served := make(chan error, 1)
	go func() { served <- l.Serve(func(c *netconn.Conn, _ Info) { calls.Add(1); _ = c.Close() }) }()
	eventually(t, "all served", func() bool { return calls.Load() == 4 && panics.Load() == 1 })
	l.Stop()
	<-served
	within(t, "wait", l.Wait)
	close(fds)
	for fd := range fds {
		netconn.RawClose(fd)
	}
}

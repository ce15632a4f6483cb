// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// borrower watches sockets as l4.Relay does, by a goroutine for each.
type borrower struct {
	fail  error // what Watch returns
	open  atomic.Int32
	times atomic.Int32
	calls atomic.Int32
}

func (w *borrower) watch(fd int, ready func(on any, pass func())) (stop func(), err error) {
	if w.fail != nil {
		return nil, w.fail
	}
	w.open.Add(1)
	w.times.Add(1)
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for more := true; more && !over.Load(); {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 5); n < 1 {
				continue
			}
			w.calls.Add(1)
			more = false
			ready(w, func() { more = true })
		}
	})
	return func() {
		over.Store(true)
		running.Wait()
		w.open.Add(-1)
	}, nil
}

// lender is a listener that lends its socket.
type lender struct {
	t       *testing.T
	l       *Listener
	sockets *Sockets
	w       borrower
	whole   atomic.Bool // connections are not wanted bare
	lent    atomic.Int32
	own     atomic.Int32
	held    chan netconn.Bare // nil: they are closed
	served  chan error
}

func lending(t *testing.T, opt Options, edit func(*lender)) *lender {
	t.Helper()
	r := &lender{t: t, sockets: NewSockets(), served: make(chan error, 1)}
	opt.Name, opt.Bind, opt.Sockets = "test", []string{"127.0.0.1:0"}, r.sockets
	l, err := Listen(opt)
	if err != nil {
		t.Fatal(err)
	}
	r.l = l
	if edit != nil {
		edit(r)
	}
	l.ServeBare(Bare{
		Wanted: func() bool { return !r.whole.Load() },
		Serve: func(b netconn.Bare, _ *Info) bool {
			if b.Loop == any(&r.w) {
				r.lent.Add(1)
			}
			r.take(b)
			return true
		},
		Watch: r.w.watch,
	})
	go func() {
		r.served <- l.Serve(func(c *netconn.Conn, _ Info) {
			r.own.Add(1)
			fd, closed, err := c.Detach(nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.take(netconn.Bare{FD: fd, Closed: closed})
		})
	}()
	t.Cleanup(func() {
		l.Stop()
		if err := <-r.served; err != nil {
			t.Error(err)
		}
		within(t, "wait", l.Wait)
		if n := r.w.open.Load(); n != 0 {
			t.Errorf("%d still watch", n)
		}
	})
	return r
}

func (r *lender) take(b netconn.Bare) {
	if r.held != nil {
		r.held <- b
		return
	}
	fd, closed := b.Take()
	netconn.RawClose(fd)
	closed()
}

// visit connects and expects to be served, which ends the connection.
func (r *lender) visit() {
	r.t.Helper()
	c := dial(r.t, r.l)
	if got, err := io.ReadAll(c); err != nil || len(got) > 0 {
		r.t.Errorf("%q, %v; want the end", got, err)
	}
}

// lend has the socket lent.
func (r *lender) lend() {
	r.t.Helper()
	for r.w.open.Load() == 0 {
		r.visit()
	}
}

// TestLend: a socket whose connections come bare is lent after the first one. While a
// successor has it nobody accepts here, and afterwards as before; who comes while it is
// taken back is served, and once.
func TestLend(t *testing.T) {
	r := lending(t, Options{}, nil)
	r.lend()
	before := r.lent.Load()
	for range 20 {
		r.visit()
	}
	if n := r.lent.Load() - before; n != 20 {
		t.Errorf("%d of 20 came by who has the socket", n)
	}
	hand, err := r.sockets.Hand()
	if err != nil || len(hand) != 1 {
		t.Fatal(hand, err)
	}
	defer hand[0].File.Close()
	r.sockets.Yield()
	eventually(t, "taken back", func() bool { return r.w.open.Load() == 0 })
	calls, own, lent := r.w.calls.Load(), r.own.Load(), r.lent.Load()
	c := dial(t, r.l)
	if !pending(r.l.binds[0].sockets[0].o.ln) {
		t.Error("nobody waits")
	}
	r.sockets.Return()
	if got, err := io.ReadAll(c); err != nil || len(got) > 0 {
		t.Errorf("after the return: %q, %v", got, err)
	}
	r.visit()
	if n := r.own.Load() + r.lent.Load() - own - lent; n != 2 || r.w.calls.Load() < calls {
		t.Errorf("%d were served of 2 after the return", n)
	}
	r.lend()
}

// TestLendTakenBack: connections that are not to come bare, and a server that takes the
// others' place, have the accept loop go on, and it lends again.
func TestLendTakenBack(t *testing.T) {
	r := lending(t, Options{}, nil)
	for range 3 {
		r.lend()
		r.whole.Store(true)
		before := r.own.Load()
		for range 5 {
			r.visit()
		}
		if n := r.own.Load() - before; n != 5 || r.w.open.Load() != 0 {
			t.Errorf("%d of 5 came whole, %d watch", n, r.w.open.Load())
		}
		r.whole.Store(false)
	}
	r.lend()
	r.sockets.mu.Lock()
	k := r.l.binds[0].sockets[0].o.hold()
	r.sockets.mu.Unlock()
	defer k.Close() //nolint:errcheck // a second hold
	k.serve(greeter{})
	c := dial(t, r.l)
	if got := answeredBy(t, c); got != "old" {
		t.Errorf("answered by %q", got)
	}
}

// TestLendCeiling: at a ceiling the accept loop has its socket back and rests; when
// there is room again everybody who waits is served.
func TestLendCeiling(t *testing.T) {
	const most = 5
	r := lending(t, Options{MaxConnections: most, Mute: true}, func(r *lender) { r.held = make(chan netconn.Bare, 2*batch) })
	const n = batch + 2*most
	for range n {
		c, err := net.Dial("tcp", r.l.Addrs()[0].String())
		if err != nil {
			continue // reset at once: it has been refused
		}
		defer c.Close()
	}
	eventually(t, "refusals", func() bool { return r.l.Refused(ListenerLimit) == n-most })
	eventually(t, "taken back", func() bool { return r.w.times.Load() > 1 || r.w.open.Load() == 0 })
	for range most {
		b := <-r.held
		b.Reset()
	}
	before := r.l.Refused(ListenerLimit)
	last := dial(t, r.l)
	b := <-r.held
	if fd, closed := b.Take(); fd >= 0 {
		netconn.RawClose(fd)
		closed()
	}
	if _, err := io.ReadAll(last); err != nil {
		t.Error(err)
	}
	if n := r.l.Refused(ListenerLimit); n != before {
		t.Errorf("%d were refused although there was room", n-before)
	}
}

// TestLendFails: where nobody can watch the accept loop does everything itself.
func TestLendFails(t *testing.T) {
	r := lending(t, Options{}, func(r *lender) { r.w.fail = errors.New("no epoll instance") })
	for range 5 {
		r.visit()
	}
	if r.lent.Load() != 0 || r.w.open.Load() != 0 {
		t.Error("it was lent")
	}
}

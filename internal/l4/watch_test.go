// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// watched is a listening socket of the kernel's only, to be watched.
func watched(t *testing.T) (fd int, addr string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 64); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: own.(*unix.SockaddrInet4).Port}).String()
}

// TestWatch: the loops look after a socket in turn, one at a time; one that does not
// pass it on ends that, and so does stop, which waits for who is there. A panic is
// told, and costs only itself.
func TestWatch(t *testing.T) {
	bugs := make(chan any, 8)
	r := NewRelay(func(v any) { bugs <- v })
	defer r.Close()
	fd, addr := watched(t)
	type visit struct{ on any }
	visits := make(chan visit, 64)
	var pass, panics atomic.Bool
	pass.Store(true)
	ready := func(on any, next func()) {
		nfd, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == nil {
			_ = unix.Close(nfd)
		}
		if panics.Load() {
			panic("a broken server")
		}
		if pass.Load() {
			next()
		}
		if err == nil {
			visits <- visit{on}
		}
	}
	knock := func() {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	stop, err := r.Watch(fd, ready)
	if err != nil {
		t.Fatal(err)
	}
	by := map[any]int{}
	const n = 40
	for range n {
		knock()
		by[(<-visits).on]++
	}
	if most := runtime.GOMAXPROCS(0); len(by) != most {
		t.Errorf("%d loops of %d have looked: %v", len(by), most, by)
	}
	for l, k := range by {
		if k < n/len(by)/2 {
			t.Errorf("%v has looked %d times of %d", l, k, n)
		}
	}
	pass.Store(false)
	knock()
	<-visits
	knock()
	quiet := func(why string) {
		t.Helper()
		for _, l := range *r.ready.Load() { // a turn of each
			p, _, _ := joined(t, l, &pair{owner: quietOwner{}, slot: -1, pos: -1})
			l.end(p)
		}
		select {
		case <-visits:
			t.Error(why)
		default:
		}
	}
	quiet("somebody looked who was not to")
	stop()
	pass.Store(true)
	if stop, err = r.Watch(fd, ready); err != nil { // who waits already is found
		t.Fatal(err)
	}
	<-visits
	stop()
	stop()
	knock()
	quiet("somebody looked after the end")

	panics.Store(true)
	if stop, err = r.Watch(fd, ready); err != nil {
		t.Fatal(err)
	}
	<-bugs
	stop()
	panics.Store(false)
	if stop, err = r.Watch(fd, ready); err != nil {
		t.Fatal(err)
	}
	knock()
	<-visits
	stop()
}

// TestWatchStop: stop returns when nobody is there any more, and nobody comes then.
func TestWatchStop(t *testing.T) {
	r := NewRelay(func(any) {})
	defer r.Close()
	fd, addr := watched(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var in atomic.Int32
	once := sync.OnceFunc(func() { close(inside) })
	stop, err := r.Watch(fd, func(_ any, next func()) {
		in.Add(1)
		next() // the queue is as it was: the next one comes at once
		once()
		<-leave
		in.Add(-1)
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-inside
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
		t.Error("stop did not wait")
	default:
	}
	close(leave)
	<-stopped
	if n := in.Load(); n != 0 {
		t.Errorf("%d are still there", n)
	}
	r2 := NewRelay(func(any) {})
	r2.Close()
	if _, err := r2.Watch(fd, nil); err == nil {
		t.Error("a closed relay watches")
	}
}

// TestBeginsWhereAccepted: a session that a loop has accepted is moved by that loop.
func TestBeginsWhereAccepted(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, nil)
	all, err := r.relay.loops()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		for range 3 {
			o := opening{px: r.px, s: &Session{}, bare: netconn.Bare{Loop: l}}
			if err := o.chooseLoop(); err != nil || o.loop != l {
				t.Errorf("%v, %v", o.loop, err)
			}
		}
	}
}

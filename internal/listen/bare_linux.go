// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/netconn"
)

// Bare takes plain TCP connections as descriptors. The net package registers each
// connection with the runtime's poller, asks for its address and sets its options,
// which costs a third of what a short session costs in all.
type Bare struct {
	// Wanted reports that connections are to come by Serve. It must not wait.
	Wanted func() bool
	// Serve takes a connection over and does not wait: it is called from the accept
	// loop. False: it has not touched it, and it comes like any other. info is the
	// callee's. Several goroutines call it at once.
	Serve func(b netconn.Bare, info *Info) bool
	// Watch has others call ready when connections wait at a socket, see l4.Relay.Watch:
	// what they accept is served by them. nil: the accept loop does it.
	Watch func(fd int, ready func(on any, pass func())) (stop func(), err error)
}

// ServeBare has connections without TLS and without PROXY headers come as
// descriptors, where many wait at once. Call it before Serve.
func (l *Listener) ServeBare(b Bare) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bare = b
}

// bareServer is a server that takes descriptors.
type bareServer interface {
	server
	wantsBare() bool
	// acceptedBare is called with what was accepted: on is by whom, see netconn.Bare.Loop;
	// nil: by the accept loop, which may be made to rest.
	acceptedBare(o *open, all []arrival, t *turn, on any)
	// watch is Bare.Watch; nil: the socket cannot be lent.
	watch() func(fd int, ready func(on any, pass func())) (stop func(), err error)
}

// arrival is a descriptor that was accepted.
type arrival struct {
	fd            int
	local, remote netip.AddrPort
	counted       bool // by client
}

const (
	// bareMost is how many are accepted before the loop looks up.
	bareMost = 32
	// bareShare is how many one goroutine serves in a row where more wait.
	bareShare = 8
)

// acceptBare takes out of the queue what waits there besides the connection that
// was accepted last. It never waits, and leaves errors for Accept to meet.
// It reports that nothing waits any more.
func (o *open) acceptBare() bool {
	if !o.isTCP() {
		return false
	}
	var all [bareMost]arrival
	own := o.own()
	for !o.halted.Load() {
		srv, ok := o.now.Load().srv.(bareServer)
		if !ok || !srv.wantsBare() {
			return false
		}
		n, errno := 0, syscall.Errno(0)
		err := control(o.ln, func(fd int) error {
			n, errno = take(fd, own, all[:])
			return nil
		})
		if n > 0 {
			o.rounds.Add(uint64(n))
			o.deliverBare(all[:n], nil)
		}
		if err != nil || errno != 0 {
			return errno == unix.EAGAIN
		}
	}
	return false
}

// own is the address of all connections; invalid: each has its own.
func (o *open) own() netip.AddrPort {
	own := addrPort(o.addr)
	if o.inherited || own.Addr().IsUnspecified() {
		return netip.AddrPort{}
	}
	return own
}

// take accepts what waits, at most len(all). errno is why it took no more.
func take(fd int, own netip.AddrPort, all []arrival) (n int, errno syscall.Errno) {
	for ; n < len(all); n++ {
		if errno = accept4(fd, &all[n]); errno != 0 {
			return n, errno
		}
		if all[n].local = own; !own.IsValid() {
			all[n].local = netconn.RawLocal(all[n].fd)
		}
	}
	return n, 0
}

// deliverBare is deliver of descriptors.
func (o *open) deliverBare(all []arrival, on any) {
	o.delivery.RLock()
	t := o.now.Load()
	if srv, ok := t.srv.(bareServer); ok {
		srv.acceptedBare(o, all, t, on)
		o.delivery.RUnlock()
		return
	}
	o.delivery.RUnlock()
	for _, a := range all {
		if nc, err := o.adopt(a.fd); err == nil {
			o.deliver(nc)
		} else {
			t.srv.failed(err)
		}
	}
}

// adopt makes a connection of the net package of a descriptor, which it takes.
func (o *open) adopt(fd int) (net.Conn, error) {
	nc, err := adopt(fd)
	if err == nil {
		o.probe(nc, true)
	}
	return nc, err
}

func adopt(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close() //nolint:errcheck // the connection has a duplicate
	return net.FileConn(f)
}

// accept4 is unix.Accept4, without the memory that an address takes.
func accept4(fd int, a *arrival) syscall.Errno {
	for {
		var sa unix.RawSockaddrAny
		size := uint32(unix.SizeofSockaddrAny)
		n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			*a = arrival{fd: int(n), remote: netconn.RawAddrPort(&sa)}
			return 0
		case unix.EINTR, unix.ECONNABORTED: // the client left while it waited
		default:
			return errno
		}
	}
}

func (d *door) wantsBare() bool {
	l := d.l
	return l.bare.Serve != nil && l.set.Load().bare() && l.bare.Wanted()
}

// bare reports that nothing is to be done with a connection before it is served.
func (s *settings) bare() bool { return s.certs == nil && s.opt.Proxy == nil }

func (d *door) watch() func(int, func(any, func())) (func(), error) { return d.l.bare.Watch }

// acceptedBare is accepted of descriptors.
func (d *door) acceptedBare(o *open, all []arrival, t *turn, on any) {
	l, set := d.l, d.l.set.Load()
	if !set.bare() { // it has just become so
		for _, a := range all {
			if nc, err := o.adopt(a.fd); err == nil {
				d.accepted(nc, t)
			} else {
				d.failed(err)
			}
		}
		return
	}
	in := all[:0]
	for _, a := range all {
		why, counted, ok := l.admit(set, a.fd, a.remote.Addr())
		if !ok {
			if nc, err := o.adopt(a.fd); err == nil {
				d.turnAway(set, nc, why)
			} else {
				d.failed(err)
			}
			continue
		}
		d.shut.Store(0)
		a.counted = counted
		in = append(in, a)
	}
	for on == nil && len(in) > bareShare {
		half := slices.Clone(in[len(in)/2:])
		in = in[:len(in)/2]
		// What is lost there is counted, and the loop, which meets the same, logs it.
		l.handlers.Go(func() { l.serveBare(o, set, half, nil, func(err error) { l.count(set, whyFailed(err)) }) })
	}
	l.serveBare(o, set, in, on, d.failed)
	switch {
	case d.shut.Load() < batch:
	case on != nil:
		o.takeBack() // it rests where the next one is refused
	default:
		d.shut.Store(0)
		l.rest(set, t)
	}
}

// serveBare serves connections that were admitted. lost is told why one could not be:
// making it whole takes a second descriptor for a moment.
func (l *Listener) serveBare(o *open, set *settings, all []arrival, on any, lost func(error)) {
	for i := range all {
		a := &all[i]
		client, counted := a.remote.Addr(), a.counted
		b := netconn.Bare{FD: a.fd, Loop: on, Adopt: o.adopt, Closed: func() { l.leave(set, client, counted) }}
		info := &Info{Listener: set.opt.Name, Local: a.local, Remote: a.remote}
		if l.tryBare(set, b, info) {
			continue
		}
		c, err := b.Conn()
		if err != nil {
			lost(err)
			continue
		}
		l.handlers.Go(func() { l.run(set, c, *info) })
	}
}

// tryBare offers a connection. One whose handler panics is lost with its
// descriptor: nobody can say whose that is by then.
func (l *Listener) tryBare(set *settings, b netconn.Bare, info *Info) (taken bool) {
	defer func() {
		if v := recover(); v != nil {
			taken = true
			l.panicked(set, v, debug.Stack())
		}
	}()
	return l.bare.Serve(b, info)
}

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemdPrefix begins a bind that is only ever inherited.
const systemdPrefix = "systemd:"

// Sockets are the listening sockets of the process, by the bind they were
// asked for: "127.0.0.1:80", ":8080", "unix:/x", "systemd:NAME". A socket
// outlives whoever serves it: it is open while anybody holds it, and moves
// from one holder to the next without a moment in which a client is refused.
// Sockets is safe for concurrent use. Make it with NewSockets.
type Sockets struct {
	keepPaths atomic.Bool

	mu      sync.Mutex
	all     []*open        // guarded by mu, in the order in which they came
	packets []*openPackets // guarded by mu: those for datagrams
	sorted  bool           // guarded by mu: what was inherited and not taken is closed
	yielded chan struct{}  // guarded by mu; nil: this process accepts; closed when that, or a socket's end, is to be looked at
}

// NewSockets returns an empty set.
func NewSockets() *Sockets { return &Sockets{} }

// Handed is a duplicate of a listening socket, for another process.
type Handed struct {
	Bind string
	File *os.File // the receiver's to close
}

// Take returns a hold on the socket of a bind: the one that is open or was
// inherited, whether its address was written in the same way or not, else a new
// one. With port 0 each Take that finds none unclaimed opens a new one.
func (s *Sockets) Take(bind string) (*Socket, error) { return s.take(bind, false) }

// TakePrivate is Take for the admin address: a socket file that it makes has
// mode 0600 from its first moment.
func (s *Sockets) TakePrivate(bind string) (*Socket, error) { return s.take(bind, true) }

func (s *Sockets) take(bind string, private bool) (*Socket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.find(bind); o != nil {
		if private && o.path != "" {
			if err := os.Chmod(o.path, 0o600); err != nil {
				return nil, fmt.Errorf("bind %s: %w", bind, err)
			}
		}
		return o.hold(), nil
	}
	if name, ok := strings.CutPrefix(bind, systemdPrefix); ok {
		return nil, notPassed(name)
	}
	o, err := s.open(bind, private)
	if err != nil {
		return nil, err
	}
	s.all = append(s.all, o)
	return o.hold(), nil
}

// takeEvery is Take, for listeners: a name of systemd may stand for several
// sockets.
func (s *Sockets) takeEvery(bind string) ([]*Socket, error) {
	if strings.HasPrefix(bind, systemdPrefix) {
		s.mu.Lock()
		var out []*Socket
		for _, o := range s.all {
			if o.bind == bind {
				out = append(out, o.hold())
			}
		}
		s.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
	}
	k, err := s.Take(bind)
	if err != nil {
		return nil, err
	}
	return []*Socket{k}, nil
}

// find returns the open socket of a bind. Called under mu.
func (s *Sockets) find(bind string) *open {
	_, port, err := net.SplitHostPort(bind)
	anyPort := err == nil && port == "0" && !strings.HasPrefix(bind, "unix:")
	for _, o := range s.all {
		if o.bind == bind && !(anyPort && o.claimed) {
			return o
		}
	}
	if anyPort || err != nil {
		return nil
	}
	want, err := net.ResolveTCPAddr(network(bind), bind)
	if err != nil {
		return nil // opening it says why
	}
	for _, o := range s.all {
		if have, ok := o.addr.(*net.TCPAddr); ok && have.Port == want.Port && sameIP(have.IP, want.IP) {
			return o
		}
	}
	return nil
}

// sameIP compares addresses to bind; none written is the IPv6 wildcard, which
// takes in IPv4.
func sameIP(have, want net.IP) bool {
	if want == nil {
		want = net.IPv6unspecified
	}
	a, _ := netip.AddrFromSlice(have)
	b, _ := netip.AddrFromSlice(want)
	if a.Is4In6() || b.Is4In6() {
		a, b = a.Unmap(), b.Unmap()
	}
	return a == b
}

// Inherit adopts a listening socket from outside, under the bind that the
// configuration gives it. f is closed, whatever the outcome.
func (s *Sockets) Inherit(bind string, f *os.File) error {
	defer f.Close() //nolint:errcheck // the listener has a duplicate
	if dup, ok := packetSocket(f); ok {
		if err := s.inheritPackets(bind, dup); err != nil {
			return fmt.Errorf("inherit %s: %w", bind, err)
		}
		return nil
	}
	ln, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("inherit %s: the descriptor is no listening socket: %w", bind, err)
	}
	o := &open{set: s, bind: bind, addr: ln.Addr(), inherited: true, attend: make(chan struct{}, 1)}
	o.idle.Store(int64(DefaultKeepAlive))
	switch ln := ln.(type) {
	case *net.TCPListener:
		o.ln = ln
		if strings.HasPrefix(bind, "unix:") {
			err = errors.New("it is a TCP socket")
			break
		}
		err = inherit(ln, DefaultKeepAlive)
	case *net.UnixListener:
		ln.SetUnlinkOnClose(false)
		o.ln = ln
		path, ok := strings.CutPrefix(bind, "unix:")
		switch {
		case ok: // moved to its place, it still answers with its first name
			o.addr = &net.UnixAddr{Name: path, Net: "unix"}
			o.path = path
			o.file, _ = os.Lstat(path) // gone: there is nothing to remove later
		case !strings.HasPrefix(bind, systemdPrefix):
			err = errors.New("it is a unix socket")
		}
	default:
		err = errors.New("it is no stream socket")
	}
	if err == nil {
		err = accepting(o.ln)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("inherit %s: %w", bind, err), ln.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, o)
	return nil
}

// accepting refuses a socket on which nobody called listen.
func accepting(ln syscall.Conn) error {
	v := 0
	err := control(ln, func(fd int) (err error) {
		v, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		return err
	})
	if err == nil && v == 0 {
		err = errors.New("the socket is not listening")
	}
	return err
}

// Hand duplicates every socket that is held, for another process. The
// descriptors are closed on exec and share O_NONBLOCK with the live ones: pass
// them over a unix socket and do not make them blocking.
func (s *Sockets) Hand() (out []Handed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		for _, h := range out {
			_ = h.File.Close()
		}
		out = nil
		s.recallLocked() // nobody gets anything
	}()
	for _, o := range s.all {
		if o.holds == 0 {
			continue
		}
		err := control(o.ln, func(fd int) error {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err == nil {
				out = append(out, Handed{Bind: o.bind, File: os.NewFile(uintptr(dup), o.bind)})
			}
			return err
		})
		if err != nil {
			return out, fmt.Errorf("duplicate the socket of %s: %w", o.bind, err)
		}
		o.handed = true
	}
	return s.handPackets(out)
}

// Unclaimed closes the sockets that were inherited and that nobody took, and
// returns their binds. Until then one that is given back before it has served is
// not closed, and can be taken again.
func (s *Sockets) Unclaimed() []string { return s.unclaimed(false) }

// Decline is Unclaimed where whoever handed the sockets over serves them on: their
// socket files stay.
func (s *Sockets) Decline() []string { return s.unclaimed(true) }

func (s *Sockets) unclaimed(keepPath bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sorted = true
	var out []string
	for _, o := range slices.Clone(s.all) {
		if !o.claimed {
			if keepPath {
				o.path = ""
			}
			out = append(out, o.bind)
			_ = o.shut() // nobody knew of it
		}
	}
	return append(out, s.unclaimedPackets()...)
}

// KeepPaths makes closing leave socket files and what waits in accept queues
// alone from now on: a successor serves there.
func (s *Sockets) KeepPaths() { s.keepPaths.Store(true) }

// open makes a socket. Called under mu.
func (s *Sockets) open(bind string, private bool) (*open, error) {
	o := &open{set: s, bind: bind, attend: make(chan struct{}, 1)}
	o.idle.Store(int64(DefaultKeepAlive))
	path, isUnix := strings.CutPrefix(bind, "unix:")
	if isUnix && private && !strings.HasPrefix(path, "@") {
		ln, err := bindPrivate(path)
		if err != nil {
			return nil, fmt.Errorf("bind %s: %w", bind, err)
		}
		o.ln, o.addr = ln, &net.UnixAddr{Name: path, Net: "unix"}
	} else {
		ln, err := bindOne(context.Background(), bind, false)
		if errors.Is(err, syscall.EADDRINUSE) {
			s.overlapping(bind, func() { ln, err = bindOne(context.Background(), bind, true) })
		}
		if err != nil {
			return nil, err
		}
		o.ln, o.addr = ln, ln.Addr()
		if !isUnix {
			_ = control(ln, func(fd int) error { return reusePort(fd, false) }) // see overlapping
		}
	}
	if isUnix && !strings.HasPrefix(path, "@") {
		o.path = path
		o.file, _ = os.Lstat(path)
	}
	return o, nil
}

// control runs fn on the descriptor of a socket.
func control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = raw.Control(func(fd uintptr) { ferr = fn(int(fd)) })
	return errors.Join(err, ferr)
}

// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// packetsPrefix begins what a socket for datagrams is called in a handover: a port
// of UDP is another one than that of TCP.
const packetsPrefix = "udp:"

// PacketsBind is what the sockets for datagrams of a bind are checked by, beside those
// for connections.
func PacketsBind(bind string) string { return packetsPrefix + bind }

// Packets is a hold on the sockets for datagrams of one address. There are several
// of them, which the kernel spreads clients over by their addresses and ports, so
// that each can be read by one goroutine; with systemd's there is one. Nobody
// accepts: whoever has the hold reads and writes. A *Packets is one per hold; what
// it holds is told apart by Sockets.
type Packets struct {
	o    *openPackets
	once sync.Once
}

// openPackets are the open sockets of one address.
type openPackets struct {
	// Constant.
	set   *Sockets
	bind  string
	addr  *net.UDPAddr
	group *PacketSockets

	// Guarded by set.mu.
	holds     int
	claimed   bool // was held once
	handed    bool // a duplicate went out
	inherited bool
}

// PacketSockets are the sockets of one address, the same for all that hold them.
type PacketSockets struct {
	bind  string
	fds   []int
	bound netip.AddrPort
}

// Bind returns what they were asked for as.
func (p *PacketSockets) Bind() string { return p.bind }

// Descriptors returns the sockets; they do not block, and are not the caller's to
// close.
func (p *PacketSockets) Descriptors() []int { return p.fds }

// Bound returns where they are bound.
func (p *PacketSockets) Bound() netip.AddrPort { return p.bound }

// Sockets returns what is held.
func (k *Packets) Sockets() *PacketSockets { return k.o.group }

// Addr returns where the sockets are bound.
func (k *Packets) Addr() net.Addr { return k.o.addr }

// Bind returns what they were asked for as.
func (k *Packets) Bind() string { return k.o.bind }

// Close gives the hold back; the last one closes the sockets. Further calls do
// nothing.
func (k *Packets) Close() {
	k.once.Do(func() {
		s := k.o.set
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.o.holds--; k.o.holds > 0 {
			return
		}
		if k.o.inherited && !s.sorted { // somebody failed before it served: they are there to be taken, as before
			k.o.claimed = false
			return
		}
		k.o.shut()
	})
}

// TakePackets is Take for datagrams. n is how many sockets there are to be where
// they are not open yet.
func (s *Sockets) TakePackets(bind string, n int) (*Packets, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.findPackets(bind)
	if o == nil {
		if name, ok := strings.CutPrefix(bind, systemdPrefix); ok {
			return nil, notPassed(name)
		}
		fds, err := s.bindPackets(bind, n)
		if err != nil {
			return nil, err
		}
		if o, err = newPackets(s, bind, fds); err != nil {
			return nil, err
		}
		s.packets = append(s.packets, o)
	}
	o.holds++
	o.claimed = true
	return &Packets{o: o}, nil
}

// newPackets describes sockets that are bound; on an error they are closed.
func newPackets(s *Sockets, bind string, fds []int) (*openPackets, error) {
	sa, err := unix.Getsockname(fds[0])
	a, ok := netip.AddrPort{}, false
	if err == nil {
		a, ok = packetAddr(sa)
	}
	if !ok {
		closeAll(fds)
		return nil, fmt.Errorf("bind %s: where the socket is bound is not known: %w", bind, err)
	}
	return &openPackets{set: s, bind: bind, addr: net.UDPAddrFromAddrPort(a), group: &PacketSockets{bind: bind, fds: fds, bound: a}}, nil
}

func packetAddr(sa unix.Sockaddr) (netip.AddrPort, bool) {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), true
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a = a.WithZone(i.Name)
			}
		}
		return netip.AddrPortFrom(a, uint16(sa.Port)), true
	}
	return netip.AddrPort{}, false
}

// findPackets returns the open sockets of a bind. Called under mu.
func (s *Sockets) findPackets(bind string) *openPackets {
	_, port, err := net.SplitHostPort(bind)
	anyPort := err == nil && port == "0"
	for _, o := range s.packets {
		if o.bind == bind && !(anyPort && o.claimed) {
			return o
		}
	}
	if anyPort || err != nil {
		return nil
	}
	want, err := net.ResolveUDPAddr(packetNetwork(bind), bind)
	if err != nil {
		return nil // opening it says why
	}
	for _, o := range s.packets {
		if o.addr.Port == want.Port && sameIP(o.addr.IP, want.IP) && o.addr.Zone == want.Zone {
			return o
		}
	}
	return nil
}

func packetNetwork(bind string) string { return "udp" + strings.TrimPrefix(network(bind), "tcp") }

// checkPackets is Check for TakePackets.
func (s *Sockets) checkPackets(bind string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.findPackets(bind) != nil {
		return nil
	}
	if name, ok := strings.CutPrefix(bind, systemdPrefix); ok {
		return notPassed(name)
	}
	fds, err := s.bindPackets(bind, 1)
	closeAll(fds)
	return err
}

// checkBindPackets is CheckBind for datagrams.
func checkBindPackets(where string) error {
	if strings.HasPrefix(where, systemdPrefix) {
		return nil
	}
	host, _, err := net.SplitHostPort(where)
	if err != nil {
		return fmt.Errorf("bind %s: %w", where, err)
	}
	fds, err := NewSockets().bindPackets(net.JoinHostPort(host, "0"), 1)
	closeAll(fds)
	if err != nil {
		return fmt.Errorf("bind %s: %w", where, err)
	}
	return nil
}

// shut closes the sockets. Called under set.mu.
func (o *openPackets) shut() {
	closeAll(o.group.fds)
	o.set.packets = slices.DeleteFunc(o.set.packets, func(p *openPackets) bool { return p == o })
}

// inheritPackets adopts a socket for datagrams. One bind may have several, which
// come one after the other. The descriptor is the set's from then on.
func (s *Sockets) inheritPackets(bind string, fd int) error {
	bind = strings.TrimPrefix(bind, packetsPrefix)
	if err := unix.SetNonblock(fd, true); err != nil {
		closeAll([]int{fd})
		return err
	}
	o, err := newPackets(s, bind, []int{fd})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, have := range s.packets {
		if have.inherited && have.bind == bind && have.group.bound == o.group.bound {
			have.group.fds = append(have.group.fds, fd)
			return nil
		}
	}
	o.inherited = true
	s.packets = append(s.packets, o)
	return nil
}

// handPackets appends duplicates of the sockets for datagrams that are held. Called
// under mu.
func (s *Sockets) handPackets(out []Handed) ([]Handed, error) {
	for _, o := range s.packets {
		if o.holds == 0 {
			continue
		}
		for _, fd := range o.group.fds {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return out, fmt.Errorf("duplicate the socket of %s: %w", o.bind, err)
			}
			out = append(out, Handed{Bind: packetsPrefix + o.bind, File: os.NewFile(uintptr(dup), o.bind)})
		}
		o.handed = true
	}
	return out, nil
}

// unclaimedPackets closes what was inherited and nobody took. Called under mu.
func (s *Sockets) unclaimedPackets() (out []string) {
	for _, o := range slices.Clone(s.packets) {
		if !o.claimed {
			out = append(out, packetsPrefix+o.bind)
			o.shut()
		}
	}
	return out
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing can be done, and nothing depends on it
	}
}

// PacketServer reads and writes the sockets of a listener for datagrams.
type PacketServer interface {
	// Open begins to serve sockets; whoever served them before has been told to leave
	// them, or is told soon.
	Open(p *PacketSockets) error
	// Close takes no new flows from them and returns; done is called, from any
	// goroutine, when they are not used any more.
	Close(p *PacketSockets, done func())
	// Stop is called when the last of them is closed for new flows.
	Stop()
}

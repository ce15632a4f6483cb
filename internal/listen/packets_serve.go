// SPDX-License-Identifier: Apache-2.0

package listen

import "net/netip"

// ServePackets is Serve for a listener with Options.Packets: it returns nil after
// Stop; flows go on. Call it once.
func (l *Listener) ServePackets(srv PacketServer) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return nil
	}
	l.packets = srv
	var err error
	for _, b := range l.binds {
		if err == nil {
			err = srv.Open(b.packets.Sockets())
		}
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	<-l.stop
	srv.Stop()
	return nil
}

// PacketSockets returns the sockets of a listener for datagrams.
func (l *Listener) PacketSockets() (out []*PacketSockets) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.binds {
		if b.packets != nil {
			out = append(out, b.packets.Sockets())
		}
	}
	return out
}

// PacketsLost returns how many datagrams the kernel has dropped as the queue of their
// socket was full, ever.
func (l *Listener) PacketsLost() (n uint64) {
	for _, p := range l.PacketSockets() {
		for _, fd := range p.fds {
			n += uint64(socketDrops(fd))
		}
	}
	return n
}

// leavePackets gives up the sockets of a bind. Called under mu.
func (l *Listener) leavePackets(k *Packets) {
	if l.packets == nil {
		k.Close()
		return
	}
	l.handlers.Add(1)
	l.packets.Close(k.Sockets(), func() {
		k.Close()
		l.handlers.Done()
	})
}

// Place is what EnterFlow took, for LeaveFlow.
type Place struct {
	Of      any // a pointer, so that it is not copied
	Counted bool
}

// EnterFlow takes a place for a flow of datagrams, as one is taken for a connection,
// or says why there is none. A listener without a ceiling of its own gets none as long
// as the flows of all listeners together are half of what the process may have: they
// cost a sender nothing, and connections must stay possible.
func (l *Listener) EnterFlow(client netip.Addr) (p Place, why Refusal, ok bool) {
	set := l.set.Load()
	if set.opt.Short != nil && set.opt.Short() {
		return p, NoMemory, false
	}
	if !set.opt.Gate.enterFlow(set.opt.MaxConnections <= 0) {
		return p, ProcessLimit, false
	}
	if why, p.Counted, ok = l.enter(set, client); !ok {
		set.opt.Gate.leaveFlow()
	}
	p.Of = set
	return p, why, ok
}

// LeaveFlow gives a place back.
func (l *Listener) LeaveFlow(client netip.Addr, p Place) {
	set, ok := p.Of.(*settings)
	if !ok {
		set = l.set.Load()
	}
	set.opt.Gate.leaveFlow()
	l.leave(set, client, p.Counted)
}

// RefuseFlow counts a flow of a client that got no place; one in a while is logged.
func (l *Listener) RefuseFlow(client netip.AddrPort, why Refusal) {
	set := l.set.Load()
	l.note(set, why, "flow refused at a ceiling", "client", client, "open", l.Connections(), "process", set.opt.Gate.Open())
}

// EvictFlow says that a flow of a client was ended to make room; one in a while is
// logged.
func (l *Listener) EvictFlow(client netip.AddrPort) {
	total := l.evicted.Add(1)
	if set := l.set.Load(); l.saidEvicted.now() {
		set.opt.Logger.Warn("flow ended to make room for others", "listener", set.opt.Name, "total", total, "client", client, "open", l.Connections(), "process", set.opt.Gate.Open())
	}
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
)

// port is one socket that clients send to, as its loop sees it. It belongs to the
// goroutine of the loop once it is added.
type port struct {
	// Constant.
	loop  *flowLoop
	group *group
	fd    int
	six   bool // of IPv6
	wild  bool // has more than one address: each datagram says which
	extra bool // something comes with datagrams

	slot    int32
	own     *Flows // who takes flows from it; nil: nobody any more
	leaving []leaving
	table   table
	cut     bool // what is sent may be cut by the kernel (UDP_SEGMENT)
	again   bool // on loop.againPorts
	given   bool // another process reads it
}

// leaving is somebody who takes no more flows from a port and waits for those it
// has.
type leaving struct {
	own  *Flows
	left int
	done func()
}

// readPort reads what clients have sent.
func (l *flowLoop) readPort(p *port) {
	n, errno := l.up.receive(p.fd, 0, batch, true)
	if errno != 0 {
		return // EAGAIN; an unconnected socket has no errors of its own
	}
	for i := 0; i < n; {
		i = l.readRun(p, i, n)
	}
	if n == batch {
		l.later(p)
	}
}

// later has a port read in the next turn.
func (l *flowLoop) later(p *port) {
	if !p.again {
		p.again = true
		l.againPorts = append(l.againPorts, p)
	}
}

// readRun passes on the datagrams of one flow that came one after the other, and
// returns which message is next.
func (l *flowLoop) readRun(p *port, i, n int) int {
	in := l.up
	var k flowKey
	var ok bool
	if k.client, k.rest, ok = in.from(i); !ok {
		return i + 1
	}
	size := 0
	if p.extra {
		k.local, size = in.extras(i)
	}
	hash := p.table.seed.hash(&k)
	f := p.table.find(&k, hash)
	if in.truncated(i) {
		l.dropped(p, f, 1, dropTruncated)
		return i + 1
	}
	l.pieces[0] = piece(in.data(i))
	next := i + 1
	count := 1
	if size <= 0 || size >= int(in.msgs[i].n) {
		size = 0
		for next < n && in.names[next] == in.names[i] && !in.truncated(next) {
			if p.extra {
				if local, s := in.extras(next); local != k.local || s > 0 && s < int(in.msgs[next].n) {
					break
				}
			}
			l.pieces[count] = piece(in.data(next))
			count++
			next++
		}
	}
	if f == nil {
		if f = l.open(p, &k, hash); f == nil {
			if l.mayHold() {
				l.hold(p, &k, l.pieces[:count], size)
			}
			return next
		}
	}
	l.pass(f, l.pieces[:count], size)
	return next
}

func piece(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, int(v.Len)) }

// pass sends datagrams to a flow's backend: pieces of one datagram each, or one piece
// of several that are size long but for the last.
func (l *flowLoop) pass(f *Flow, pieces []unix.Iovec, size int) {
	f.touch(l.now)
	if f.in == &f.shelf.answered && f.settles(l.now, l.settle) {
		f.loosen(-1)
		f.drop()
		f.shelf.settled.push(f)
	}
	f.asking = true
	if size > 0 {
		if l.whole(f, pieces[0], size) {
			return
		}
		l.apart(f, pieces[0], size)
		return
	}
	for len(pieces) > 0 {
		n, errno := l.push(f, pieces)
		f.count(pieces[:n])
		if pieces = pieces[n:]; errno == 0 {
			continue
		}
		if f = l.refusedSend(f, errno, pieces); f == nil {
			return
		}
		if errno == unix.EMSGSIZE {
			pieces = pieces[1:]
		}
	}
}

// whole sends what the kernel has put together as it is.
func (l *flowLoop) whole(f *Flow, v unix.Iovec, size int) bool {
	if !f.cut || int(v.Len) > segmentedMost {
		return false
	}
	one := [1]unix.Iovec{v}
	if errno := l.fwd.cut(f.fd, one[:], size); errno != 0 {
		f.uncut(errno)
		return false
	}
	f.counted((int(v.Len)+size-1)/size, int(v.Len))
	return true
}

// apart sends it as datagrams.
func (l *flowLoop) apart(f *Flow, v unix.Iovec, size int) {
	b := bytesOf(&v)
	for len(b) > 0 {
		var all [batch]unix.Iovec
		n := 0
		for ; n < batch && len(b) > 0; n++ {
			part := min(size, len(b))
			all[n], b = piece(b[:part]), b[part:]
		}
		if l.pass(f, all[:n], 0); f.slot < 0 {
			return // what is left would begin another flow in its midst
		}
	}
}

// push sends some pieces, and returns how many.
func (l *flowLoop) push(f *Flow, pieces []unix.Iovec) (int, syscall.Errno) {
	if len(pieces) == 1 {
		if errno := l.fwd.plain(f.fd, bytesOf(&pieces[0])); errno != 0 {
			return 0, errno
		}
		return 1, 0
	}
	if f.cut {
		if n, size := alike(pieces); n > 1 {
			errno := l.fwd.cut(f.fd, pieces[:n], size)
			if errno == 0 {
				return n, 0
			}
			if !f.uncut(errno) {
				return 0, errno
			}
		}
	}
	return l.fwd.each(f.fd, pieces)
}

// alike returns how many pieces can be sent with one call that cuts them: of one
// size, the last may be shorter.
func alike(pieces []unix.Iovec) (n, size int) {
	size = int(pieces[0].Len)
	if size == 0 || size > segmentedMost {
		return 1, 0
	}
	total := 0
	for n < min(len(pieces), segments) {
		s := int(pieces[n].Len)
		if s == 0 || s > size || total+s > segmentedMost {
			break
		}
		total += s
		if n++; s < size {
			break
		}
	}
	return n, size
}

// refusedSend judges a send to a backend that failed. It returns the flow to go on
// with, another one perhaps; nil: the datagrams are lost.
func (l *flowLoop) refusedSend(f *Flow, errno syscall.Errno, rest []unix.Iovec) *Flow {
	p, key, hash := f.port, f.key, f.hash
	switch errno {
	case unix.EMSGSIZE:
		l.dropped(p, f, 1, dropTooBig)
		return f
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		l.dropped(p, f, len(rest), dropFull)
		return nil
	}
	if l.failed(f, errno) {
		return f
	}
	if f.answeredAfter == 0 {
		l.dropped(p, f, len(rest), dropUnreachable)
		return nil // what could be tried was
	}
	next := l.open(p, &key, hash)
	if next == nil && l.mayHold() {
		l.hold(p, &key, rest, 0)
	}
	return next
}

// drop is why a datagram went nowhere.
type drop uint8

const (
	dropTruncated   drop = iota // did not fit
	dropTooBig                  // larger than what can be sent
	dropFull                    // no room to send
	dropUnreachable             // refused, and there is no other backend
	dropRefused                 // of no flow, and a new one is not to be had
	drops
)

// dropped counts datagrams of a client, or for it, that went nowhere.
func (l *flowLoop) dropped(p *port, f *Flow, n int, why drop) {
	switch {
	case f != nil:
		f.own.drops[why].Add(uint64(n))
	case p.own != nil:
		p.own.drops[why].Add(uint64(n))
	}
}

// addPort begins to read from a socket.
func (l *flowLoop) addPort(p *port) error {
	slot, err := l.enter(p.fd, nil, p)
	if err != nil {
		return err
	}
	p.slot = slot
	l.ports = append(l.ports, p)
	return nil
}

// removePort ends reading from a socket.
func (l *flowLoop) removePort(p *port) {
	l.flush()
	_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, p.fd, nil)
	l.leave(p.slot)
	p.slot = -1
	l.ports = slices.DeleteFunc(l.ports, func(o *port) bool { return o == p })
	for _, w := range p.leaving {
		w.done()
	}
	p.leaving = nil
	p.group.left()
}

// leavePort ends taking flows for somebody; done is called when the last of its
// flows has ended.
func (l *flowLoop) leavePort(p *port, own *Flows, done func()) {
	if p.own == own {
		p.own = nil
	}
	if p.slot < 0 {
		done()
		return
	}
	w := leaving{own: own, done: done}
	for _, e := range p.table.entries {
		if e.f != nil && e.f.own == own {
			w.left++
		}
	}
	p.leaving = append(p.leaving, w)
	l.portLeft(p)
}

// portLeft tells those who wait whose last flow has ended.
func (l *flowLoop) portLeft(p *port) {
	if p.own == nil && p.table.n == 0 {
		l.removePort(p)
		return
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(w leaving) bool {
		if w.left == 0 {
			w.done()
		}
		return w.left == 0
	})
}

// refuse counts a flow that gets no backend. One in a second is logged.
func (l *flowLoop) refuse(own *Flows, rt *Route, client netip.AddrPort, reason message.Reason, detail string) {
	own.drops[dropRefused].Add(1)
	own.refuse(l.now, rt, client, reason, detail)
}

// newPort prepares a socket for a loop. What the kernel does not offer is done
// without.
func newPort(l *flowLoop, g *group, fd int) *port {
	b := g.of.Bound()
	p := &port{loop: l, group: g, fd: fd, six: familyOf(fd) == unix.AF_INET6, wild: b.Addr().IsUnspecified(), slot: -1}
	p.table.seed = seed{rand.Uint64(), rand.Uint64(), rand.Uint64()}
	if p.wild && p.six {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else if p.wild {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if !l.plain {
		p.cut = unix.SetsockoptInt(fd, solUDP, unix.UDP_GRO, 1) == nil
	}
	p.extra = p.wild || p.cut
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, portBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, portBuffer)
	}
	return p
}

// portBuffer is what may wait in the kernel for a loop, of each socket. Without
// CAP_NET_ADMIN it is net.core.rmem_max at most.
const portBuffer = 4 << 20

func familyOf(fd int) int {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return unix.AF_INET
	}
	return n
}

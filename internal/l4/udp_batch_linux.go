// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many datagrams one call receives or sends at most.
	batch = 64
	// datagram is as much as a datagram, or what the kernel has put together from
	// several (UDP_GRO), can hold.
	datagram = 64 << 10
	// segments and segmentedMost bound what one send is cut into by the kernel
	// (UDP_SEGMENT): its own bounds are 64 before Linux 6.9, and a datagram's size.
	segments      = 64
	segmentedMost = 64000
	// controlMost is the room for what comes with a datagram, or goes with it: where
	// it was sent to, and the size of segments.
	controlMost = 96
	solUDP      = 17 // SOL_UDP
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// inbox receives many datagrams with one call. It belongs to one goroutine and must
// not be moved.
type inbox struct {
	msgs    [batch]mmsghdr
	iovs    [batch]unix.Iovec
	names   [batch]unix.RawSockaddrInet6
	control [batch][controlMost]byte
	mem     []byte // batch times datagram; the kernel touches no more of it than it needs
}

func newInbox() *inbox {
	b := &inbox{mem: make([]byte, batch*datagram)}
	for i := range b.msgs {
		b.iovs[i].Base = &b.mem[i*datagram]
		b.iovs[i].SetLen(datagram)
		h := &b.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Control = &b.control[i][0]
	}
	return b
}

// data is what message i holds.
func (b *inbox) data(i int) []byte { return b.mem[i*datagram:][:b.msgs[i].n] }

// receive receives up to most datagrams from first on. named asks for who sent them.
func (b *inbox) receive(fd, first, most int, named bool) (int, syscall.Errno) {
	for i := first; i < first+most; i++ {
		h := &b.msgs[i].hdr
		if h.Namelen = 0; named {
			h.Namelen = unix.SizeofSockaddrInet6
		}
		h.SetControllen(controlMost)
		h.Flags = 0
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[first])), uintptr(most), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// truncated reports that a datagram did not fit.
func (b *inbox) truncated(i int) bool { return b.msgs[i].hdr.Flags&unix.MSG_TRUNC != 0 }

// from is who sent message i, as part of a key; ok is false for what is no address.
func (b *inbox) from(i int) (client [2]uint64, rest uint64, ok bool) {
	sa := &b.names[i]
	port := uint64(binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:]))
	switch sa.Family {
	case unix.AF_INET:
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return [2]uint64{0, 0xffff<<32 | uint64(binary.BigEndian.Uint32(four.Addr[:]))}, port, true
	case unix.AF_INET6:
		return [2]uint64{binary.BigEndian.Uint64(sa.Addr[:8]), binary.BigEndian.Uint64(sa.Addr[8:])}, port | uint64(sa.Scope_id)<<16, true
	}
	return client, 0, false
}

// extras reads what came with message i: where it was sent to, zero when that is not
// said, and the size of the datagrams that it was put together from, 0 for one.
func (b *inbox) extras(i int) (local [2]uint64, size int) {
	c := b.control[i][:min(int(b.msgs[i].hdr.Controllen), controlMost)]
	for len(c) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(c) {
			break
		}
		d := c[unix.CmsgLen(0):n]
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(d) >= unix.SizeofInet4Pktinfo:
			p := (*unix.Inet4Pktinfo)(unsafe.Pointer(&d[0]))
			to := p.Addr
			if to[0] >= 224 {
				to = p.Spec_dst // to many: one of ours stands for it
			}
			local = [2]uint64{0, 0xffff<<32 | uint64(binary.BigEndian.Uint32(to[:]))}
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(d) >= unix.SizeofInet6Pktinfo:
			if d[0] != 0xff { // to many: the kernel chooses
				local = [2]uint64{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
			}
		case h.Level == solUDP && h.Type == unix.UDP_GRO && len(d) >= 4:
			size = int(*(*int32)(unsafe.Pointer(&d[0])))
		}
		c = c[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(c)):]
	}
	return local, size
}

// outbox sends many datagrams with one call: answers to clients, all from one
// socket.
type outbox struct {
	msgs    [batch]mmsghdr
	iovs    [batch]unix.Iovec
	control [batch][controlMost]byte
	of      [batch]*Flow
	count   [batch]int // datagrams in it
	n, used int        // messages; iovs
}

// add appends a message to a flow's client: pieces of one size but for the last,
// which the kernel sends as datagrams of their own where there are several.
func (o *outbox) add(f *Flow, pieces []unix.Iovec, count, size int) {
	m := &o.msgs[o.n]
	iovs := o.iovs[o.used : o.used+copy(o.iovs[o.used:], pieces)]
	o.used += len(pieces)
	m.hdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&f.name)), Namelen: f.nameLen, Iov: &iovs[0]}
	m.hdr.SetIovlen(len(iovs))
	c := o.control[o.n][:0]
	if f.source {
		c = appendSource(c, f)
	}
	if count > 1 {
		c = appendSegment(c, size)
	}
	if len(c) > 0 {
		m.hdr.Control = &c[0]
		m.hdr.SetControllen(len(c))
	}
	o.of[o.n], o.count[o.n] = f, count
	o.n++
}

func (o *outbox) reset() {
	clear(o.of[:o.n])
	o.n, o.used = 0, 0
}

// bytes is how much message i is.
func (o *outbox) bytes(i int) (n int) {
	h := &o.msgs[i].hdr
	for _, v := range unsafe.Slice(h.Iov, int(h.Iovlen)) {
		n += int(v.Len)
	}
	return n
}

func (o *outbox) send(fd, first int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.msgs[first])), uintptr(o.n-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// appendSource appends the control message that sends from the address which the
// client has sent to.
func appendSource(c []byte, f *Flow) []byte {
	if f.key.local[0] == 0 && f.key.local[1]>>32 == 0xffff && f.name.Family == unix.AF_INET {
		c, d := appendControl(c, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		binary.BigEndian.PutUint32(d[4:8], uint32(f.key.local[1])) // ipi_spec_dst
		return c
	}
	c, d := appendControl(c, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	binary.BigEndian.PutUint64(d[:8], f.key.local[0])
	binary.BigEndian.PutUint64(d[8:16], f.key.local[1])
	return c
}

func appendSegment(c []byte, size int) []byte {
	c, d := appendControl(c, solUDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(d, uint16(size))
	return c
}

// appendControl appends a control message of so many bytes, which are zero, and
// returns them. There is room.
func appendControl(c []byte, level, kind, size int) (all, data []byte) {
	at, n := len(c), unix.CmsgSpace(size)
	c = c[:at+n]
	clear(c[at:])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[at]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(size))
	return c, c[at+unix.CmsgLen(0) : at+unix.CmsgLen(size)]
}

// forward sends datagrams to a flow's backend: one, several of one size that the
// kernel cuts apart, or several as they are.
type forward struct {
	msgs    [batch]mmsghdr
	control [controlMost]byte
	one     mmsghdr
	iov     [segments]unix.Iovec
}

// plain sends one datagram.
func (*forward) plain(fd int, p []byte) syscall.Errno {
	var at *byte
	if len(p) > 0 {
		at = &p[0]
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(at)), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return errno
}

// cut sends pieces that are cut into datagrams of the size by the kernel.
func (w *forward) cut(fd int, pieces []unix.Iovec, size int) syscall.Errno {
	copy(w.iov[:], pieces)
	w.one.hdr = unix.Msghdr{Iov: &w.iov[0]}
	w.one.hdr.SetIovlen(len(pieces))
	c := appendSegment(w.control[:0], size)
	w.one.hdr.Control = &c[0]
	w.one.hdr.SetControllen(len(c))
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&w.one.hdr)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return errno
}

// each sends every piece as a datagram and returns how many were sent.
func (w *forward) each(fd int, pieces []unix.Iovec) (int, syscall.Errno) {
	for i := range pieces {
		w.msgs[i].hdr = unix.Msghdr{Iov: &pieces[i]}
		w.msgs[i].hdr.SetIovlen(1)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&w.msgs)), uintptr(len(pieces)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// rawName is an address as the kernel takes it, for a socket of the family.
func rawName(a netip.AddrPort, zone uint32, six bool) (sa unix.RawSockaddrInet6, n uint32) {
	if !six {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		four.Family, four.Addr = unix.AF_INET, a.Addr().As4()
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&four.Port))[:], a.Port())
		return sa, unix.SizeofSockaddrInet4
	}
	sa.Family, sa.Addr, sa.Scope_id = unix.AF_INET6, a.Addr().As16(), zone
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:], a.Port())
	return sa, unix.SizeofSockaddrInet6
}

// bytesSlice are the pieces of a message.
func bytesSlice(h *unix.Msghdr) []unix.Iovec { return unsafe.Slice(h.Iov, int(h.Iovlen)) }

func sendOne(fd int, h *unix.Msghdr) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return errno
}

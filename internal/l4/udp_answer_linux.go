// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/pool"
)

// readFlow reads what a backend has sent.
func (l *flowLoop) readFlow(f *Flow) {
	if l.outPort != f.port {
		l.flush()
		l.outPort = f.port
	}
	for range flowTurns {
		if l.used > batch-flowBatch {
			l.flush()
		}
		n, errno := l.down.receive(f.fd, l.used, flowBatch, false)
		switch {
		case errno == unix.EAGAIN:
			f.unsure = false
			return
		case errno == unix.EMSGSIZE, errno == unix.EINTR:
			continue // the way to the backend takes less than was sent (ICMP): the kernel knows
		case errno != 0:
			l.failed(f, errno)
			return
		}
		if n > 0 {
			l.answer(f, l.used, n)
			l.used += n
		}
		if n < flowBatch && !f.unsure {
			return
		}
	}
	if !f.again {
		f.again = true
		l.again = append(l.again, f)
	}
}

const (
	// flowBatch is how many answers one call takes, and flowTurns how many calls are
	// made before it is another flow's turn.
	flowBatch = 16
	flowTurns = 8
)

// answer passes on what was received from a flow's backend.
func (l *flowLoop) answer(f *Flow, first, n int) {
	f.touch(l.now)
	f.asking = false
	if f.answeredAfter == 0 {
		l.answered(f)
	}
	used := 0
	for i := first; i < first+n; i++ {
		if l.down.truncated(i) {
			l.dropped(f.port, f, 1, dropTruncated)
			continue
		}
		l.parts[used] = piece(l.down.data(i))
		used++
	}
	for at := 0; at < used; {
		k, size := 1, 0
		if f.port.cut {
			k, size = alike(l.parts[at:used])
		}
		l.out.add(f, l.parts[at:at+k], k, size)
		at += k
	}
}

// answered tells the pool that the backend works.
func (l *flowLoop) answered(f *Flow) {
	f.kept = nil
	f.answeredAfter = max(l.now.Sub(f.began), 1)
	if f.in == &f.shelf.fresh {
		f.drop()
		f.shelf.answered.push(f)
	}
	f.lease.Report(pool.Outcome{
		Now: l.now, Kind: pool.Success, Sent: true, FirstByte: f.answeredAfter, Total: f.answeredAfter,
		Client: clientHash(address(f.key.client)),
	})
}

// flush sends the answers that wait.
func (l *flowLoop) flush() {
	p, o := l.outPort, &l.out
	for i := 0; i < o.n; {
		n, errno := o.send(p.fd, i)
		for k := i; k < i+n; k++ {
			f := o.of[k]
			f.sentBack(o.count[k], o.bytes(k))
		}
		i += n
		if errno == 0 {
			continue
		}
		f := o.of[i]
		switch {
		case errno == unix.EAGAIN && !l.waitedOut:
			l.waitedOut = true
			l.waitOut(p.fd)
			continue
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN, errno == unix.ENOBUFS:
			l.dropped(p, f, o.count[i], dropFull)
		case o.count[i] > 1:
			l.uncutOut(p, i, errno)
		case errno == unix.EMSGSIZE:
			l.dropped(p, f, 1, dropTooBig)
		default:
			l.dropped(p, f, 1, dropUnreachable)
		}
		i++
	}
	o.reset()
	l.used = 0
}

// waitOut waits a moment for room to send.
func (*flowLoop) waitOut(fd int) {
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(look[:], outMost)
	if errors.Is(err, unix.EINTR) {
		return
	}
}

// outMost is for how many milliseconds room to send is waited for: a loop has others
// to serve, and what comes too late is as good as lost.
const outMost = 2

// uncutOut sends what the kernel did not cut apart, datagram by datagram.
func (l *flowLoop) uncutOut(p *port, i int, errno syscall.Errno) {
	o := &l.out
	if errno == unix.EIO || errno == unix.EOPNOTSUPP {
		p.cut = false // the device cannot
	}
	m := &o.msgs[i]
	f := o.of[i]
	h := m.hdr
	c := o.control[i][:0]
	if f.source {
		c = appendSource(c, f)
	}
	for k := range int(h.Iovlen) {
		v := &bytesSlice(&h)[k]
		one := mmsghdr{hdr: unix.Msghdr{Name: h.Name, Namelen: h.Namelen, Iov: v}}
		one.hdr.SetIovlen(1)
		if len(c) > 0 {
			one.hdr.Control = &c[0]
			one.hdr.SetControllen(len(c))
		}
		if errno := sendOne(p.fd, &one.hdr); errno != 0 {
			l.dropped(p, f, 1, dropTooBig)
			continue
		}
		f.sentBack(1, int(v.Len))
	}
}

// sentBack counts answers that have gone to the client.
func (f *Flow) sentBack(grams, n int) {
	f.grams.out += int64(grams)
	f.bytes.out += int64(n)
	if f.seen != nil {
		f.seen.Out.Add(uint64(n))
		f.seen.DatagramsOut.Add(uint64(grams))
	}
}

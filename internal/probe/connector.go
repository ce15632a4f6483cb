// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// connector runs the probes that are a mere connection to an address, many at
// a time: one goroutine, and four system calls for most of them. A net.Dialer
// needs thirteen, and a goroutine that is scheduled several times, which at
// 10,000 backends is the larger part of what probes cost.
//
// A round starts what was asked for, looks once at what it started (a near
// backend has answered by then) and leaves the rest to an epoll. That one is
// waited for by the runtime's poller, so waiting holds no thread.
type connector struct {
	p     *Prober
	file  *os.File // over poll, for the runtime's poller
	poll  int      // epoll descriptor, non-blocking
	wait  func(func(uintptr) bool) error
	ports portRange
	over  chan struct{} // closed when the goroutine has ended

	jobs  []job // taken; the goroutine's own
	begun int   // of jobs
	asked []job // not yet started, counted in Prober.running; guarded by Prober.mu

	// The goroutine's own.
	slots  []flight
	free   []int32 // indexes of slots
	fresh  []int32 // started in this round
	looks  []unix.PollFd
	events [64]unix.EpollEvent
	ready  int   // of events
	spent  []int // descriptors to be closed
	ended  int   // probes that are over and still counted in Prober.running
	in4    unix.SockaddrInet4
	in6    unix.SockaddrInet6
}

// flight is a connection attempt under way.
type flight struct {
	job
	fd    int   // -1: the slot is free
	turn  int32 // counts the uses of the slot
	sent  balance.Instant
	start time.Time
}

// plain returns where a probe connects to, if the connector can do it.
func plain(t *Target) (to netip.AddrPort, ok bool) {
	if t.TLS != nil || t.HTTP != nil || t.GRPC != nil || t.Talk != nil || t.Proxy != 0 {
		return to, false
	}
	if to = t.Addr; !to.IsValid() {
		var err error
		if to, err = netip.ParseAddrPort(t.Address); err != nil {
			return to, false
		}
	}
	return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), to.Addr().Zone() == ""
}

// newConnector returns nil when there is no descriptor for one.
func newConnector(p *Prober) *connector {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else os.File does not ask the runtime's poller
		_ = unix.Close(fd)
		return nil
	}
	c := &connector{p: p, file: os.NewFile(uintptr(fd), "probes"), poll: fd, ports: localPorts(), over: make(chan struct{})}
	raw, err := c.file.SyscallConn()
	if err == nil {
		err = c.file.SetReadDeadline(time.Time{}) // fails where the runtime cannot wait for it
	}
	if err != nil {
		_ = c.file.Close()
		return nil
	}
	c.wait = raw.Read
	go c.run()
	return c
}

// addLocked asks for a probe.
func (c *connector) addLocked(j *job) {
	c.asked = append(c.asked, *j)
	if len(c.asked) == 1 {
		c.rouseLocked()
	}
}

// rouseLocked makes the goroutine call take: a deadline in the past ends its
// wait, also one that it is about to begin.
func (c *connector) rouseLocked() {
	_ = c.file.SetReadDeadline(time.Unix(1, 0)) // newConnector has seen that it works
}

func (c *connector) run() {
	defer close(c.over)
	defer func() { _ = c.file.Close() }()
	for c.turn() {
	}
}

// turn starts what is to be started, else waits for what was. It reports false when the
// Prober is closed, and only then: a panic costs the rest of the turn.
func (c *connector) turn() (more bool) {
	more = true
	defer func() {
		if v := recover(); v != nil {
			c.p.panicked(v)
			time.Sleep(panicPause)
		}
	}()
	if c.take() {
		more = false // also where giving up panics
		c.abandon()
		return more
	}
	if len(c.jobs) > 0 {
		for c.begun < len(c.jobs) { // a turn that ends early leaves the others to the next one
			c.begun++
			c.start(&c.jobs[c.begun-1])
		}
		clear(c.jobs)
		c.jobs, c.begun = c.jobs[:0], 0
		c.look()
		c.closeSpent()
		return true // what has ended makes room for what waits
	}
	// The runtime forgets an event that it has seen when a wait begins, so
	// the wait must begin by asking the epoll itself. RawConn.Read does.
	c.ready = 0
	if err := c.wait(c.harvest); err != nil {
		// The deadline: of a probe, or because there are more. It comes before
		// a first harvest, and must not always.
		c.harvest(0)
	}
	for _, e := range c.events[:c.ready] {
		// A descriptor that a child process holds until it executes may still
		// have events of the slot's last use.
		if f := &c.slots[e.Fd]; f.fd >= 0 && f.turn == e.Pad {
			c.arrived(e.Fd, e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0)
		}
	}
	c.expire()
	c.closeSpent()
	return true
}

// panicPause keeps a panic that comes again with each turn from filling the log.
const panicPause = 10 * time.Millisecond

// closeSpent closes the descriptors of what is over.
func (c *connector) closeSpent() {
	for _, fd := range c.spent {
		_ = unix.Close(fd) // nothing to be told: the verdict is out
	}
	c.spent = c.spent[:0]
}

// take returns what is to be started: what was asked for, and what may start
// in place of what is over. When there is nothing it sets the deadline of the
// wait that follows.
func (c *connector) take() (closed bool) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	c.jobs = append(c.jobs, c.asked...)
	clear(c.asked)
	c.asked = c.asked[:0]
	for ; c.ended > 0; c.ended-- {
		j, ok := p.nextLocked()
		switch {
		case !ok:
			p.leaveLocked(1)
		case j.to.IsValid():
			c.jobs = append(c.jobs, j)
		default:
			go p.work(j)
		}
	}
	if len(c.jobs) == 0 && !p.closed {
		_ = c.file.SetReadDeadline(c.deadline())
	}
	return p.closed
}

// deadline returns when the first of the flights is late; zero: never. There
// are at most MaxAtOnce of them, and a heap would have to be kept for every
// probe that is not late.
func (c *connector) deadline() (first time.Time) {
	for i := range c.slots {
		if f := &c.slots[i]; f.fd >= 0 {
			if late := f.start.Add(f.timeout); first.IsZero() || late.Before(first) {
				first = late
			}
		}
	}
	return first
}

// start begins a connection attempt.
func (c *connector) start(j *job) {
	i := c.slot()
	f := &c.slots[i]
	f.job, f.start, f.sent = *j, time.Now(), c.p.opt.Now()
	family := unix.AF_INET6
	var to unix.Sockaddr = &c.in6
	if j.to.Addr().Is4() {
		family, to = unix.AF_INET, &c.in4
		c.in4.Addr, c.in4.Port = j.to.Addr().As4(), int(j.to.Port())
	} else {
		c.in6.Addr, c.in6.Port = j.to.Addr().As16(), int(j.to.Port())
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.end(i, err)
		return
	}
	f.fd = fd
	// Closing resets the connection: an orderly close would leave a socket in
	// TIME_WAIT for every probe.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &reset) // fails on no TCP socket
	switch err := unix.Connect(fd, to); err {
	case nil, unix.EINPROGRESS, unix.EINTR: // an interrupted attempt goes on
		c.fresh = append(c.fresh, i)
	default:
		c.end(i, err)
	}
}

var reset = unix.Linger{Onoff: 1, Linger: 0}

// slot returns a free slot.
func (c *connector) slot() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	c.slots = append(c.slots, flight{fd: -1})
	return int32(len(c.slots) - 1)
}

// look ends the fresh flights that have arrived already and registers the
// others.
func (c *connector) look() {
	c.looks = c.looks[:0]
	for _, i := range c.fresh {
		c.looks = append(c.looks, unix.PollFd{Fd: int32(c.slots[i].fd), Events: unix.POLLOUT})
	}
	if len(c.looks) > 0 {
		_, _ = unix.Poll(c.looks, 0) // when it fails, none of them has arrived
	}
	for n, i := range c.fresh {
		if r := c.looks[n].Revents; r != 0 {
			c.arrived(i, r&(unix.POLLERR|unix.POLLHUP) != 0)
			continue
		}
		f := &c.slots[i]
		e := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: i, Pad: f.turn}
		if err := unix.EpollCtl(c.poll, unix.EPOLL_CTL_ADD, f.fd, &e); err != nil {
			c.report(i, localFault(err))
		}
	}
	c.fresh = c.fresh[:0]
}

// harvest takes events; it reports whether there were any.
func (c *connector) harvest(uintptr) bool {
	n, _ := unix.EpollWait(c.poll, c.events[:], 0) // an interrupted one is asked again: level-triggered
	c.ready = max(n, 0)
	return n != 0
}

// arrived ends a flight whose outcome is known to the kernel.
func (c *connector) arrived(i int32, bad bool) {
	f := &c.slots[i]
	if bad {
		e, err := unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			c.end(i, err)
			return
		case e != 0:
			c.end(i, unix.Errno(e))
			return
		}
	}
	if c.ports.has(f.to.Port()) && toItself(f.fd, f.to) {
		c.end(i, unix.ECONNREFUSED)
		return
	}
	c.end(i, nil)
}

// expire ends the flights that are late. One that has arrived meanwhile was
// looked at too late, for want of processor time: that is weir's own doing, and
// no backend is to blame for it.
func (c *connector) expire() {
	var now time.Time
	for i := range c.slots {
		f := &c.slots[i]
		if f.fd < 0 {
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if now.Sub(f.start) < f.timeout {
			continue
		}
		look := [1]unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(look[:], 0); err == nil && n > 0 {
			c.arrived(int32(i), look[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0)
			continue
		}
		c.end(int32(i), os.ErrDeadlineExceeded)
	}
}

// abandon ends everything, because the Prober is closed.
func (c *connector) abandon() {
	left := c.jobs[c.begun:]
	for i := range left {
		c.p.refuse(left[i])
	}
	for i := range c.slots {
		if c.slots[i].fd >= 0 {
			c.report(int32(i), closedVerdict)
		}
	}
	c.closeSpent()
	c.p.mu.Lock()
	c.p.leaveLocked(len(left) + c.ended)
	c.p.mu.Unlock()
}

// end ends a flight; a nil error means that it is connected.
func (c *connector) end(i int32, err error) {
	f := &c.slots[i]
	if err == nil {
		c.report(i, verdict{outcome: health.Pass})
		return
	}
	c.report(i, dialFailed(err, f.to, f.timeout))
}

// report tells a flight's verdict and frees its slot. Its descriptor is closed
// when the verdicts of the others are out, too: the pool that is waiting for
// them then takes them all at once, and need not be woken for each.
func (c *connector) report(i int32, v verdict) {
	f := &c.slots[i]
	c.p.tell(&f.job, v, f.sent, f.start)
	if f.fd >= 0 {
		c.spent = append(c.spent, f.fd)
	}
	*f = flight{fd: -1, turn: f.turn + 1}
	c.free = append(c.free, i)
	c.ended++
}

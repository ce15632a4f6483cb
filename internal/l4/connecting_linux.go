// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// begin starts to connect without waiting, where that can be done, and leaves the
// session to a loop: a goroutine that waits costs more than all the rest. It
// reports false when the attempt is to be made by dial, and then nothing has
// happened; else the session is not the caller's any more.
func (o *opening) begin() bool {
	s, px := o.s, o.px
	t := px.opt.Backend(s.b)
	if t == nil || s.cl.Asked || o.c != nil && !o.c.Spliceable() {
		return false
	}
	if o.loop == nil && o.chooseLoop() != nil {
		return false
	}
	loop := o.loop
	b, ok := t.Begin(o.now, o.connectBy(), s.ask)
	if !ok {
		return false
	}
	kept := slices.Clone(o.prefix) // it is the caller's of Serve
	o.prefix, o.begun, o.began = kept, b, o.now
	s.o, s.cut = o, b.Cut
	alone := o.mayNotWait
	o.mayNotWait = false // a goroutine of its own goes on where this fails
	loop.prepare(&s.pair, pair{
		fd: [2]int32{-1, int32(b.FD)}, owner: s, slot: -1, pos: -1,
		connecting: true, by: b.By, last: o.now,
	})
	s.attempts++
	if err := loop.add(&s.pair); err != nil {
		s.attempts--
		s.o, o.begun, s.pair.connecting = nil, nil, false
		o.mayNotWait = alone
		netconn.RawClose(b.FD)
		b.Closed()
		return false
	}
	if b.Cut() || px.over.Load() {
		loop.end(&s.pair) // told between the two
	}
	return true
}

// chooseLoop chooses the loop of all attempts: whoever asks it late to end the
// session asks the right one.
func (o *opening) chooseLoop() error {
	loop, ok := o.bare.Loop.(*loop)
	if !ok {
		var err error
		if loop, err = o.px.opt.Relay.next(); err != nil {
			return err
		}
	}
	p := &o.s.pair
	p.slot = -1 // nobody knows it yet
	o.loop, o.s.ask = loop, func() { loop.end(p) }
	return nil
}

// connectBy is when an attempt that begins now has to be over; 0: whenever.
func (o *opening) connectBy() balance.Instant {
	if o.rt.Connect <= 0 {
		return 0
	}
	return o.now.Add(o.rt.Connect)
}

// told implements owner.
func (s *Session) told() bool {
	if s.o != nil && s.px.over.Load() {
		return true
	}
	return s.why.Load() != uint32(observe.TunnelByPeer) || s.cut()
}

// reached implements owner: the session is established.
func (s *Session) reached(now balance.Instant) bool {
	o := s.o
	o.now = now
	s.connect = now.Sub(o.began)
	if err := o.begun.Reached(0, false); err != nil {
		return false
	}
	c, closed, err := o.detach()
	if err != nil {
		o.broken = true
		return false
	}
	s.o = nil
	o.fill()
	s.begun, s.lasts = o.begun, now.Add(lastsAfter)
	s.fd[client] = int32(c)
	s.closed = [2]func(){closed, o.begun.Closed}
	s.px.opt.Sessions.Enter(s)
	s.px.wg.Done()
	return true
}

// lastsAfter is after what time a session is one that lasts: long before anything
// depends on it.
const lastsAfter = 5 * time.Second

// lasting implements owner.
func (s *Session) lasting() {
	s.begun.Lasting()
	ms := int(upstream.DefaultUserTimeout / time.Millisecond)
	_ = unix.SetsockoptInt(int(s.fd[client]), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms) // no TCP: no matter
	s.begun = nil
}

// unreached implements owner: another backend may be tried.
func (s *Session) unreached(now balance.Instant, errno syscall.Errno, late bool) {
	if s.o.broken {
		s.missed(now, failure{reason: message.LocalFiles, kind: pool.LocalFault, detail: "no descriptor for the client", final: true})
		return
	}
	s.missed(now, dialFailure(s.o.begun.Reached(errno, late)))
}

// stopped is the end of an attempt that is not wanted any more, or whose backend's
// drain is over.
func (s *Session) stopped(now balance.Instant) {
	if s.o.begun.Cut() {
		s.unreached(now, 0, false)
		return
	}
	s.missed(now, dialFailure(&upstream.DialError{Kind: upstream.Canceled, Addr: s.b.ID(), Err: errQuit}))
}

var errQuit = errors.New("no longer wanted")

// missed is the end of an attempt in a loop, which must not wait.
func (s *Session) missed(now balance.Instant, f failure) {
	o := s.o
	s.o = nil
	o.now = now
	s.connect = now.Sub(o.began)
	o.begun.Closed()
	o.begun = nil
	go o.again(f)
}

// again goes on after an attempt that failed in a loop.
func (o *opening) again(f failure) {
	parked := false
	defer func() {
		if !parked {
			o.px.wg.Done()
		}
	}()
	defer o.crashed()
	if o.another(f) {
		parked = o.reach()
	}
}

// connected joins the client once the backend is connected to.
func (l *loop) connected(p *pair, events uint32) {
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		v, err := unix.GetsockoptInt(int(p.fd[backend]), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || v == 0 {
			v = int(syscall.ECONNRESET) // accepted, and gone
		}
		l.abandon(p, syscall.Errno(v), false)
		return
	}
	if !p.owner.reached(l.now) {
		l.abandon(p, 0, false)
		return
	}
	p.connecting = false
	if p.pos >= 0 {
		l.heap.Remove(p.pos)
	}
	l.mu.Lock()
	err := l.register(p, client)
	l.mu.Unlock()
	if err != nil {
		l.finish(p, end{how: endTold})
		return
	}
	if p.bound() != 0 {
		l.push(p)
	}
	p.take(backend, events)
	l.stir(p)
	if !p.over && p.owner.told() {
		l.finish(p, end{how: endTold})
	}
}

// dismiss ends those that connect and are not wanted any more.
func (l *loop) dismiss() {
	l.mu.Lock()
	var all []*pair
	for i := range l.slots {
		if p := l.slots[i].p; p != nil && p.connecting {
			all = append(all, p)
		}
	}
	l.mu.Unlock()
	for _, p := range all {
		if !p.over && p.owner.told() {
			l.finish(p, end{how: endTold})
		}
	}
}

// abandon gives back a pair whose backend is not connected to.
func (l *loop) abandon(p *pair, errno syscall.Errno, late bool) {
	if p.pos >= 0 {
		l.heap.Remove(p.pos)
	}
	p.over = true
	l.mu.Lock()
	l.forget(p)
	l.mu.Unlock()
	netconn.RawClose(int(p.fd[backend]))
	p.owner.unreached(l.now, errno, late)
}

// forget is leave of a pair that was added. Called under mu.
func (l *loop) forget(p *pair) {
	if p.connecting {
		// It may be here again soon, and is not to be ended for what was said before.
		l.fresh = without(l.fresh, p)
		l.told = without(l.told, p)
		for i := range l.due { // nor connected by what another attempt was told in this turn
			if l.due[i].p == p {
				l.due[i].p = nil
			}
		}
	}
	l.leave(p)
	l.live--
}

func without(all []*pair, p *pair) []*pair {
	return slices.DeleteFunc(all, func(q *pair) bool { return q == p })
}

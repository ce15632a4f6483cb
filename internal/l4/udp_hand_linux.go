// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// Flows go from one process to the next with their sockets, so that nothing is lost:
// no datagram is in this process's memory between two turns of a loop, and those that
// come meanwhile wait in the sockets.
//
//	predecessor                            successor
//	Pause: nothing is read any more
//	  ── FlowState, and its socket ──▶     Expect
//	                                       Flows.Open: they are there before the
//	                                       first datagram is read
//	GiveAway: what is the other's now
//	  └─ it proved itself: Abandon
//	  └─ it died: TakeBack

// FlowState is a flow as it goes to another process.
type FlowState struct {
	Bound    netip.AddrPort `json:"bound"`  // of the listener's sockets
	Socket   int            `json:"socket"` // which of them
	Client   netip.AddrPort `json:"client"`
	Zone     uint32         `json:"zone,omitempty"`
	Local    netip.Addr     `json:"local,omitzero"` // where the client sends to; invalid: Bound
	Pool     string         `json:"pool"`
	Backend  string         `json:"backend"`
	URL      string         `json:"url"`
	Age      time.Duration  `json:"age"`
	Silent   time.Duration  `json:"silent"`
	Answered time.Duration  `json:"answered,omitempty"` // after what time it was answered; 0: it was not
	Settled  bool           `json:"settled,omitempty"`
	Returns  uint8          `json:"returns,omitempty"` // how often its client came back after an answer
	Asking   bool           `json:"asking,omitempty"`  // what its client has sent last was not answered
	Grams    [2]int64       `json:"datagrams"`         // in, out
	Bytes    [2]int64       `json:"bytes"`
	Attempts int            `json:"attempts"`
	Kept     []byte         `json:"kept,omitempty"` // the first datagram, of those that were not answered

	FD int `json:"-"` // the socket to the backend
}

// Pause ends reading everywhere and returns the open flows. Their descriptors are
// theirs still; nobody else must read from the sockets unless they are given away.
func (r *FlowRelay) Pause() (all []FlowState) {
	for _, l := range r.running() {
		l.await(func() {
			l.flush()
			l.paused = true
			for _, p := range l.ports {
				i := slices.Index(p.group.of.Descriptors(), p.fd)
				for _, e := range p.table.entries {
					if e.f != nil && p.own != nil {
						all = append(all, e.f.state(l.now, i))
					}
				}
			}
		})
	}
	return all
}

func (r *FlowRelay) running() []*flowLoop {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func (f *Flow) state(now balance.Instant, socket int) FlowState {
	s := FlowState{
		Bound: f.port.group.of.Bound(), Socket: socket, Client: f.key.from(), Zone: uint32(f.key.rest >> 16),
		Pool: f.rt.PoolName, Backend: f.b.ID(), URL: f.b.Address(),
		Age: now.Sub(f.began), Silent: now.Sub(f.last), Answered: f.answeredAfter, Settled: f.in == &f.shelf.settled,
		Grams: [2]int64{f.grams.in, f.grams.out}, Bytes: [2]int64{f.bytes.in, f.bytes.out},
		Returns: f.returns, Asking: f.asking, Attempts: f.attempts, Kept: f.kept, FD: f.fd,
	}
	if f.key.local != [2]uint64{} {
		s.Local = address(f.key.local)
	}
	return s
}

// Resume takes Pause back.
func (r *FlowRelay) Resume() { r.goOn(func(*port) bool { return true }) }

// goOn reads again from those ports, and what has come meanwhile first.
func (r *FlowRelay) goOn(which func(*port) bool) {
	for _, l := range r.running() {
		l.await(func() {
			l.paused = false
			l.offer()
			for _, p := range l.ports {
				if p.given || !which(p) {
					continue
				}
				l.later(p)
				for _, e := range p.table.entries {
					if e.f != nil && !e.f.again {
						e.f.again = true
						l.again = append(l.again, e.f)
					}
				}
			}
		})
	}
}

// GiveAway says that another process reads now, and has the flows; ports of groups
// that are kept go on here.
func (r *FlowRelay) GiveAway(kept func(Group) bool) {
	for _, l := range r.running() {
		l.await(func() {
			for _, p := range l.ports {
				if kept(p.group.of) {
					continue
				}
				p.given = true
				_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, p.fd, nil)
				for _, e := range p.table.entries {
					if e.f != nil {
						e.f.give()
					}
				}
			}
		})
	}
	r.goOn(func(*port) bool { return true })
}

// give takes a flow out of all that would end it.
func (f *Flow) give() {
	f.given, f.wasSettled = true, f.in == &f.shelf.settled
	f.loosen(-1)
	f.drop()
	if f.rt.Total > 0 {
		f.shelf.born.remove(f)
	}
	_ = unix.EpollCtl(f.port.loop.ep, unix.EPOLL_CTL_DEL, f.fd, nil)
}

// TakeBack takes GiveAway back: the other process is dead.
func (r *FlowRelay) TakeBack() {
	for _, l := range r.running() {
		l.await(func() {
			for _, p := range l.ports {
				if !p.given {
					continue
				}
				p.given = false
				l.again = append(l.again, l.takeBack(p)...)
				ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: p.slot, Pad: int32(l.slots[p.slot].gen)}
				if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, p.fd, &ev); err != nil {
					l.bug(err)
				}
			}
		})
	}
}

// takeBack puts the flows of a port back to where they were, and returns them.
func (l *flowLoop) takeBack(p *port) (all []*Flow) {
	for _, e := range p.table.entries {
		if e.f != nil && e.f.given {
			all = append(all, e.f)
		}
	}
	slices.SortFunc(all, func(a, b *Flow) int { return cmp.Compare(a.last, b.last) })
	for _, f := range all {
		f.given, f.again = false, true
		if f.until != 0 { // it was told to end, and waits for its answer anew
			f.until = 0
			l.ending = append(l.ending, f)
		}
		if f.wasSettled {
			f.shelf.settled.push(f)
		} else {
			f.shelf.unsettled(f).push(f)
			f.loosen(1)
		}
		if f.rt.Total > 0 {
			f.shelf.born.push(f)
		}
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: f.slot, Pad: int32(l.slots[f.slot].gen)}
		if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, f.fd, &ev); err != nil {
			l.bug(err)
		}
	}
	return all
}

// Abandon forgets what was given away: the other process has it for good.
func (r *FlowRelay) Abandon() {
	for _, l := range r.running() {
		l.await(func() {
			for _, p := range slices.Clone(l.ports) {
				for _, e := range slices.Clone(p.table.entries) {
					if e.f != nil && e.f.given {
						l.abandon(e.f)
					}
				}
			}
		})
	}
}

// abandon forgets a flow that is another process's now, which records it.
func (l *flowLoop) abandon(f *Flow) {
	f.own.opt.Sessions.Leave(f)
	f.lease.Return(l.now)
	l.disconnect(f)
	l.forget(f, over{given: true})
}

// Expect has the flows of another process go on here as soon as their sockets are
// opened. The descriptors are the relay's from then on.
func (r *FlowRelay) Expect(all []FlowState) {
	slices.SortFunc(all, func(a, b FlowState) int { return cmp.Compare(b.Silent, a.Silent) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected = append(r.expected, all...)
}

// awaited takes the expected flows of a socket. Called under mu.
func (r *FlowRelay) awaited(bound netip.AddrPort, socket, sockets int) (all []FlowState) {
	r.expected = slices.DeleteFunc(r.expected, func(s FlowState) bool {
		if s.Bound != bound || s.Socket%sockets != socket {
			return false
		}
		all = append(all, s)
		return true
	})
	return all
}

// Forget closes what was expected and whose sockets nobody opened, and returns how
// many flows that were.
func (r *FlowRelay) Forget() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.expected)
	for _, s := range r.expected {
		netconn.RawClose(s.FD)
	}
	r.expected = nil
	return n
}

// adopt goes on with a flow of another process. Where that cannot be, what its client
// sends next begins another one.
func (l *flowLoop) adopt(p *port, s *FlowState) bool {
	own := p.own
	rt := own.opt.Route()
	now := clock.Now()
	k := flowKey{client: words(s.Client.Addr()), rest: uint64(s.Client.Port()) | uint64(s.Zone)<<16}
	if s.Local.IsValid() {
		k.local = words(s.Local)
	}
	f := &Flow{own: own, rt: rt, port: p, key: k, hash: p.table.seed.hash(&k), began: now.Add(-s.Age), last: now.Add(-s.Silent), slot: -1, fd: -1, cut: p.cut}
	if rt == nil || rt.PoolName != s.Pool || own.opt.Reserve == nil || p.table.find(&k, f.hash) != nil || !own.opt.Reserve(&f.lease, s.Pool, s.Backend, s.URL) {
		netconn.RawClose(s.FD)
		return false
	}
	undo := func() bool {
		f.lease.Return(now)
		netconn.RawClose(s.FD)
		return false
	}
	f.b = f.lease.Backend()
	if f.target = own.opt.Backend(f.b); f.target == nil {
		return undo()
	}
	place, why := own.opt.Door.Enter(s.Client.Addr())
	if why != Admitted {
		return undo()
	}
	if rt.Limit != nil && !rt.Limit.Acquire() {
		own.opt.Door.Leave(s.Client.Addr(), place)
		return undo()
	}
	slot, err := l.enter(s.FD, f, nil)
	if err != nil {
		if rt.Limit != nil {
			rt.Limit.Release()
		}
		own.opt.Door.Leave(s.Client.Addr(), place)
		return undo()
	}
	f.target.AdoptDatagrams()
	f.place, f.limited, f.fd, f.slot = place, rt.Limit != nil, s.FD, slot
	f.attempts, f.answeredAfter, f.kept = s.Attempts, s.Answered, s.Kept
	f.returns, f.asking = min(s.Returns, settledReturns), s.Asking
	f.grams.in, f.grams.out, f.bytes.in, f.bytes.out = s.Grams[0], s.Grams[1], s.Bytes[0], s.Bytes[1]
	l.begin(f, s.Settled)
	return true
}

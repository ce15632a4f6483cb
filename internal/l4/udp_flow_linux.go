// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Flow is one client's datagrams and their answers, to and from one backend. It is
// known to FlowSessions while it is open.
type Flow struct {
	// Constant once it is open.
	own     *Flows
	rt      *Route
	port    *port
	shelf   *shelf
	key     flowKey
	hash    uint64
	name    unix.RawSockaddrInet6 // the client's, as the kernel takes it
	nameLen uint32
	source  bool // answers say which of the socket's addresses they come from
	began   balance.Instant
	place   Place
	limited bool // holds a slot of the route

	// Owned by the loop.
	b              *balance.Backend
	target         *upstream.Target
	lease          pool.Lease
	fd             int
	slot           int32 // -1: it has ended
	in             *queue
	before, after  *Flow // in the queue
	older, younger *Flow // in shelf.born
	last           balance.Instant
	grams, bytes   struct{ in, out int64 }
	answeredAfter  time.Duration
	kept           []byte // the first datagram, until there is an answer
	retry          *flowRetry
	attempts       int
	seen           *observe.SessionBytes // nil: not counted
	cut            bool                  // what is sent may be cut by the kernel
	again          bool                  // on loop.again
	asking         bool                  // what the client has sent last was not answered
	returns        uint8                 // how often the client came back after an answer; settledReturns at most
	until          balance.Instant       // it is to end, and waits so long for an answer; 0: it is not
	given          bool                  // another process has it
	wasSettled     bool                  // and where it was before
	unsure         bool                  // a short read does not say that there is no error

	why atomic.Uint32 // observe.TunnelCause: weir ends it
}

// flowRetry is what a flow remembers of backends that refused it.
type flowRetry struct {
	try   pool.Try
	tried balance.Tried
	log   []observe.Try
}

const causeShutdown = observe.TunnelByShutdown

// Backend returns where the flow leads. It is for FlowSessions, within Enter and
// Leave.
func (f *Flow) Backend() *balance.Backend { return f.b }

// Since returns when it began.
func (f *Flow) Since() balance.Instant { return f.began }

// End ends the flow soon: what its client sends later begins another one. It does
// not wait, may be called from any goroutine and more than once: the first cause is
// told.
func (f *Flow) End(why observe.TunnelCause, _ time.Duration) {
	if f.tell(why) {
		f.port.loop.end(f)
	}
}

func (f *Flow) tell(why observe.TunnelCause) bool {
	return f.why.CompareAndSwap(uint32(observe.TunnelByPeer), uint32(why))
}

// over is how a flow ended.
type over struct {
	idle, aged, evicted bool
	given               bool    // it goes on in another process
	failure             failure // of its backend
}

// touch notes that something was sent, either way.
func (f *Flow) touch(now balance.Instant) {
	f.last = now
	if q := f.in; q != nil && q.last != f {
		f.drop()
		q.push(f)
	}
}

const (
	// settledReturns and settledAfter are what makes a client one that is where it says
	// it is, as far as that can be known: a sender that does not see the answers has to
	// guess when they come. The time is that after which Linux takes a flow for a
	// stream (nf_conntrack_udp: 2 s).
	settledReturns = 2
	settledAfter   = 2 * time.Second
)

// settles notes that the client of an answered flow sends, and reports whether that
// shows that it gets the answers: it came back after one answer, and after another, in
// a flow that is old enough.
func (f *Flow) settles(now balance.Instant, after time.Duration) bool {
	if !f.asking && f.grams.out > 0 && f.returns < settledReturns {
		f.returns++
	}
	return f.returns == settledReturns && now.Sub(f.began) >= after
}

// loosen counts a flow, that may be ended for others, where those are looked for; it
// does nothing for the rest.
func (f *Flow) loosen(by int64) {
	if f.shelf.loose(f.in) {
		f.own.loose.n.Add(by)
		f.own.opt.Relay.loose.n.Add(by)
		f.port.loop.loose.Add(by)
	}
}

// count counts datagrams that have gone to the backend.
func (f *Flow) count(pieces []unix.Iovec) {
	n := 0
	for i := range pieces {
		n += int(pieces[i].Len)
	}
	if len(pieces) > 0 {
		if f.grams.in == 0 && f.grams.out == 0 && n <= keepMost {
			f.kept = bytes.Clone(bytesOf(&pieces[0]))
		}
		f.counted(len(pieces), n)
	}
}

// keepMost is the largest datagram that is kept in case that it is refused.
const keepMost = 1500

func (f *Flow) counted(grams, n int) {
	f.grams.in += int64(grams)
	f.bytes.in += int64(n)
	if f.seen != nil {
		f.seen.In.Add(uint64(n))
		f.seen.DatagramsIn.Add(uint64(grams))
	}
}

// uncut judges the error of a send that was to be cut: where that is what does not
// work, it is not tried again.
func (f *Flow) uncut(errno syscall.Errno) bool {
	switch errno {
	case unix.EIO, unix.EINVAL, unix.EMSGSIZE, unix.EOPNOTSUPP:
		f.cut = false
		return true
	}
	return false
}

// open begins a flow; nil: there is none to be had.
func (l *flowLoop) open(p *port, k *flowKey, hash uint64) *Flow {
	own := p.own
	if own == nil {
		return nil
	}
	rt, client := own.opt.Route(), k.from()
	if rt == nil {
		l.refuse(own, nil, client, message.NoRoute, "")
		return nil
	}
	place, ok := l.admit(p, own, client)
	if !ok {
		own.drops[dropRefused].Add(1)
		return nil
	}
	f := &Flow{own: own, rt: rt, port: p, key: *k, hash: hash, began: l.now, last: l.now, place: place, fd: -1, slot: -1, cut: p.cut}
	fl := failure{reason: message.RouteFull}
	if rt.Limit == nil || rt.Limit.Acquire() {
		f.limited = rt.Limit != nil
		rt.Pool.BeginRequest(l.now)
		fl = l.reach(f)
	}
	if fl.reason != message.OK {
		if f.limited {
			rt.Limit.Release()
		}
		own.opt.Door.Leave(client.Addr(), place)
		l.refuse(own, rt, client, fl.reason, fl.detail)
		return nil
	}
	l.begin(f, false)
	return f
}

// begin makes a flow that has its backend known everywhere.
func (l *flowLoop) begin(f *Flow, settled bool) {
	p, rt := f.port, f.rt
	f.name, f.nameLen = rawName(f.key.from(), uint32(f.key.rest>>16), p.six)
	f.source = p.wild && f.key.local != [2]uint64{}
	if rt.Series != nil {
		f.seen = rt.Series.For(f.b.ID()).Session()
	}
	p.table.add(f)
	f.shelf = l.shelfFor(f.own, rt)
	f.shelf.n++
	if settled {
		f.shelf.settled.push(f)
	} else {
		f.shelf.unsettled(f).push(f)
		f.loosen(1)
	}
	if rt.Total > 0 {
		f.shelf.born.push(f)
	}
	f.own.open.Add(1)
	f.own.opt.Sessions.Enter(f)
}

// admit takes a place for a flow. Where none is free one makes room that is not
// settled: of the same listener, or, where the process is full, of any. When only
// another loop has such a one, that is asked to end it, and who comes next finds room.
func (l *flowLoop) admit(p *port, own *Flows, client netip.AddrPort) (Place, bool) {
	for {
		place, why := own.opt.Door.Enter(client.Addr())
		switch why {
		case Admitted:
			return place, true
		case FullListener:
			if l.evict(own) {
				continue
			}
			l.evictElsewhere(own, &own.loose)
		case FullProcess:
			if l.evict(nil) {
				continue
			}
			l.evictElsewhere(nil, &own.opt.Relay.loose)
		}
		own.opt.Door.Refuse(why)
		return Place{}, false
	}
}

// evict ends the flow that can best be done without, of a listener; nil: of any.
func (l *flowLoop) evict(own *Flows) bool {
	var spare *Flow
	for _, s := range l.shelves {
		if own != nil && s.own != own {
			continue
		}
		if f := s.spare(l.now); f != nil && (spare == nil || f.sparedBefore(spare, l.now)) {
			spare = f
		}
	}
	if spare == nil {
		return false
	}
	spare.own.evicted.Add(1)
	l.finish(spare, over{evicted: true})
	return true
}

// loose counts flows that may be ended for others, on all loops, and says whether one
// is asked for already. The zero value is none.
type loose struct {
	n      atomic.Int64
	sought atomic.Bool
}

// evictElsewhere has another loop evict, unless none has what could be, or one is at
// it: a flood of those that are refused asks once in a turn.
func (l *flowLoop) evictElsewhere(own *Flows, among *loose) {
	if among.n.Load() > 0 && among.sought.CompareAndSwap(false, true) {
		seek(l.others, own, among)
	}
}

// seek asks the first loop that may have one, which asks the next if it has not.
func seek(loops []*flowLoop, own *Flows, among *loose) {
	for i, l := range loops {
		if l.loose.Load() > 0 && l.ask(func() {
			if !l.paused && l.evict(own) {
				among.sought.Store(false)
			} else {
				seek(loops[i+1:], own, among)
			}
		}) {
			return
		}
	}
	among.sought.Store(false)
}

// reach picks a backend and opens a socket to it, or to another one where that
// fails.
func (l *flowLoop) reach(f *Flow) failure {
	for {
		r := &l.req
		*r = balance.Request{Rand: rand.Uint64(), Now: l.now}
		if f.retry != nil {
			r.Tried = f.retry.tried
		}
		if f.rt.Key != nil {
			r.Key, r.HasKey = f.rt.Key(address(f.key.client))
		}
		if got := f.rt.Pool.Pick(&f.lease, r); got != pool.Granted {
			if f.retry != nil && len(f.retry.log) > 0 {
				last := f.retry.log[len(f.retry.log)-1]
				return failure{reason: last.Reason} // that no second backend was to be had is less true
			}
			return refusal(got)
		}
		fl := l.connect(f)
		if fl.reason == message.OK || !l.another(f, fl) {
			return fl
		}
	}
}

// connect opens the socket of a flow to the backend of its lease.
func (l *flowLoop) connect(f *Flow) failure {
	f.b = f.lease.Backend()
	f.attempts++
	if f.target = f.own.opt.Backend(f.b); f.target == nil {
		f.own.opt.Bug("l4_target", f.b.ID())
		return failure{reason: message.NoBackend, kind: pool.LocalFault, detail: "backend without connections", final: true}
	}
	fd, err := f.target.OpenDatagrams()
	if err != nil {
		return dialFailure(err)
	}
	slot, err := l.enter(fd, f, nil)
	if err != nil {
		f.target.CloseDatagrams(fd)
		return failure{reason: message.LocalFiles, kind: pool.LocalFault, detail: err.Error(), final: true}
	}
	f.fd, f.slot, f.unsure = fd, slot, false
	if f.rt.Series != nil {
		f.seen = f.rt.Series.For(f.b.ID()).Session()
	}
	return failure{}
}

// another tells the pool of a failure and reports whether there is to be another
// try.
func (l *flowLoop) another(f *Flow, fl failure) bool {
	b := f.lease.Backend()
	f.lease.Done(pool.Outcome{Now: l.now, Kind: fl.kind, Total: l.now.Sub(f.began), Client: clientHash(address(f.key.client))})
	if fl.final {
		return false
	}
	if f.retry == nil {
		f.retry = new(flowRetry)
	}
	f.retry.tried.Add(b.Hash())
	d := f.rt.Pool.Next(l.now, &f.rt.Retry, &f.retry.try, pool.Failure{Kind: fl.kind, Backend: b}, rand.Uint64())
	if !d.Again {
		return false
	}
	f.retry.log = append(f.retry.log, observe.Try{Backend: b.ID(), Reason: fl.reason})
	if f.rt.PoolSeries != nil {
		f.rt.PoolSeries.Redispatch(fl.reason)
	}
	return true
}

// errnoFailure is what an error of a backend's socket says.
func errnoFailure(errno syscall.Errno) failure {
	switch errno {
	case unix.ECONNREFUSED:
		return failure{reason: message.ConnectRefused, kind: pool.ConnectRefused, detail: "no process has the port (ICMP)"}
	default:
		return failure{reason: message.Unreachable, kind: pool.ConnectUnreachable, detail: said(errno)}
	}
}

// failed is a flow whose backend the network says is not there. It reports whether
// the flow goes on, with another one: that is so as long as there was no answer;
// later only the client can know whether another backend can go on with it.
func (l *flowLoop) failed(f *Flow, errno syscall.Errno) bool {
	fl := errnoFailure(errno)
	if f.grams.out > 0 {
		l.finish(f, over{failure: fl})
		return false
	}
	f.own.opt.Sessions.Leave(f)
	again := l.another(f, fl)
	l.disconnect(f)
	if again {
		if next := l.reach(f); next.reason == message.OK {
			f.own.opt.Sessions.Enter(f)
			if f.kept != nil {
				_ = l.fwd.plain(f.fd, f.kept) // what it says comes back with the next call
			}
			return true
		} else if next.reason != message.OK && f.lease.Held() {
			f.lease.Return(l.now)
		}
	}
	l.forget(f, over{failure: fl})
	return false
}

// disconnect closes the socket to the backend.
func (l *flowLoop) disconnect(f *Flow) {
	if f.slot >= 0 {
		l.leave(f.slot)
		f.target.CloseDatagrams(f.fd)
	}
	f.slot, f.fd = -1, -1
}

// told ends a flow that somebody else wants ended.
func (l *flowLoop) told(f *Flow) {
	switch {
	case f.slot < 0:
	case f.given:
		l.abandon(f)
	case f.asking && f.until == 0:
		f.until = l.now.Add(answerMost)
		l.closing = append(l.closing, f)
	case f.until == 0:
		l.finish(f, over{})
	}
}

// answerMost is how long a flow that is to end waits for the answer that is on its
// way: what comes later is lost.
const answerMost = time.Second

// closeAnswered ends the flows that waited for an answer.
func (l *flowLoop) closeAnswered() {
	left := l.closing[:0]
	for _, f := range l.closing {
		switch {
		case f.slot < 0 || f.given:
		case f.asking && f.until > l.now:
			left = append(left, f)
		default:
			l.finish(f, over{})
		}
	}
	clear(l.closing[len(left):])
	l.closing = left
}

// finish ends a flow.
func (l *flowLoop) finish(f *Flow, o over) {
	if l.outPort == f.port {
		l.flush() // it is counted with what it has got
	}
	f.own.opt.Sessions.Leave(f)
	if f.lease.Held() {
		if o.failure.reason != message.OK {
			f.lease.Done(pool.Outcome{Now: l.now, Kind: o.failure.kind, Sent: true, Total: l.now.Sub(f.began), Client: clientHash(address(f.key.client))})
		} else {
			f.lease.Return(l.now) // silence says nothing
		}
	}
	l.disconnect(f)
	l.forget(f, o)
}

// forget takes a flow out of everything and records it. It has no socket and no
// lease any more.
func (l *flowLoop) forget(f *Flow, o over) {
	p, own := f.port, f.own
	p.table.remove(f)
	f.loosen(-1)
	f.drop()
	if f.rt.Total > 0 && !o.given {
		f.shelf.born.remove(f)
	}
	f.shelf.n--
	client := f.key.from()
	own.opt.Door.Leave(client.Addr(), f.place)
	if f.limited {
		f.rt.Limit.Release()
	}
	if !o.given {
		own.record(l.now, f, o)
	}
	own.open.Add(-1)
	if len(p.leaving) > 0 {
		for i := range p.leaving {
			if p.leaving[i].own == own {
				p.leaving[i].left--
			}
		}
		l.portLeft(p)
	}
}

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
	if f.grams.out == 0 {
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

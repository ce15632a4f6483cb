// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
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
	answeredAfter  time.Duration // 0: it was not; grams.out is what its client was sent
	kept           []byte        // the first datagram, until there is an answer
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
	if !f.asking && f.answeredAfter > 0 && f.returns < settledReturns {
		f.returns++
	}
	return f.returns == settledReturns && now.Sub(f.began) >= after
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

// open begins a flow; nil: there is none to be had, or, where the datagram may be held,
// not yet.
func (l *flowLoop) open(p *port, k *flowKey, hash uint64) *Flow {
	l.unresolved = nil
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
		if !l.mayHold() {
			l.refuse(own, rt, client, fl.reason, fl.detail)
		}
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

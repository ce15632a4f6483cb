// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"math/rand/v2"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

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
	if err != nil && dialFailure(err).reason == message.LocalFiles && l.evict(nil) {
		fd, err = f.target.OpenDatagrams()
	}
	if err != nil {
		if c := upstream.Unresolved(err); c != nil {
			l.unresolved = c
		}
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
	if f.answeredAfter > 0 {
		l.finish(f, over{failure: fl})
		return false
	}
	f.own.opt.Sessions.Leave(f)
	f.loosen(-1) // it is not to make room for itself
	f.drop()
	again := l.another(f, fl)
	l.disconnect(f)
	if again {
		if next := l.reach(f); next.reason == message.OK {
			f.last = l.now // it is sent to anew
			f.shelf.fresh.push(f)
			f.loosen(1)
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

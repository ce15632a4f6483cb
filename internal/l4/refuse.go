// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net/netip"
	"sync"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// giveUp is refuse for who holds a slot of the route.
func (o *opening) giveUp(f failure) {
	if o.rt.Limit != nil {
		o.rt.Limit.Release()
	}
	o.refuse(f)
}

// refuse ends a connection that has got no backend. A reset cannot be taken for
// an empty answer.
func (o *opening) refuse(f failure) {
	s := o.s
	o.reset()
	r := records.Get().(*observe.Record)
	o.px.fill(r, o.rt, &s.cl)
	if s.b != nil {
		r.Backend = s.b.ID()
	}
	r.Attempts, r.Redispatches, r.Tried = s.attempts, len(s.tried), append(r.Tried, s.tried...)
	r.Queue, r.Connect = s.queue, s.connect
	r.Reason, r.Detail = f.reason, f.detail
	o.px.record(r, o.rt, clock.Now())
}

// Refuse ends a connection that gets no session. none is a Route of no name and no
// pool where it found none, which says who the listener is.
func (p *Proxy) Refuse(c *netconn.Conn, ci *Client, none *Route, reason message.Reason, detail string) {
	_ = c.Reset()
	r := records.Get().(*observe.Record)
	now := clock.Now()
	p.fill(r, none, ci)
	if r.Start == 0 {
		r.Start = now
	}
	r.Reason, r.Detail = reason, detail
	p.record(r, none, now)
}

// records are reused.
var records = sync.Pool{New: func() any { return new(observe.Record) }}

// fill begins a record.
func (p *Proxy) fill(r *observe.Record, rt *Route, ci *Client) {
	r.ClientIP, r.ProxiedBy, r.Start = ci.Peer.Addr(), ci.ProxiedBy, ci.Began
	r.TLS, r.Session = ci.Session != nil, ci.Session
	if r.Session == nil {
		r.Session = ci.Hello
	}
	if ci.Name != "" {
		r.Host = []byte(ci.Name)
	}
	if rt != nil {
		r.Listener, r.Protocol, r.Route, r.Pool = rt.Listener, rt.Protocol, rt.Name, rt.PoolName
	}
}

// record hands a finished record out.
func (p *Proxy) record(r *observe.Record, rt *Route, now balance.Instant) {
	r.Total = now.Sub(r.Start)
	if rt != nil {
		if rt.Series != nil {
			rt.Series.For(r.Backend).ObserveSession(r)
		}
		if rt.Log != nil {
			rt.Log.Write(r)
		}
	}
	if r.Reason != message.OK && p.opt.Failed != nil {
		p.opt.Failed(r)
	}
	if p.tap != nil {
		p.tap(r)
	}
	r.Reset()
	records.Put(r)
}

// refusal turns a pool's refusal into a failure.
func refusal(r pool.Refusal) failure {
	f := failure{reason: message.NoBackend, final: true}
	switch r {
	case pool.AllBroken:
		f.reason = message.AllBroken
	case pool.Full, pool.QueueFull:
		f.reason = message.QueueFull
	case pool.QueueTimeout:
		f.reason = message.QueueTimeout
	case pool.Shed:
		f.reason = message.Shed
	case pool.Aborted:
		f.reason, f.detail = message.ClientAbort, "in the queue"
	}
	return f
}

// dialFailure turns upstream's error into a failure.
func dialFailure(err error) failure {
	f := failure{detail: err.Error()}
	f.reason, f.kind = upstream.OutcomeOf(err)
	f.final = f.kind == pool.Canceled
	return f
}

// clientHash is the client as pools count different ones; 0: not known.
func clientHash(a netip.Addr) uint64 {
	if !a.IsValid() {
		return 0
	}
	b := a.Unmap().As16()
	h := uint64(14695981039346656037) // FNV-1a, 64 bits
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h | 1
}

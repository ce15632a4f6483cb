// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync/atomic"

	"github.com/weirlb/weir/balance"
)

// Lease is a reserved slot on one backend. The zero value is free. It is owned
// by one exchange, reused from attempt to attempt and never copied while it is
// held; its methods are not safe for concurrent use.
type Lease struct {
	m     *member
	b     *balance.Backend
	p     *Pool
	began balance.Instant
	// counted says that it holds one of Limits.PoolRequests: that limit may come
	// and go meanwhile.
	counted bool
	// adaptive is the limit of which it holds one, or nil: that comes and goes, too.
	adaptive *adaptive
}

// take puts a slot that has been reserved into the lease.
func (l *Lease) take(p *Pool, m *member, b *balance.Backend, began balance.Instant) {
	l.m, l.b, l.p, l.began, l.counted, l.adaptive = m, b, p, began, false, nil
}

// leaseBugs counts broken promises about leases, of all pools of the process.
var leaseBugs atomic.Uint64

// LeaseBugs returns how often a lease was finished twice, or taken while held,
// in this process. Anything but zero is a bug in the data plane.
func LeaseBugs() uint64 { return leaseBugs.Load() }

// Backend returns the backend that the slot is on, nil when the lease is free.
func (l *Lease) Backend() *balance.Backend {
	return l.b
}

// Held reports whether the lease holds a slot.
func (l *Lease) Held() bool { return l.m != nil }

// Done gives the slot back and tells how the attempt went. A second Done does
// nothing and is counted by LeaseBugs. It takes no lock unless requests wait
// for a slot, and never allocates.
func (l *Lease) Done(o Outcome) {
	m, b, p := l.m, l.b, l.p
	if m == nil {
		leaseBugs.Add(1)
		return
	}
	l.m, l.b = nil, nil
	m.observe(p, l.began, &o)
	if learner := p.set.Load().learner; learner != nil {
		teach(learner, b, &o)
	}
	if l.adaptive != nil {
		l.adaptive.learn(l.began, &o)
	}
	l.release(o.Now, m, b, p)
}

// Report tells how the attempt goes and keeps the slot: for a connection that
// lives long after its backend has shown that it works. It is the attempt's
// outcome; Return follows. It costs what Done costs.
func (l *Lease) Report(o Outcome) {
	m, p := l.m, l.p
	if m == nil {
		leaseBugs.Add(1)
		return
	}
	m.observe(p, l.began, &o)
	if learner := p.set.Load().learner; learner != nil {
		teach(learner, l.b, &o)
	}
	if l.adaptive != nil {
		l.adaptive.learn(l.began, &o)
	}
}

// release frees the slot that was l's.
func (l *Lease) release(now balance.Instant, m *member, b *balance.Backend, p *Pool) {
	if s := p.set.Load(); !l.counted && !s.limited && l.adaptive == nil {
		p.letGo(s, b, now)
	} else {
		p.giveBack(m, now, l.counted, l.adaptive)
		l.adaptive = nil
	}
	if m.mode.Load()&modeWatch != 0 && b.InFlight() == 0 {
		m.mark(markEmpty)
	}
}

// letGo frees a slot in a pool that had no limits when its settings s were read.
// Where that has changed since, somebody may have found the slot taken and wait.
func (p *Pool) letGo(s *settings, b *balance.Backend, now balance.Instant) {
	b.Release()
	if p.set.Load() != s && p.queue.length.Load() != 0 {
		p.kick(now)
	}
}

// teach tells a policy that learns how an attempt went. What the client or weir
// broke off says nothing about the backend, a connection that died of old age
// neither, and a tunnel's length is the client's choice.
func teach(learner balance.Learner, b *balance.Backend, o *Outcome) {
	seen := balance.Observation{Now: o.Now, FirstByte: o.FirstByte}
	switch o.Kind {
	case Success:
		if o.Tunnel {
			return
		}
		if seen.FirstByte <= 0 {
			seen.FirstByte = max(o.Total, 0)
		}
		seen.Failed = o.Status >= 500 && (o.Status != 503 || !o.RetryAfter)
	case ClientFault, LocalFault, Canceled:
		return
	default:
		if o.Tunnel || o.Kind == Reset && (o.Stale || !o.Sent) {
			return
		}
		seen.FirstByte, seen.Failed = max(o.Total, 0), true
	}
	learner.Learn(b, seen)
}

// Pick reserves a slot on the backend that the policy chooses and leaves it in
// l, or says why there is none. r.Rand, Now and Tried are the caller's; r is
// not changed. On Full, Wait may be called. It takes no lock, reads no clock
// and never allocates.
func (p *Pool) Pick(l *Lease, r *balance.Request) Refusal {
	if l.m != nil {
		leaseBugs.Add(1)
		l.drop()
	}
	if p.set.Load().limited {
		return p.pickLimited(l, r)
	}
	v := p.view.Load()
	if v.direct != nil && v.admit >= 1 {
		if b, ok := v.direct.Pick(*r); ok && p.reserve(l, r, b) {
			return Granted
		}
	}
	got, _ := p.pickSlow(l, r)
	return got
}

// Return gives a slot back that was not used. Nothing is counted or learned.
func (l *Lease) Return(now balance.Instant) {
	m, b, p := l.m, l.b, l.p
	if m == nil {
		leaseBugs.Add(1)
		return
	}
	l.m, l.b = nil, nil
	l.release(now, m, b, p)
}

// drop gives a slot back without telling anything.
func (l *Lease) drop() {
	l.Done(Outcome{Now: l.began, Kind: Canceled})
}

// pickLimited is Pick in a pool with limits. While others wait, newcomers are
// not even asked: the queue is first come, first served.
func (p *Pool) pickLimited(l *Lease, r *balance.Request) Refusal {
	if p.queue.length.Load() != 0 {
		return Full
	}
	got, stirred := p.admit(l, r)
	if stirred && p.queue.length.Load() != 0 {
		// For a moment a slot was held that is not kept. A waiter may have been
		// refused for it.
		p.kick(r.Now)
	}
	return got
}

// admit picks under the pool's own limits. stirred says that a slot was taken
// and given back on the way.
func (p *Pool) admit(l *Lease, r *balance.Request) (got Refusal, stirred bool) {
	a := p.set.Load().adaptive
	if a == nil {
		return p.admitCounted(l, r)
	}
	if !a.enter(r.Priority) {
		return Shed, false
	}
	if got, stirred = p.admitCounted(l, r); got != Granted {
		a.leave()
		return got, true
	}
	l.adaptive = a
	return got, stirred
}

// admitCounted picks under Limits.PoolRequests.
func (p *Pool) admitCounted(l *Lease, r *balance.Request) (got Refusal, stirred bool) {
	most := p.set.Load().Limits.PoolRequests
	if most <= 0 {
		return p.pickSlow(l, r)
	}
	if p.inFlight.Load() >= most {
		return Full, false
	}
	if p.inFlight.Add(1) > most {
		p.inFlight.Add(-1)
		return Full, true
	}
	if got, stirred = p.pickSlow(l, r); got != Granted {
		p.inFlight.Add(-1)
		return got, true
	}
	l.counted = true
	return got, stirred
}

// pickSlow is Pick with all its turns; the pool's own slot is the caller's.
func (p *Pool) pickSlow(l *Lease, r *balance.Request) (got Refusal, stirred bool) {
	v := p.view.Load()
	if v.admit < 1 && unit(r.Rand) >= v.admitted(r.Now) {
		return Shed, false
	}
	for range 4 {
		b, ok := v.pick(r)
		switch {
		case !ok && v.idle:
			return NoBackend, stirred
		case !ok:
			return AllBroken, stirred
		case b.Full():
			// Policies put those with room first, so there is none; a policy
			// that does not is given one more chance.
			if p.elsewhere(v, l, r, b) {
				return Granted, stirred
			}
			return Full, true
		case p.reserve(l, r, b):
			return Granted, stirred
		}
		stirred = true
		v = p.view.Load()
	}
	return Full, stirred
}

// reserve takes a slot on b into l, unless it has just been filled, drained or
// removed. Reserve first, then look: whoever drains or removes a backend looks
// at its in-flight count after having said so. One of the two sees the other.
func (p *Pool) reserve(l *Lease, r *balance.Request, b *balance.Backend) bool {
	if !b.Reserve() {
		return false
	}
	if m, ok := b.Owner().(*member); ok && m.admits(r) {
		l.take(p, m, b, r.Now)
		return true
	}
	b.Release()
	return false
}

// elsewhere picks with a full backend counted as tried.
func (p *Pool) elsewhere(v *view, l *Lease, r *balance.Request, full *balance.Backend) bool {
	again := *r
	again.Tried.Add(full.Hash())
	b, ok := v.pick(&again)
	return ok && !b.Full() && !b.Unreachable() && !again.Tried.Has(b.Hash()) && p.reserve(l, r, b)
}

// unit maps 64 random bits to [0, 1), independently of how policies use them.
func unit(rnd uint64) float64 { return float64(mix(rnd^0x5ee5a11e)>>11) / (1 << 53) }

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/weirlb/weir/balance"
)

// flowKey tells the flows of one socket apart: by who sends, and to which of the
// addresses that the socket has.
type flowKey struct {
	client, local [2]uint64 // as IPv6, IPv4 mapped into it; local is zero where the socket has one address
	rest          uint64    // the client's port, and above it the interface of a link-local address
}

// words are an address as two numbers.
func words(a netip.Addr) [2]uint64 {
	b := a.As16()
	return [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func address(w [2]uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], w[0])
	binary.BigEndian.PutUint64(b[8:], w[1])
	return netip.AddrFrom16(b).Unmap()
}

// from is the client's address and port.
func (k *flowKey) from() netip.AddrPort { return netip.AddrPortFrom(address(k.client), uint16(k.rest)) }

// seed makes the places of flows in a table unknown to their senders, who could
// choose addresses of one place else.
type seed [3]uint64

// hash mixes a key: wyhash's rounds (Wang Yi, 2019), with seeds of its own. A client
// differs from others mostly in its second word and the rest, which meet two
// products; what a product of zero would hide is the other's.
func (s *seed) hash(k *flowKey) uint64 {
	h1, l1 := bits.Mul64(k.client[1]^s[0], k.rest^s[1])
	h2, l2 := bits.Mul64(k.client[0]^s[1]^k.local[0], k.local[1]^s[2])
	h, l := bits.Mul64(h1^l1^s[2], h2^l2^bits.RotateLeft64(k.client[1]+k.rest, 32)^s[0])
	return h ^ l
}

// table finds flows by their keys: open addressing with linear probing; who is
// taken out is replaced by those behind it (Knuth, The Art of Computer Programming,
// volume 3, section 6.4, algorithm R), so that nothing grows with what has been.
// The zero value is an empty table.
type table struct {
	seed    seed
	entries []entry // a power of two of them, a quarter free at least
	n       int
}

type entry struct {
	hash uint64
	f    *Flow
}

// find returns the flow of a key; nil: there is none. hash is that of the key.
func (t *table) find(k *flowKey, hash uint64) *Flow {
	if t.n == 0 {
		return nil
	}
	mask := uint64(len(t.entries) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := &t.entries[i]
		if e.f == nil {
			return nil
		}
		if e.hash == hash && e.f.key == *k {
			return e.f
		}
	}
}

// add puts a flow in that is not there.
func (t *table) add(f *Flow) {
	if 4*(t.n+1) > 3*len(t.entries) {
		t.resize(max(2*len(t.entries), 64))
	}
	t.n++
	t.place(entry{f.hash, f})
}

func (t *table) place(e entry) {
	mask := uint64(len(t.entries) - 1)
	i := e.hash & mask
	for t.entries[i].f != nil {
		i = (i + 1) & mask
	}
	t.entries[i] = e
}

// remove takes a flow out that is there.
func (t *table) remove(f *Flow) {
	mask := uint64(len(t.entries) - 1)
	i := f.hash & mask
	for t.entries[i].f != f {
		i = (i + 1) & mask
	}
	t.n--
	for j := i; ; {
		j = (j + 1) & mask
		e := t.entries[j]
		if e.f == nil {
			break
		}
		// e may move to i unless its own place lies behind i, up to j.
		if (j-e.hash)&mask >= (j-i)&mask {
			t.entries[i] = e
			i = j
		}
	}
	t.entries[i] = entry{}
	if len(t.entries) > 64 && 8*t.n < len(t.entries) {
		t.resize(len(t.entries) / 2)
	}
}

func (t *table) resize(size int) {
	old := t.entries
	t.entries = make([]entry, size)
	for _, e := range old {
		if e.f != nil {
			t.place(e)
		}
	}
}

// queue is a list of flows, those that have been silent for longest first. The
// zero value is empty. A flow is in one queue at most.
type queue struct{ first, last *Flow }

// push puts a flow that is in no queue at the end.
func (q *queue) push(f *Flow) {
	f.in, f.before, f.after = q, q.last, nil
	if q.last != nil {
		q.last.after = f
	} else {
		q.first = f
	}
	q.last = f
}

// drop takes a flow out of the queue that it is in, if it is in one.
func (f *Flow) drop() {
	q := f.in
	if q == nil {
		return
	}
	if f.before != nil {
		f.before.after = f.after
	} else {
		q.first = f.after
	}
	if f.after != nil {
		f.after.before = f.before
	} else {
		q.last = f.before
	}
	f.in, f.before, f.after = nil, nil, nil
}

// shelf is the flows of one route on one loop, in the order in which their times
// are over. Those that began under other times are on a shelf of their own.
type shelf struct {
	rt  *Route
	own *Flows
	// fresh are those without an answer, answered those that have not talked for long
	// enough since: whether their client is where it says it is, is not known.
	fresh, answered queue
	// settled are the others.
	settled queue
	born    ages // all, oldest first, where the route has a greatest age
	n       int
}

// ages is a list of flows by when they began. A flow is in one of them at most.
type ages struct{ first, last *Flow }

func (a *ages) push(f *Flow) {
	f.older, f.younger = a.last, nil
	if a.last != nil {
		a.last.younger = f
	} else {
		a.first = f
	}
	a.last = f
}

func (a *ages) remove(f *Flow) {
	if f.older != nil {
		f.older.younger = f.younger
	} else {
		a.first = f.younger
	}
	if f.younger != nil {
		f.younger.older = f.older
	} else {
		a.last = f.older
	}
	f.older, f.younger = nil, nil
}

// loose says whether flows of a queue of the shelf may be ended for others.
func (s *shelf) loose(q *queue) bool { return q == &s.fresh || q == &s.answered }

// unsettled is the queue of a flow that is not settled.
func (s *shelf) unsettled(f *Flow) *queue {
	if f.answeredAfter > 0 {
		return &s.answered
	}
	return &s.fresh
}

// spare is the flow of the shelf that can best be done without; nil: none can.
func (s *shelf) spare(now balance.Instant) *Flow {
	a, b := s.fresh.first, s.answered.first
	if a == nil || b != nil && b.sparedBefore(a, now) {
		return b
	}
	return a
}

// sparedBefore orders the flows that may be ended for others. First come those whose
// answer is overdue, then the others, and of each those that have been silent for
// longest. Who waits for an answer that may be on its way is no worse than who has got
// one: else whoever asks while the table is full would be ended by the next one.
func (f *Flow) sparedBefore(o *Flow, now balance.Instant) bool {
	if a, b := f.overdue(now), o.overdue(now); a != b {
		return a
	}
	return f.last < o.last
}

func (f *Flow) overdue(now balance.Instant) bool {
	return f.answeredAfter == 0 && now.Sub(f.last) >= answerMost
}

// next is when the first flow's time is over; 0: never.
func (s *shelf) next() balance.Instant {
	var t balance.Instant
	earliest := func(at balance.Instant) {
		if t == 0 || at < t {
			t = at
		}
	}
	for _, f := range [...]*Flow{s.fresh.first, s.answered.first} {
		if f != nil {
			earliest(f.last.Add(s.own.freshFor(s.rt)))
		}
	}
	if f := s.settled.first; f != nil && s.rt.Idle > 0 {
		earliest(f.last.Add(s.rt.Idle))
	}
	if f := s.born.first; f != nil {
		earliest(f.began.Add(s.rt.Total))
	}
	return t
}

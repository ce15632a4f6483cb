// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"sync/atomic"
	"time"
)

// Admin is the operator's word about a backend. It is a field of its own
// beside health: the two never overwrite each other.
type Admin uint32

// The operator's words.
const (
	Enabled  Admin = iota // takes new work as health allows
	Draining              // no new work; what is in flight finishes
	Disabled              // no new work
)

// String returns the name used by the admin API.
func (a Admin) String() string {
	switch a {
	case Draining:
		return "draining"
	case Disabled:
		return "disabled"
	default:
		return "enabled"
	}
}

// Backend is one server as the policies see it: identity, and the live figures
// that picks read. It survives from Set to Set; policies never own one.
//
// All methods are safe for concurrent use and none blocks or allocates.
type Backend struct {
	// Constant after NewBackend.
	id      string
	hash    BackendID
	address string

	// Set once by whoever owns the pool, before the first Set that contains the
	// backend is published: leads to the data plane's connections.
	attachment any

	// Written by the pool's core, read at pick time.
	share    atomic.Uint32 // float32 bits of the admission share, 0..1
	admin    atomic.Uint32
	flags    atomic.Uint32 // flagUnreachable, flagSuspect, flagRemoved
	limit    atomic.Int64  // requests in flight allowed; 0 = no limit
	_        [32]byte      // keep what every request writes off the line above
	inFlight atomic.Int64
	ghost    atomic.Uint64 // failed attempts still counted as load, see Charge
	mean     atomic.Int64  // nanoseconds
}

const (
	flagUnreachable = 1 << iota
	flagSuspect
)

// NewBackend returns an enabled backend with share 1 and no limit. id names it
// within its pool (host:port by default), address is where it is dialed.
func NewBackend(id, address string) *Backend {
	b := &Backend{id: id, hash: IDOf(id), address: address}
	b.SetShare(1)
	return b
}

// ID returns the backend's id text.
func (b *Backend) ID() string { return b.id }

// Hash returns the stable hash of the id.
func (b *Backend) Hash() BackendID { return b.hash }

// Address returns the URL or host:port that the owner gave.
func (b *Backend) Address() string { return b.address }

// SetAttachment hangs the owner's per-backend state on the backend. It must be
// called before the backend is published and at most once.
func (b *Backend) SetAttachment(v any) { b.attachment = v }

// Attachment returns what SetAttachment stored, or nil.
func (b *Backend) Attachment() any { return b.attachment }

// Share returns the admission probability that health grants, 0..1.
func (b *Backend) Share() float64 { return float64(math.Float32frombits(b.share.Load())) }

// SetShare stores the share; values outside 0..1 are clamped, NaN counts as 0.
// Storing it is its publication: the next pick anywhere sees it.
func (b *Backend) SetShare(s float64) {
	if !(s > 0) {
		s = 0
	}
	b.share.Store(math.Float32bits(float32(min(s, 1))))
}

// Admin returns the operator's word.
func (b *Backend) Admin() Admin { return Admin(b.admin.Load()) }

// SetAdmin stores the operator's word.
func (b *Backend) SetAdmin(a Admin) { b.admin.Store(uint32(a)) }

// Unreachable reports the fact that a connection attempt within the last 10 s
// was refused, unreachable or timed out. Facts hold in panic too.
func (b *Backend) Unreachable() bool { return b.flags.Load()&flagUnreachable != 0 }

// SetUnreachable stores that fact.
func (b *Backend) SetUnreachable(v bool) { b.setFlag(flagUnreachable, v) }

// Suspect reports that one refused connection was seen and the verdict is
// still out: the backend is skipped while others exist.
func (b *Backend) Suspect() bool { return b.flags.Load()&flagSuspect != 0 }

// SetSuspect stores the suspicion.
func (b *Backend) SetSuspect(v bool) { b.setFlag(flagSuspect, v) }

func (b *Backend) setFlag(f uint32, v bool) {
	if v {
		b.flags.Or(f)
	} else {
		b.flags.And(^f)
	}
}

// InFlight returns the number of reserved slots.
func (b *Backend) InFlight() int64 { return b.inFlight.Load() }

// SetLimit sets the most requests in flight; 0 means no limit.
func (b *Backend) SetLimit(n int64) { b.limit.Store(n) }

// Limit returns the most requests in flight; 0 means no limit.
func (b *Backend) Limit() int64 { return b.limit.Load() }

// Reserve takes a slot, or refuses when the limit is reached. Every successful
// Reserve must be paired with one Release.
func (b *Backend) Reserve() bool {
	n := b.inFlight.Add(1)
	if l := b.limit.Load(); l > 0 && n > l {
		b.inFlight.Add(-1)
		return false
	}
	return true
}

// Release gives a slot back.
func (b *Backend) Release() { b.inFlight.Add(-1) }

// Full reports whether a Reserve would be refused now.
func (b *Backend) Full() bool {
	l := b.limit.Load()
	return l > 0 && b.inFlight.Load() >= l
}

// Charge keeps a failed attempt counted as load for about the pool's mean
// latency, so that a backend which fails fast does not look idle: the charge
// decays exponentially with time constant mean, so its integral equals that
// of one request held for mean. elapsed, the time the attempt really took, is
// already paid. A mean of zero or less charges nothing.
func (b *Backend) Charge(now Instant, mean, elapsed time.Duration) { b.charge(now, mean, elapsed) }

// SetMeanLatency stores the pool's mean latency, the time constant by which
// what Charge left decays. The pool's core calls it as its estimate moves.
func (b *Backend) SetMeanLatency(d time.Duration) { b.mean.Store(int64(d)) }

// Load returns the requests in flight plus what failed attempts still charge.
func (b *Backend) Load(now Instant) float64 {
	n := float64(b.inFlight.Load())
	if g := b.ghost.Load(); g != 0 {
		n += b.ghostAt(g, now)
	}
	return n
}

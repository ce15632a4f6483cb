// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"sync/atomic"
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
	// Everything that a pick or a reservation touches lies in the first 64
	// bytes, one cache line: with ten thousand backends the misses are the cost
	// of a pick, and with three the reservation pulls this line in any case.
	status   atomic.Uint64 // share as float32 bits << 32 | flags
	limit    atomic.Int64  // requests in flight allowed; MaxInt64 = no limit
	inFlight atomic.Int64
	ghost    atomic.Uint64 // failed attempts still counted as load, see ghost.go
	total    *Total        // set once, before publication; nil: nobody asks for the sum
	hash     BackendID     // constant after NewBackend
	owner    any           // as attachment: leads to what the pool counts

	// Constant after NewBackend.
	id      string
	address string

	// Set once by whoever owns the pool, before the first Set that contains the
	// backend is published: leads to the data plane's connections.
	attachment any

	mean     atomic.Int64         // nanoseconds; time constant of the ghost's decay
	estimate atomic.Uint64        // latency as peak_ewma knows it, see peak_ewma.go
	ramp     atomic.Pointer[Ramp] // read only when flagRamp is set

	_ [56]byte // 192 bytes in all: no two backends share a cache line
}

const (
	adminMask       = 3 // the Admin value
	flagUnreachable = 1 << 2
	flagSuspect     = 1 << 3
	flagRamp        = 1 << 4

	// readyStatus is the status of a backend about which there is nothing to
	// say: enabled, share 1, no flag. One comparison recognises it.
	readyStatus = 0x3f800000 << 32 // float32 1.0
)

// NewBackend returns an enabled backend with share 1 and no limit. id names it
// within its pool (host:port by default), address is where it is dialed.
func NewBackend(id, address string) *Backend {
	b := &Backend{id: id, hash: IDOf(id), address: address}
	b.SetShare(1)
	b.SetLimit(0)
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

// SetOwner hangs on the backend what the owner of the pool keeps about it, on
// the line that a pick has read anyway. It must be called before the backend is
// published and at most once.
func (b *Backend) SetOwner(v any) { b.owner = v }

// Owner returns what SetOwner stored, or nil.
func (b *Backend) Owner() any { return b.owner }

// Share returns the admission probability that health grants, 0..1, without a
// ramp: see ShareAt.
func (b *Backend) Share() float64 { return float64(shareOf(b.status.Load())) }

// SetShare stores the share; values outside 0..1 are clamped, NaN counts as 0.
// Storing it is its publication: the next pick anywhere sees it.
func (b *Backend) SetShare(s float64) {
	if !(s > 0) {
		s = 0
	}
	b.setStatus(0xffffffff<<32, uint64(math.Float32bits(float32(min(s, 1))))<<32)
}

// Admin returns the operator's word.
func (b *Backend) Admin() Admin { return Admin(b.status.Load() & adminMask) }

// SetAdmin stores the operator's word; a value that is none counts as Disabled.
func (b *Backend) SetAdmin(a Admin) { b.setStatus(adminMask, uint64(min(a, Disabled))) }

// Unreachable reports the fact that a connection attempt within the last 10 s
// was refused, unreachable or timed out. Facts hold in panic too.
func (b *Backend) Unreachable() bool { return b.status.Load()&flagUnreachable != 0 }

// SetUnreachable stores that fact.
func (b *Backend) SetUnreachable(v bool) { b.setFlag(flagUnreachable, v) }

// Suspect reports that one refused connection was seen and the verdict is
// still out: the backend is skipped while others exist.
func (b *Backend) Suspect() bool { return b.status.Load()&flagSuspect != 0 }

// SetSuspect stores the suspicion.
func (b *Backend) SetSuspect(v bool) { b.setFlag(flagSuspect, v) }

func (b *Backend) setFlag(f uint64, v bool) {
	if v {
		b.setStatus(f, f)
	} else {
		b.setStatus(f, 0)
	}
}

// setStatus replaces the bits of mask. Share, the operator's word and the facts
// have different writers, so the word they share is changed by compare-and-swap.
func (b *Backend) setStatus(mask, bits uint64) {
	for {
		old := b.status.Load()
		if next := old&^mask | bits; next == old || b.status.CompareAndSwap(old, next) {
			return
		}
	}
}

// shareOf returns the share in a status word.
func shareOf(status uint64) float32 { return math.Float32frombits(uint32(status >> 32)) }

// InFlight returns the number of reserved slots.
func (b *Backend) InFlight() int64 { return b.inFlight.Load() }

// SetLimit sets the most requests in flight; 0 or less means no limit.
func (b *Backend) SetLimit(n int64) {
	if n <= 0 {
		n = math.MaxInt64 // so that one comparison does
	}
	b.limit.Store(n)
}

// Limit returns the most requests in flight; 0 means no limit.
func (b *Backend) Limit() int64 {
	if n := b.limit.Load(); n < math.MaxInt64 {
		return n
	}
	return 0
}

// Reserve takes a slot, or refuses when the limit is reached. Every successful
// Reserve must be paired with one Release.
func (b *Backend) Reserve() bool {
	if b.inFlight.Add(1) > b.limit.Load() {
		b.inFlight.Add(-1)
		return false
	}
	if b.total != nil {
		b.total.add(b.hash, 1)
	}
	return true
}

// Release gives a slot back.
func (b *Backend) Release() {
	b.inFlight.Add(-1)
	if b.total != nil {
		b.total.add(b.hash, -1)
	}
}

// Full reports whether a Reserve would be refused now.
func (b *Backend) Full() bool { return b.inFlight.Load() >= b.limit.Load() }

// SPDX-License-Identifier: Apache-2.0

package balance

import "time"

// Ramp grants a backend its share little by little: From at Start, in a
// straight line up to 1 at Start + Window. It is a pure function of the time of
// the pick, so nobody has to store a share every now and then. Immutable.
//
// Example: 10 % over 30 s. After 0 s 0.1, after 15 s 0.55, after 30 s 1.
type Ramp struct {
	Start  Instant
	Window time.Duration // 0 or less: over at once
	From   float64       // 0..1
}

// At returns the ramp's share at an instant, 0..1. A nil ramp is over; before
// Start it is From.
func (r *Ramp) At(now Instant) float64 {
	if r == nil || r.Window <= 0 {
		return 1
	}
	from := min(max(r.From, 0), 1)
	passed := float64(now.Sub(r.Start)) / float64(r.Window)
	return from + (1-from)*min(max(passed, 0), 1)
}

// SetRamp starts a ramp, nil ends it. The share in force is the smaller of
// ramp and SetShare's. Whoever owns the pool calls it, one call at a time.
func (b *Backend) SetRamp(r *Ramp) {
	if r == nil {
		b.setFlag(flagRamp, false)
		b.ramp.Store(nil)
		return
	}
	b.ramp.Store(r)
	b.setFlag(flagRamp, true)
}

// Ramp returns the ramp under way, or nil. One whose time is over may still be
// returned.
func (b *Backend) Ramp() *Ramp { return b.ramp.Load() }

// ShareAt returns the share in force at an instant: what SetShare stored, or
// what the ramp grants if that is less.
func (b *Backend) ShareAt(now Instant) float64 {
	return float64(b.shareAt(b.status.Load(), now))
}

// shareAt is ShareAt for a status word that has been read already.
func (b *Backend) shareAt(status uint64, now Instant) float32 {
	s := shareOf(status)
	if status&flagRamp != 0 {
		s = min(s, float32(b.ramp.Load().At(now)))
	}
	return s
}

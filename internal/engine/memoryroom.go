// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"runtime"
)

// What somebody new takes, measured, in bytes: the kernel's socket, stacks, the
// buffer of a head, state.
const (
	roomConn    = 24 << 10 // a client connection up to its request
	roomConnTLS = 56 << 10 // with its handshake

	// roomLeast is what is granted near the end: a dozen connections. A look costs a
	// tenth of a millisecond, which is little for so many.
	roomLeast = 256 << 10

	// groupReserve is what is left free of a small group, whose 3 % are less than
	// what is on its way when memory becomes short: requests and connections that
	// were let in, buffers lent for one read, garbage until the next collection.
	groupReserve = 4 << 20
)

// grow reports that somebody may take n bytes who took none before. Looks at fixed
// times come too late for many at once: 2000 uploads take 64 MiB between two of
// them. So each look grants half of the room that there is, less what was granted
// and may not have been taken yet, and who finds the grant used up looks. Between
// two looks it costs one atomic addition. Who is told true gives nothing back: the
// next look finds what is left.
func (m *memory) grow(n int64) bool {
	if m.short.Load() {
		return false
	}
	if m.room.Add(-n) >= 0 {
		return true
	}
	m.mu.Lock()
	looked := m.room.Load() < 0 // nobody else has looked meanwhile
	if looked {
		m.look()
	}
	m.mu.Unlock()
	if looked {
		runtime.Gosched() // who was let in takes what was granted before more are let in
	}
	return !m.short.Load()
}

// grant says how much may be taken until the next look. m.mu is held.
func (m *memory) grant(group int64) {
	next := int64(math.MaxInt64 / 2)
	left := m.room.Load()
	if m.within > 0 && group > 0 {
		free := int64(allShort*float64(m.within)) - group
		next = max((free-(m.granted-left))/2, roomLeast)
	}
	m.granted = next
	m.room.Add(next - left)
}

// usable is what of a group's limit weir works with: all of it, or less by what of
// groupReserve the thresholds would not leave. Of less than 16 MiB it is half.
func usable(limit int64) int64 {
	less := groupReserve - int64((1-allShort)*float64(limit))
	return max(limit-max(less, 0), limit/2)
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import "sync/atomic"

// Budget bounds what many connections together hold beyond the buffers that each
// has: large heads, content kept for a replay. Unlike a look at the process's
// memory it is never late. The zero value and nil are without bound; it is safe
// for concurrent use.
type Budget struct {
	most atomic.Int64
	used atomic.Int64
}

// SetLimit changes the bound; 0: none. What is held stays.
func (b *Budget) SetLimit(n int64) { b.most.Store(n) }

// Take takes n bytes, or refuses; who took them gives them back.
func (b *Budget) Take(n int64) bool {
	if b == nil {
		return true
	}
	used := b.used.Add(n)
	if most := b.most.Load(); most > 0 && used > most {
		b.used.Add(-n)
		return false
	}
	return true
}

// Hold takes n bytes whether there is room for them or not.
func (b *Budget) Hold(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

// Pressure is the part of the bound that is taken: above 1 when more was held, and
// 0 without a bound.
func (b *Budget) Pressure() float64 {
	if b == nil {
		return 0
	}
	most := b.most.Load()
	if most <= 0 {
		return 0
	}
	return float64(b.used.Load()) / float64(most)
}

// Give gives n bytes back.
func (b *Budget) Give(n int64) {
	if b != nil && n != 0 {
		b.used.Add(-n)
	}
}

// Limit returns the bound; 0: none.
func (b *Budget) Limit() int64 { return b.most.Load() }

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

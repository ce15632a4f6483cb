// SPDX-License-Identifier: Apache-2.0

package balance

import "sync/atomic"

// totalStripes is how many lines a Total is spread over, so that cores which
// place requests on different backends seldom write the same one.
const totalStripes = 8

// Total counts the requests in flight on all backends of a pool. It is what
// bounded loads compare with. Reserve and Release keep it. The zero value is
// ready; all methods are safe for concurrent use.
type Total struct {
	stripes [totalStripes]struct {
		n atomic.Int64
		_ [56]byte
	}
}

// InFlight returns the sum. While others reserve and release it may be off by
// as many as are doing so at that moment.
func (t *Total) InFlight() int64 {
	n := int64(0)
	for i := range t.stripes {
		n += t.stripes[i].n.Load()
	}
	return max(n, 0)
}

func (t *Total) add(id BackendID, n int64) { t.stripes[id%totalStripes].n.Add(n) }

// A TotalUser is a Policy that compares a backend's load with that of the whole
// pool. The owner of the pool gives each backend the pool's Total (SetTotal)
// when UsesTotal reports true.
type TotalUser interface{ UsesTotal() bool }

// SetTotal makes Reserve and Release count in t as well. It must be called
// before the backend is published and at most once.
func (b *Backend) SetTotal(t *Total) { b.total = t }

// Total returns what SetTotal stored, or nil.
func (b *Backend) Total() *Total { return b.total }

// SPDX-License-Identifier: Apache-2.0

package observe

// StickyOutcome says what became of the session of a request that a backend
// answered.
type StickyOutcome uint8

// The outcomes of weir_sticky_total.
const (
	StickyNone    StickyOutcome = iota // the pool keeps no sessions, or nobody answered
	StickyNew                          // the request came without the cookie
	StickyKept                         // the backend that the cookie names has answered
	StickyMoved                        // another one has: that one was down, draining, ejected, full or has failed
	StickyUnknown                      // the cookie names nobody: it was forged, damaged, made with another key, or its backend has left
	stickyOutcomes
)

var stickyOutcomeNames = [stickyOutcomes]string{"", "new", "kept", "moved", "unknown"}

// String is the word for metrics and logs; empty for none.
func (o StickyOutcome) String() string { return stickyOutcomeNames[min(o, stickyOutcomes-1)] }

var descSticky = desc("weir_sticky_total", "Answers to requests of pools that keep sessions by a cookie, by what became of the session; moved are those that another backend answered than the one that the cookie names.", "pool", "outcome")

// Sticky counts a request that a backend answered.
func (p *PoolSeries) Sticky(o StickyOutcome) {
	if o < stickyOutcomes {
		p.sticky[o].Add(1)
	}
}

func (s sink) sticky(p *PoolSeries) {
	for o := StickyNew; o < stickyOutcomes; o++ {
		if n := p.sticky[o].Load(); n > 0 {
			s.counter(descSticky, n, p.name, o.String())
		}
	}
}

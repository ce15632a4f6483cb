// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// Hedge says when an attempt without an answer gets a second one beside it, on
// another backend. The zero value is off.
type Hedge struct {
	After   time.Duration // fixed; 0: by Percent
	Percent int           // when so many percent of the pool's answers of late would have come
}

// On reports whether there are hedges.
func (h *Hedge) On() bool { return h.After > 0 || h.Percent > 0 }

// HedgeAfter returns how long an attempt is waited for before its hedge, 0 when
// it gets none: it is off, one attempt is all there may be, or the pool's latency
// is not known yet.
func (p *Pool) HedgeAfter(rr *RetryRules) time.Duration {
	switch h := &rr.Hedge; {
	case rr.Attempts < 2:
		return 0
	case h.After > 0:
		return h.After
	case h.Percent > 0:
		return p.Latency(h.Percent)
	default:
		return 0
	}
}

// Hedge grants a second attempt beside one under way, and records it in t. It
// counts as an attempt and is paid for from the retry budget, and is not made when
// it could hardly answer before by (0: never due).
func (p *Pool) Hedge(now balance.Instant, rr *RetryRules, t *Try, by balance.Instant) bool {
	if t.N+t.Hedges+2 > rr.Attempts || by != 0 && now.Add(p.Latency(Hopeless)) >= by || !p.budget.Load().spend(now, false) {
		return false
	}
	t.Hedges++
	return true
}

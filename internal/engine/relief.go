// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

const (
	reliefEvery = 100 * time.Millisecond // kept connections are looked for so often
	reliefTold  = 10 * time.Second       // and it is said so often
)

// relief gives descriptors back when none is left but reserved ones: kept
// connections to backends save a handshake each, and whoever has none cannot be
// served at all. Its method may be called from anywhere.
type relief struct {
	log  *slog.Logger
	thin func() int // closes some kept connections, and returns how many

	mu     sync.Mutex // guards what follows
	looked balance.Instant
	told   balance.Instant
	left   int // given back by the last look and not taken yet
}

// one reports that a descriptor was given back for the caller.
func (r *relief) one() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := clock.Now()
	if r.looked == 0 || now.Sub(r.looked) >= reliefEvery {
		r.looked, r.left = now, r.thin()
		if r.left > 0 && (r.told == 0 || now.Sub(r.told) >= reliefTold) {
			r.told = now
			r.log.Warn("descriptors run short: connections kept to backends are closed to make room", "closed", r.left)
		}
	}
	if r.left == 0 {
		return false
	}
	r.left--
	return true
}

// thinKept closes half of what is kept to each backend.
func (e *Engine) thinKept() (closed int) {
	for _, p := range e.livePools() {
		s := p.pool.Snapshot()
		for i := range s.Backends {
			if t := targetOf(s.Backends[i].Backend); t != nil {
				closed += t.up.Thin()
			}
		}
	}
	return closed
}

// SPDX-License-Identifier: Apache-2.0

package observe

import "sync/atomic"

// TunnelCause is why weir ended a tunnel. The zero value is that it did not:
// one of its peers did.
type TunnelCause uint8

// The causes.
const (
	TunnelByPeer      TunnelCause = iota
	TunnelByShutdown              // the process ends, or another one has taken over
	TunnelByDrain                 // the backend drains, or was removed
	TunnelByBroken                // the backend is broken, and on_broken says close
	TunnelByAge                   // it reached its greatest age
	TunnelByRebalance             // its backend had more than its part
	TunnelByIdle                  // nothing moved
	// TunnelCauses is their number.
	TunnelCauses
)

var tunnelCauseNames = [TunnelCauses]string{"peer", "shutdown", "drain", "broken", "max_age", "rebalance", "idle"}

// String returns the word in logs, in Close frames and in the label cause.
func (c TunnelCause) String() string {
	if c < TunnelCauses {
		return tunnelCauseNames[c]
	}
	return "unknown"
}

// TunnelOutcome is how a tunnel ended that weir ended.
type TunnelOutcome uint8

// The outcomes.
const (
	TunnelClosed     TunnelOutcome = iota // both peers answered the Close frame, or closed
	TunnelUnanswered                      // at least one did not in time, and was cut off
	TunnelCut                             // no Close frame could be placed
	// TunnelOutcomes is their number.
	TunnelOutcomes
)

var tunnelOutcomeNames = [TunnelOutcomes]string{"closed", "unanswered", "cut"}

// String returns the word in logs and in the label outcome.
func (o TunnelOutcome) String() string {
	if o < TunnelOutcomes {
		return tunnelOutcomeNames[o]
	}
	return "unknown"
}

// tunnelEnds counts the tunnels that weir ended.
type tunnelEnds [TunnelCauses][TunnelOutcomes]atomic.Uint64

// TunnelOpened says that the pool has tunnels: weir_tunnels is exposed from then
// on.
func (p *PoolSeries) TunnelOpened() {
	if !p.tunnelled.Load() {
		p.tunnelled.Store(true)
	}
}

// TunnelEnded counts a tunnel that weir ended.
func (p *PoolSeries) TunnelEnded(why TunnelCause, how TunnelOutcome) {
	if why != TunnelByPeer && why < TunnelCauses && how < TunnelOutcomes {
		p.tunnelEnds[why][how].Add(1)
	}
}

// StreamEnded counts a stream that weir ended: server-sent events, or a gRPC stream.
func (p *PoolSeries) StreamEnded(why TunnelCause) {
	if why != TunnelByPeer && why < TunnelCauses {
		p.streamEnds[why].Add(1)
	}
}

var (
	descStreamEnds = desc("weir_streams_ended_total", "Server-sent events and gRPC streams that weir ended, by why.", "pool", "cause")
	descTunnels    = desc("weir_tunnels", "Open tunnels (WebSocket) to the backend.", "pool", "backend")
	descTunnelEnds = desc("weir_tunnels_ended_total", "Tunnels that weir ended, by why and by whether the peers answered its Close frame.", "pool", "cause", "outcome")
)

// tunnelEnds exposes the counts of tunnels and streams of one pool that are not zero.
func (s sink) tunnelEnds(p *PoolSeries) {
	for why := range p.tunnelEnds {
		if n := p.streamEnds[why].Load(); n > 0 {
			s.counter(descStreamEnds, n, p.name, tunnelCauseNames[why])
		}
		for how := range p.tunnelEnds[why] {
			if n := p.tunnelEnds[why][how].Load(); n > 0 {
				s.counter(descTunnelEnds, n, p.name, tunnelCauseNames[why], tunnelOutcomeNames[how])
			}
		}
	}
}

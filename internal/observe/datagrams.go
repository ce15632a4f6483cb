// SPDX-License-Identifier: Apache-2.0

package observe

// DatagramGauges is what has become of datagrams of a udp listener beside those that
// were passed on, ever.
type DatagramGauges struct {
	Evicted uint64      // flows that made room for others
	Dropped []DropCount // datagrams
}

// DropCount is how many datagrams went nowhere for a reason.
type DropCount struct {
	Reason string
	N      uint64
}

var (
	descDatagrams        = desc("weir_session_datagrams_total", "Datagrams of flows (UDP) that were passed on: in from clients, out to them.", "listener", "route", "pool", "backend", "direction")
	descDatagramsDropped = desc("weir_datagrams_dropped_total", "Datagrams that went nowhere: overflow in the kernel's queue of the listener, refused without a place or a backend for their flow, unreachable, no_room in a socket that was sent to, too_big, truncated.", "listener", "reason")
	descFlowsEvicted     = desc("weir_flows_evicted_total", "Flows that ended to make room, as their client had not come back often enough to be known.", "listener")
)

// datagrams exposes what has become of a listener's datagrams; nil: it has none.
func (s sink) datagrams(listener string, g *DatagramGauges) {
	if g == nil {
		return
	}
	s.counter(descFlowsEvicted, g.Evicted, listener)
	for _, d := range g.Dropped {
		s.counter(descDatagramsDropped, d.N, listener, d.Reason)
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// flows is what a udp listener does with the datagrams of its clients. It implements
// listen.PacketServer, and l4.Doorkeeper.
type flows struct {
	streams *streams // whose routes these are
	*l4.Flows

	ln *listen.Listener // set before the first datagram
}

func (f *front) newFlows(s *streams) *flows {
	e := f.e
	out := &flows{streams: s}
	out.Flows = l4.NewFlows(l4.FlowOptions{
		Relay: f.flows, Sessions: lasting[*l4.Flow]{f.tunnels}, Door: out, Backend: upstreamOf,
		Route: func() *l4.Route {
			r := s.routes()
			if r == nil || len(r.all) == 0 {
				return nil
			}
			return r.all[0]
		},
		Reserve: func(l *pool.Lease, name, backend, url string) bool {
			p := e.gen.Load().pools[name]
			return p != nil && p.pool.Adopt(l, backend, url, clock.Now())
		},
		Refused: func(client netip.AddrPort, reason message.Reason, detail string) {
			e.log.Warn("flow refused", "listener", out.ln.Name(), "client", client, "reason", reason.String(), "detail", detail)
		},
		Failed: e.failures.Note,
		Bug:    e.bug,
	})
	return out
}

// Open implements listen.PacketServer.
func (s *flows) Open(p *listen.PacketSockets) error { return s.Flows.Open(p) }

// Close implements listen.PacketServer.
func (s *flows) Close(p *listen.PacketSockets, done func()) { s.Flows.Close(p, done) }

// Enter implements l4.Doorkeeper.
func (s *flows) Enter(client netip.Addr) (l4.Place, l4.Admission) {
	p, why, ok := s.ln.EnterFlow(client)
	if ok {
		return l4.Place(p), l4.Admitted
	}
	switch why {
	case listen.ProcessLimit:
		return l4.Place{}, l4.FullProcess
	case listen.ClientLimit:
		return l4.Place{}, l4.FullClient
	case listen.NoMemory:
		return l4.Place{}, l4.NoMemory
	default:
		return l4.Place{}, l4.FullListener
	}
}

// Leave implements l4.Doorkeeper.
func (s *flows) Leave(client netip.Addr, p l4.Place) { s.ln.LeaveFlow(client, listen.Place(p)) }

// Refuse implements l4.Doorkeeper.
func (s *flows) Refuse(client netip.AddrPort, why l4.Admission) {
	switch why {
	case l4.FullProcess:
		s.ln.RefuseFlow(client, listen.ProcessLimit)
	case l4.FullClient:
		s.ln.RefuseFlow(client, listen.ClientLimit)
	case l4.NoMemory:
		s.ln.RefuseFlow(client, listen.NoMemory)
	default:
		s.ln.RefuseFlow(client, listen.ListenerLimit)
	}
}

// Evict implements l4.Doorkeeper.
func (s *flows) Evict(client netip.AddrPort) { s.ln.EvictFlow(client) }

// binds are the addresses of a listener as sockets are checked by.
func binds(l *config.Listener) []string {
	if !l.Datagrams() {
		return l.Bind
	}
	out := make([]string, len(l.Bind))
	for i, b := range l.Bind {
		out[i] = listen.PacketsBind(b)
	}
	return out
}

// datagrams are the counts of a udp listener by the words of metrics; nil for others.
func (l *liveListener) datagrams() *observe.DatagramGauges {
	if !l.cfg.Datagrams() {
		return nil
	}
	c := l.srv.flows.Counts()
	return &observe.DatagramGauges{Evicted: c.Evicted, Dropped: []observe.DropCount{
		{Reason: "overflow", N: l.ln.PacketsLost()}, {Reason: "refused", N: c.Refused}, {Reason: "unreachable", N: c.Unreachable},
		{Reason: "no_room", N: c.Full}, {Reason: "too_big", N: c.TooBig}, {Reason: "truncated", N: c.Truncated},
	}}
}

// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/observe"
)

// Facts implements LongLived.
func (t *tunnel) Facts() observe.LongLived { return t.facts }

// Facts implements LongLived.
func (s *stream) Facts() observe.LongLived { return s.facts }

// facts says whose the exchange is, once it has a route.
func (e *exchange) facts(kind string) observe.LongLived {
	r := &e.rec
	client := e.ci.Peer
	if client.Addr() != e.client { // a header has named another one
		client = netip.AddrPortFrom(e.client, 0)
	}
	return observe.LongLived{
		Kind: kind, Protocol: "http", Listener: r.Listener, Route: r.Route, Pool: r.Pool,
		Client: client, Name: string(r.Host),
	}
}

// eachAtOnce is how many are asked while others wait to enter and leave.
const eachAtOnce = 256

// Each calls f for all that are open, with the backend that they lead to and whether
// they were told to end. It does not keep others from entering and leaving for longer
// than it takes to list them: what comes or goes meanwhile may be left out. f must not
// wait, and must not call methods of the Tunnels.
func (s *Tunnels) Each(f func(b *balance.Backend, t LongLived, told bool)) {
	type member struct {
		b *balance.Backend
		t LongLived
	}
	s.mu.Lock()
	all := make([]member, 0, s.open)
	for b, o := range s.on {
		for t := range o.all {
			all = append(all, member{b, t})
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(all, eachAtOnce) {
		s.mu.Lock()
		for _, m := range some {
			o := s.on[m.b]
			if o == nil {
				continue
			}
			if _, ok := o.all[m.t]; ok {
				_, untold := o.untold[m.t]
				f(m.b, m.t, !untold)
			}
		}
		s.mu.Unlock()
	}
}

// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// Idlest offers the connections on which nothing is under way. Those that came in
// the last second and have not asked yet are left out: their first request is on its
// way. It walks all connections.
func (s *Server) Idlest(x *netconn.Idlest) {
	now := clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := s.head; l != nil; l = l.next {
		if st := l.state.Load(); st != stateIdle && st != stateParked || l.isNew(now) {
			continue
		}
		if since := balance.Instant(l.quiet.Load()); x.Wants(since) {
			x.Offer(netconn.Idle{Since: since, End: l.closeIfIdle})
		}
	}
}

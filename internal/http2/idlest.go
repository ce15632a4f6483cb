// SPDX-License-Identifier: Apache-2.0

package http2

import "github.com/weirlb/weir/internal/netconn"

// Idlest offers the connections without a stream that were not told to end yet. Those
// that are new are left out: their first request is on its way. To end one is to tell
// the client by GOAWAY; the connection is closed when it has seen that, or a second
// later. It walks all connections.
func (s *Server) Idlest(x *netconn.Idlest) {
	for _, c := range s.all() {
		if c.leaving.Load() || c.isNew() {
			continue
		}
		c.mu.Lock()
		since, idle := c.quiet, c.running == 0 && c.fault == nil
		c.mu.Unlock()
		if idle && x.Wants(since) {
			x.Offer(netconn.Idle{Since: since, End: func() bool { c.leave(); return false }})
		}
	}
}

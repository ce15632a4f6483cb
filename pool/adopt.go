// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/weirlb/weir/balance"

// Adopt reserves a slot for what another process has begun on a backend and this one
// goes on with. It is no new work: neither the operator's word nor health keeps it
// out, as neither ends what is in flight. It reports false when the pool does not
// have the backend at that address, or it is full.
func (p *Pool) Adopt(l *Lease, id, url string, now balance.Instant) bool {
	if l.m != nil {
		leaseBugs.Add(1)
		l.drop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.core.byID[id]
	if m == nil || m.b.Address() != url || !m.b.Reserve() {
		return false
	}
	l.take(p, m, m.b, now)
	if p.set.Load().Limits.PoolRequests > 0 {
		p.inFlight.Add(1)
		l.counted = true
	}
	return true
}

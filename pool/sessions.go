// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/weirlb/weir/balance"

// Sessions that stay, Config.KeepSessions: a request that prefers a backend is part
// of something that began there and is no new work. Where sessions are kept, a
// backend that the operator drains, or gives no weight, goes on getting requests
// that prefer it; with a drain, until the last DrainSpread of its deadline, which
// is left for what is in flight then. A backend that was disabled, that has left
// or that says it is not ready gets none of them: it cannot be expected to serve.

// session returns the backend that a request prefers, if it is kept there, wherever
// new work goes.
func (v *view) session(r *balance.Request) *balance.Backend {
	b := v.by[r.Prefer]
	if b == nil || b.Full() || b.Unreachable() || b.Suspect() || r.Tried.Len() != 0 && r.Tried.Has(b.Hash()) {
		return nil
	}
	m, ok := b.Owner().(*member)
	switch {
	case !ok || !m.admits(r):
		return nil
	case b.Share() <= 0 && !m.open.Load():
		return nil
	}
	return b
}

// admits reports whether the operator's word lets a request in.
func (m *member) admits(r *balance.Request) bool {
	switch m.b.Admin() {
	case balance.Enabled:
		return true
	case balance.Draining:
		return r.Prefer == m.b.Hash() && m.keeps.Load()
	}
	return false
}

// endSessions ends the time in which a draining member keeps its sessions.
func (c *core) endSessions(m *member) {
	if !m.keeps.Swap(false) {
		return
	}
	c.do(effect{kind: doCloseIdle, m: m})
	c.notice(m, Notice{Kind: SessionsOver, Left: m.b.InFlight()})
	c.emptied(m)
}

// bySession finds the members that sessions are kept on; nil when none are.
func (p *publication) bySession() map[balance.BackendID]*balance.Backend {
	if !p.sessions {
		return nil
	}
	by := make(map[balance.BackendID]*balance.Backend, len(p.members))
	for _, m := range p.members {
		by[m.b.Hash()] = m.b
	}
	return by
}

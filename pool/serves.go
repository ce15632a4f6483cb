// SPDX-License-Identifier: Apache-2.0

package pool

// Serves reports whether a request would be given a backend now, room
// permitting: in panic, too, when the pool then serves. It is false when health
// or the operator leaves no candidate, or when all requests are shed. It takes
// the core's lock, for a moment.
func (p *Pool) Serves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.admit > 0 && !p.core.starved()
}

// SPDX-License-Identifier: Apache-2.0

package pool

// Pending reports whether anything has happened since the last call that gives
// Advance work before its time. It is for a simulation, which would otherwise
// call Advance after every event; with Start it must not be called. It takes no
// lock.
func (p *Pool) Pending() bool {
	if len(p.wakeup) == 0 {
		return false
	}
	<-p.wakeup
	return true
}

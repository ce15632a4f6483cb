// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"
)

// The phases of the process, as the API names them.
const (
	phaseStarting int32 = iota
	phaseServing
	phaseDraining
	phaseLeaving // another process has taken over
)

// probeGrace is how long readiness waits for the first round of probes (C10):
// longer would keep a balancer out because of its backends.
const probeGrace = 5 * time.Second

func (e *Engine) phase() string {
	switch e.state.Load() {
	case phaseDraining:
		return "draining"
	case phaseLeaving:
		return "handed_over"
	case phaseServing:
		return "serving"
	default:
		return "starting"
	}
}

// isReady is NotReady for the data plane.
func (e *Engine) isReady() bool { return len(e.NotReady(nil)) == 0 }

// NotReady implements admin.Controller: why traffic should not be sent here.
// Pools that the caller does not name only delay readiness until their first
// round of probes; pools that it names must also have somebody to give requests
// to. In panic that is so while the pool then serves: to take weir out because
// its checks fail everywhere would turn a doubt into an outage.
func (e *Engine) NotReady(pools []string) []string {
	switch e.state.Load() {
	case phaseDraining:
		return []string{"draining"}
	case phaseStarting:
		return []string{"listeners are not bound yet"}
	}
	var why []string
	g := e.gen.Load()
	if !e.inherited && time.Since(e.started) < probeGrace {
		for _, p := range e.livePools() {
			if p.undiscovered() {
				why = append(why, fmt.Sprintf("pool %s: waiting for its first backends to be found", p.name))
			} else if !p.pool.Ready() {
				why = append(why, fmt.Sprintf("pool %s: waiting for the first round of probes", p.name))
			}
		}
	}
	for _, name := range pools {
		p := g.pools[name]
		switch {
		case p == nil:
			why = append(why, fmt.Sprintf("pool %s: there is none", name))
		case !p.pool.Serves():
			why = append(why, fmt.Sprintf("pool %s: no backend may take requests", name))
		}
	}
	return why
}

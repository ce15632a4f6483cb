// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
)

// goals compares a plan with what its check block says of the world around
// weir. A goal that is written and missed is an error of check; run serves all
// the same, because no traffic depends on it.
func goals(plan *config.Plan) []string {
	var missed []string
	miss := func(format string, args ...any) { missed = append(missed, fmt.Sprintf(format, args...)) }
	c := &plan.Check
	if c.Detection > 0 {
		for i := range plan.Pools {
			p := &plan.Pools[i]
			if p.Active.Off {
				miss("pool %s has no active checks, so check.slo.detection (%v) is not met: turn health.active on", p.Name, c.Detection)
			} else if d := engine.DetectionOf(p).Within; d > c.Detection {
				miss("pool %s can take %s to notice a dead backend, longer than check.slo.detection (%v): shorten health.active.interval, timeout or fall",
					p.Name, seconds(d.Seconds()), c.Detection)
			}
		}
	}
	if s := &plan.Shutdown; c.Grace > 0 && s.Deadline >= c.Grace {
		miss("shutdown.deadline (%v) is not below check.grace (%v): weir would be killed while it drains; shorten the deadline, or lengthen the grace period",
			s.Deadline, c.Grace)
	}
	if f := c.Front; f != nil {
		if notices := time.Duration(f.Fall) * f.Interval; plan.Shutdown.Delay < notices {
			miss("shutdown.delay (%v) is shorter than what the balancer in front needs to notice (%v, fall x interval of check.front): lengthen the delay",
				plan.Shutdown.Delay, notices)
		}
		for i := range plan.Listeners {
			l := &plan.Listeners[i]
			if idle := l.Timeouts.Idle; idle > 0 && idle <= f.Idle {
				miss("listener %s closes idle connections after %v, not later than the balancer in front (check.front.idle %v): "+
					"a request may meet a connection that is being closed; lengthen timeouts.idle", l.Name, idle, f.Idle)
			}
		}
	}
	return missed
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"

	"github.com/weirlb/weir/internal/config"
)

// boundFlows has the flows of all udp listeners together leave descriptors for
// connections, and says when the listeners' own ceilings cannot be reached.
func (e *Engine) boundFlows(plan *config.Plan) {
	files := e.fileLimit.Load()
	most := maxFlows(files)
	e.front.gate.SetFlows(most)
	wanted := int64(0)
	for i := range plan.Listeners {
		if l := &plan.Listeners[i]; l.Datagrams() && l.MaxConnections > 0 {
			wanted += min(l.MaxConnections, math.MaxInt64-wanted)
		}
	}
	if most > 0 && wanted > int64(most) {
		e.log.Warn("udp listeners may have more flows by their limits.max_connections than there are descriptors for: raise the limit of open files (LimitNOFILE)",
			"together", wanted, "at_most", most, "descriptors", files)
	}
}

// maxFlows is how many flows of datagrams there may be, each of which has a descriptor:
// with max_connections left at auto half of those connections stay possible. 0: no
// limit is known.
func maxFlows(files uint64) int {
	if files == 0 || files > math.MaxInt32 {
		return 0
	}
	return int(max((int64(files)-descriptorReserve)*6/10, 1))
}

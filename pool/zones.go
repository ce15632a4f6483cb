// SPDX-License-Identifier: Apache-2.0

package pool

// Zone keeps work in the balancer's own zone while that has the capacity. The
// zero value switches it off.
type Zone struct {
	Local   string // the zone this balancer runs in; "": off
	MinSize int    // with fewer serving backends a tier ignores zones; 0: no such bound
}

// Subset makes each balancer of a large fleet use a part of the backends only,
// see balance.Subset. The zero value switches it off.
type Subset struct {
	Size  int // backends per tier; 0: all
	Index int // this balancer's place among Count, from 0; meaningful when Count > 0
	Count int // balancers in the fleet; 0: unknown, the subset is drawn by Config.Instance
}

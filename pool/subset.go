// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"

	"github.com/weirlb/weir/balance"
)

// subset returns the specs that this balancer uses, in their order, and notes
// the ids of the others. Each tier has a subset of its own, so none is emptied;
// while zones count each zone of a tier has its part of it, at least one backend,
// so that what zones have of the subset is what they have of the whole.
func (c *core) subset(specs []Spec) []Spec {
	c.outside = nil
	size := c.cfg.Subset.Size
	if size <= 0 {
		return specs
	}
	type part struct {
		level int
		zone  string
	}
	parts := map[part][]int{}
	tiers := map[int]int{}
	named := map[string]bool{}
	var order []part
	for i := range specs {
		s := &specs[i]
		if named[s.ID] {
			continue // the first spec of an id counts
		}
		named[s.ID] = true
		k := part{level: s.level()}
		if c.cfg.Zone.Local != "" {
			k.zone = s.Zone
		}
		if parts[k] == nil {
			order = append(order, k)
		}
		parts[k] = append(parts[k], i)
		tiers[k.level]++
	}
	var in []int
	for _, k := range order {
		members := parts[k]
		ids := make([]balance.BackendID, len(members))
		for i, at := range members {
			ids[i] = balance.IDOf(specs[at].ID)
		}
		// Rounded up: no zone is without a backend.
		n := (size*len(members) + tiers[k.level] - 1) / tiers[k.level]
		for _, i := range balance.Subset(ids, n, c.cfg.Subset.Index, c.cfg.Subset.Count, c.cfg.Instance) {
			in = append(in, members[i])
		}
	}
	slices.Sort(in)
	out := make([]Spec, 0, len(in))
	for _, i := range in {
		out = append(out, specs[i])
		delete(named, specs[i].ID)
	}
	c.outside = named
	return out
}

// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// The blocks about how much of the work a backend gets: overload, slow start,
// tiers, zones and subsets.

var overloadSignals = []string{"503_retry_after", "429", "orca", "grpc_resource_exhausted", "queue_full"}

var overloadFields = []field[Overload]{
	key("signals", "[503_retry_after, orca, grpc_resource_exhausted, queue_full]", sorted(listOf(choice(overloadSignals), checkSignals)),
		func(o *Overload) *[]string { return &o.Signals }, "what counts as a backend's word that it is full; 429 is usually meant for one client and does not count unless listed"),
	key("floor", "10%", share(0.0001, 1), func(o *Overload) *float64 { return &o.Floor }, "least share that it leaves"),
}

func checkSignals(d *decoder, n *node, list []string) bool {
	if len(list) == 0 {
		d.fault(n, "no signal is listed, so overload is never noticed", "write overload: off, or list "+oneOf(overloadSignals))
	}
	return len(list) > 0
}

var slowStartFields = []field[SlowStart]{
	key("window", "30s", duration(tick, day), func(s *SlowStart) *time.Duration { return &s.Window },
		"how long the share of a new, recovered or re-enabled backend takes to become full").off("none", 0),
	key("from", "10%", share(0.0001, 1), func(s *SlowStart) *float64 { return &s.From }, "first share"),
	key("pool_ramp", "off", duration(tick, day), func(s *SlowStart) *time.Duration { return &s.PoolRamp },
		"the same for a pool that comes back from nothing; meanwhile the rest of its requests is refused").off("off", 0),
}

var subsetFields = []field[Subset]{
	key("size", "", integer(1, 100_000), func(s *Subset) *int { return &s.Size }, "backends of each tier that this balancer uses; must be given"),
	key("index", "none", integer(0, 99_999), func(s *Subset) *int { return &s.Index }, "which of the balancers this one is, from 0; without it the subset is drawn by host and process").off("none", -1),
	key("count", "none", integer(1, 100_000), func(s *Subset) *int { return &s.Count }, "how many balancers there are; goes with index").off("none", 0),
}

func checkSubset(d *decoder, n *node, s *Subset) {
	switch {
	case s.Size == 0 && n.get("size") == nil:
		d.fault(n, "subset has no size", "add size, such as subset: {size: 20}")
	case (s.Index < 0) != (s.Count == 0):
		d.fault(n, "index and count go together", "give both, such as subset: {size: 20, index: 3, count: 50}, or none")
	case s.Count > 0 && s.Index >= s.Count:
		d.fault(n.at("index"), "index ("+itoa(s.Index)+") is not below count ("+itoa(s.Count)+")", "the first balancer is 0, the last "+itoa(s.Count-1))
	}
}

var zoneFields = []field[Zone]{
	key("local", "", text("zone", goodName), func(z *Zone) *string { return &z.Local }, "weir's own zone; must be given"),
	key("min_size", "6", integer(0, 100_000), func(z *Zone) *int { return &z.MinSize }, "pools with fewer backends ignore zones").zero(),
}

func checkZone(d *decoder, n *node, z *Zone) {
	if z.Local == "" && n.get("local") == nil {
		d.fault(n, "zone has no local", "add local, such as zone: {local: eu-1a}")
	}
}

// checkShares warns of tiers, zones and subsets that change nothing.
func checkShares(d *decoder, n *node, p *Pool, items []*node) {
	found := p.Discover != nil // then who will be there is not known
	zoned, near := false, false
	for i := range p.Backends {
		b := &p.Backends[i]
		zoned = zoned || b.Zone != ""
		near = near || p.Zone != nil && b.Zone == p.Zone.Local
		if b.Backup && b.Priority > 0 {
			d.warn(items[i].at("backup"), "backup_priority", "backend "+b.ID+" has a priority, which decides its tier; backup says nothing beside it")
		}
	}
	if z := p.Zone; z != nil && z.Local != "" && !found {
		at := n.get("zone").key
		switch {
		case !zoned:
			d.warn(at, "zone_unused", "no backend of pool "+p.Name+" says its zone, so zone changes nothing")
		case !near:
			d.warn(at, "zone_unused", "no backend of pool "+p.Name+" is in zone "+z.Local+", so zone changes nothing")
		case len(p.Backends) < z.MinSize:
			d.warn(at, "zone_unused", "pool "+p.Name+" has fewer backends than zone.min_size ("+itoa(z.MinSize)+"), so zone changes nothing")
		}
	}
	if s := p.Subset; s != nil && !found && s.Size >= len(p.Backends) {
		d.warn(n.get("subset").key, "subset_unused", "subset.size ("+itoa(s.Size)+") is not below the number of backends ("+itoa(len(p.Backends))+"), so every balancer uses them all")
	}
}

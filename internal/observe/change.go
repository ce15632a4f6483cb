// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/weirlb/weir/internal/message"

// Change decides what a scrape shows from now on: the statuses themselves or
// their classes, and the largest pool with per-backend series (0: the default,
// negative: no pool has any). What has been counted stays, and is shown anew:
// no counter falls.
func (m *Metrics) Change(exactCodes bool, backendSeries int) {
	if backendSeries == 0 {
		backendSeries = defaultBackendSeries
	}
	m.exactCodes.Store(exactCodes)
	m.backendSeries.Store(int64(backendSeries))
}

// labelled is an outcome as a scrape shows it.
type labelled struct {
	code   string
	reason message.Reason
}

// shown adds up what has the same labels.
func (m *Metrics) shown(sum map[outcome]uint64) map[labelled]uint64 {
	label := m.codes.class
	if m.exactCodes.Load() {
		label = m.codes.exact
	}
	out := make(map[labelled]uint64, len(sum))
	for o, n := range sum {
		out[labelled{label[o.code], o.reason}] += n
	}
	return out
}

// Retain tells which routes of which listeners to which pools, and which pools,
// the configuration has. The series of others are dropped ten minutes later
// unless they come back: names that come and go with reloads must not pile up.
// route and pool are called under a lock; the empty names are kept.
func (m *Metrics) Retain(route func(listener, route, pool string) bool, pool func(name string) bool) {
	now := m.now().UnixNano()
	m.mu.Lock()
	defer m.mu.Unlock()
	mark := func(left *int64, here bool) {
		switch {
		case here:
			*left = 0
		case *left == 0:
			*left = now
		}
	}
	for k, r := range m.routes {
		mark(&r.left, k == routeKey{} || route(k.listener, k.route, k.pool))
	}
	for name, p := range m.poolSeries {
		mark(&p.left, name == "" || pool(name))
	}
	m.sweepLocked(now)
}

// dropRoutes forgets the series of routes that left before the given time, and
// of pools that did and that no route leads to. Called under mu.
func (m *Metrics) dropRoutes(before int64) {
	used := make(map[*PoolSeries]bool, len(m.poolSeries))
	for k, r := range m.routes {
		if r.left != 0 && r.left <= before {
			delete(m.routes, k)
			continue
		}
		used[r.pool] = true
	}
	for name, p := range m.poolSeries {
		if p.left != 0 && p.left <= before && !used[p] {
			delete(m.poolSeries, name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/admin"
)

// unknownPool says which pools there are.
func (e *Engine) unknownPool(name string) error {
	var names []string
	for known := range e.gen.Load().pools {
		names = append(names, known)
	}
	return fmt.Errorf("%w: %s; there is %s", admin.ErrUnknownPool, name, listed(names))
}

// unknownBackend says which backends a pool has.
func (p *livePool) unknownBackend(id string) error {
	var ids []string
	for _, b := range p.pool.Snapshot().Backends {
		ids = append(ids, b.ID)
	}
	return fmt.Errorf("%w: %s in pool %s, which has %s", admin.ErrUnknownBackend, id, p.name, listed(ids))
}

// listed is the first of some names, in order.
func listed(names []string) string {
	const most = 8
	slices.Sort(names)
	switch n := len(names); {
	case n == 0:
		return "none"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"github.com/weirlb/weir/internal/netconn"
)

// joined remembers an open connection, for Cut.
func (t *Target) joined(nc *netconn.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[*netconn.Conn]struct{})
	}
	t.all[nc] = struct{}{}
}

// left forgets a connection that was closed.
func (t *Target) left(nc *netconn.Conn) {
	t.open.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, nc)
}

// Cut ends every connection now, those on loan included: their exchanges see an
// aborted connection, and close it. It returns how many were on loan. New ones
// may be dialed.
func (t *Target) Cut() int {
	t.CloseIdle()
	t.mu.Lock()
	loaned := make([]*netconn.Conn, 0, len(t.all))
	for nc := range t.all {
		loaned = append(loaned, nc)
	}
	t.mu.Unlock()
	for _, nc := range loaned {
		nc.Abort()
	}
	return len(loaned)
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import "errors"

var errDrainOver = errors.New("the deadline of the backend's drain has passed")

// joined remembers an open connection, for Cut. It reports false when that has
// come before: the request was picked before the drain and would outlive it.
func (t *Target) joined(c *Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	if c.next = t.all; c.next != nil {
		c.next.prev = c
	}
	t.all = c
	return true
}

// left forgets a connection that was closed.
func (t *Target) left(c *Conn) {
	t.open.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case c.prev != nil:
		c.prev.next = c.next
	case t.all == c:
		t.all = c.next
	default:
		return // it was refused, or is told twice
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

// Cut ends every connection now, those on loan included: their exchanges see an
// aborted connection of which CutShort says so, and close it. While the Target
// drains no new ones can be dialed from then on. It returns how many were on
// loan.
func (t *Target) Cut() int {
	t.CloseIdle()
	t.mu.Lock()
	t.over = t.draining
	var loaned []func()
	for c := t.all; c != nil; c = c.next {
		c.cut.Store(true)
		switch {
		case c.mux != nil:
			loaned = append(loaned, c.mux.Cut)
		case c.bare != nil:
			loaned = append(loaned, c.bare)
		default:
			loaned = append(loaned, c.nc.Abort)
		}
	}
	t.mu.Unlock()
	for _, end := range loaned {
		end()
	}
	return len(loaned)
}

// CutShort reports that Cut ended the connection: what was under way on it
// failed by the operator's word and not by the backend's fault.
func (c *Conn) CutShort() bool { return c.cut.Load() }

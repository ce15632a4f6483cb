// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
)

// looks is how a Target looks at connections that have been idle for longer than
// peekAfter before it uses them. Where one look follows another within that time, many
// are to be used, and each looks at twice as many of those that are next, in one system
// call: what was looked at is as good as used for the next peekAfter.
//
// Worked example: 60 requests come at once, and the connections have been idle for 7 ms.
// The looks are at 1, 2, 4, 8, 16, 16 and 13 of them: 7 system calls for 60.
//
// Guarded by Target.mu.
type looks struct {
	last balance.Instant
	many int
}

// quiet reports that a connection that take has returned may be used.
func (t *Target) quiet(c *Conn, now balance.Instant) bool {
	var ask [netconn.MostQuiet]*Conn
	var turns [netconn.MostQuiet]uint32
	ask[0] = c
	n := 1
	t.mu.Lock()
	if now.Sub(t.looks.last) <= peekAfter {
		t.looks.many = min(2*t.looks.many, netconn.MostQuiet)
	} else {
		t.looks.many = 1
	}
	t.looks.last = now
	for i := len(t.idle) - 1; i >= 0 && n < t.looks.many; i-- {
		if d := t.idle[i]; !d.watched && now.Sub(d.fresh()) > peekAfter {
			ask[n], turns[n] = d, d.turn
			n++
		}
	}
	t.mu.Unlock()
	if n == 1 || c.nc.TLS() != nil {
		return c.nc.Peek() == netconn.Quiet
	}
	var conns [netconn.MostQuiet]*netconn.Conn
	var quiet [netconn.MostQuiet]bool
	for i, d := range ask[:n] {
		conns[i] = d.nc
	}
	netconn.AreQuiet(conns[:n], quiet[:n])
	t.mu.Lock()
	for i, d := range ask[:n] {
		if i > 0 && quiet[i] && d.turn == turns[i] {
			d.looked = now
		}
	}
	t.mu.Unlock()
	return quiet[0]
}

// fresh is when the connection was used or looked at last. Called by who owns it.
func (c *Conn) fresh() balance.Instant { return max(c.since, c.looked) }

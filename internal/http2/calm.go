// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// Cause says of what a peer sent too much.
type Cause uint8

// The causes, as a counter's label has them.
const (
	CauseNone      Cause = iota
	CauseReset           // streams that the peer reset soon after it opened them (rapid reset)
	CauseMadeReset       // streams that weir had to reset
	CauseSettings        // SETTINGS
	CausePing            // PING
	CausePriority        // PRIORITY and frames of unknown types
	CauseWindow          // WINDOW_UPDATE
	CauseEmpty           // frames without content that end nothing
	CauseHeaders         // header blocks beyond all limits
	CauseRefused         // streams beyond what was allowed
	CauseUnread          // frames whose answers the peer does not read
	CauseBuffered        // content beyond the budget
	Causes               // how many there are
)

var causeNames = [Causes]string{
	"none", "rapid_reset", "made_reset", "settings", "ping", "priority", "window_update", "empty", "headers",
	"refused_stream", "unread", "buffered",
}

// String returns the word of metrics and logs.
func (c Cause) String() string {
	if c < Causes {
		return causeNames[c]
	}
	return "unknown"
}

// CauseNames returns the words of all causes.
func CauseNames() []string { return causeNames[1:] }

// What frames cost that make weir work and the peer not. They are paid from one
// purse of calmBurst, into which flow calmRate a second, and what useful work
// earns: requests that were answered, and content. So a flood ends after a
// bounded number of frames: at most calmBurst divided by their cost, and none
// that serve requests ever end.
//
// Worked example: a client that opens and resets streams as fast as it can pays
// 4 for each: after 250 of them, and 12 a second further on, the connection is
// over. One that cancels every second of 200 requests a second, which is rude
// and legitimate, pays 400 and earns 100*20 + 50 a second. A gRPC client pings with
// every window of content (to measure its bandwidth): it pays 1 and earned 16 for
// that window's first 16 KiB.
const (
	calmBurst = 1000
	calmRate  = 50

	earnAnswer  = 20      // a request that was answered in full
	earnContent = 1 << 10 // so many bytes, either way, earn 1

	costReset     = 4 // soon after the stream was opened
	costLateReset = 1
	costMadeReset = 8
	costRefused   = 4
	costSettings  = 8
	costPing      = 1
	costPriority  = 1
	costWindow    = 1
	costEmpty     = 4
)

// soon is how long after its opening the reset of a stream counts as rapid: a
// client that gives up on an answer has waited longer.
const soon = 100 * time.Millisecond

// calm is the purse. It is guarded by whatever guards its connection.
type calm struct {
	purse int
	bytes int // of content that has not earned yet
	owed  int // WINDOW_UPDATEs that answer what was sent
	last  balance.Instant
}

func (c *calm) begin(now balance.Instant) { *c = calm{purse: calmBurst, last: now} }

func (c *calm) earn(n int) { c.purse = min(c.purse+n, calmBurst) }

// content earns for n bytes.
func (c *calm) content(n int) {
	if c.bytes += n; c.bytes >= earnContent {
		c.earn(c.bytes / earnContent)
		c.bytes %= earnContent
	}
}

// sent earns for a DATA frame of n bytes, of rest that were there to be sent, and
// makes room for the updates that give their window back. Those have a count of
// their own, without a bound: a peer with a large window that reads slowly sends
// them in thousands, long after the content that the purse could not hold.
//
// There are two for each frame (of the stream and of the connection) and for
// every KiB. A frame that the window cut short counts by its bytes alone, or a
// peer would earn by opening the window byte by byte.
func (c *calm) sent(n, rest int) {
	c.content(n)
	if n == rest {
		c.owed += 2
	}
	c.owed += n / 512
}

// payWindow takes the cost of a WINDOW_UPDATE.
func (c *calm) payWindow(now balance.Instant) bool {
	if c.owed > 0 {
		c.owed--
		return true
	}
	return c.pay(costWindow, now)
}

// pay takes the cost and reports that the purse held as much.
func (c *calm) pay(cost int, now balance.Instant) bool {
	if c.purse >= cost {
		c.purse -= cost
		return true
	}
	if d := now.Sub(c.last); d > 0 {
		c.last = now
		c.purse = min(c.purse+int(min(d, time.Minute)*calmRate/time.Second), calmBurst)
	}
	c.purse -= cost
	return c.purse >= 0
}

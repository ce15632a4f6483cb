// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/l7"
)

// floodsTold is how many connections that were ended for what they sent are named in
// the log within a second: who opens them as fast as they are ended is not to fill it.
const floodsTold = 10

// floodLines bounds those lines. The zero value is ready. Its method may be called
// from anywhere.
type floodLines struct {
	mu    sync.Mutex // guards what follows
	since balance.Instant
	told  int // since then
	more  int // not told since the last line
}

// next reports that a line may be written, and how many were not since the last one.
func (f *floodLines) next(now balance.Instant) (more int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since == 0 || now.Sub(f.since) >= time.Second {
		f.since, f.told = now, 0
	}
	if f.told == floodsTold {
		f.more++
		return 0, false
	}
	f.told++
	more, f.more = f.more, 0
	return more, true
}

// flood counts a connection that was ended for what its client sent too much of, and
// names the client, so that it can be kept away before weir.
func (c *codecs) flood(client *l7.ClientInfo, why http2.Cause) {
	name := *c.listener.Load()
	c.e.metrics.Flood(name, why.String())
	more, ok := c.floods.next(clock.Now())
	if !ok {
		return
	}
	log := c.e.log.With("listener", name, "cause", why.String())
	if client.Peer.IsValid() { // it is not for a unix socket
		log = log.With("client", client.Peer.String())
	}
	if more > 0 {
		log = log.With("more", more)
	}
	log.Warn("connection ended: its client sent too much")
}

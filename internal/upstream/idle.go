// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// watchAfter is the idle time after which a connection is watched for the
// backend's close and for its own end. Younger ones are looked at when they are
// used, so a busy Target pays one timer per watchAfter for all of them.
const watchAfter = 250 * time.Millisecond

// excessFor is how long idle connections beyond Options.MaxIdle are kept. Requests
// come in waves, above all when each client has many at once: what one wave leaves
// idle the next one takes, a few milliseconds later, and to connect anew costs as
// much as several requests.
const excessFor = time.Second

// sweepPause is the least time between two sweeps of a Target.
const sweepPause = 20 * time.Millisecond

// sweepIn makes sure that connections that stay idle come to be watched, the
// next of them in d. Called with mu held.
func (t *Target) sweepIn(d time.Duration) {
	if t.sweeping {
		return
	}
	t.sweeping = true
	d = max(d, sweepPause)
	if t.timer == nil {
		t.timer = time.AfterFunc(d, t.sweep)
	} else {
		t.timer.Reset(d)
	}
}

// sweep watches what has been idle for long enough.
func (t *Target) sweep() {
	p, err := netconn.SharedPoller()
	now := clock.Now()
	var expired []*Conn
	t.mu.Lock()
	t.sweeping = false
	if t.closed {
		t.mu.Unlock()
		return
	}
	learned := t.learner.timeout(now)
	kept, next := t.idle[:0], time.Duration(0)
	excess := len(t.idle) - t.set.Load().MaxIdle
	for _, c := range t.idle {
		age, keep := now.Sub(c.since), c.keepFor(t.set.Load().KeepAlive, learned)
		excess--
		switch {
		case excess >= 0 && age >= excessFor:
			t.unwatch(c)
			expired = append(expired, c)
			continue
		case excess >= 0: // not for long
			if due := max(excessFor-age, sweepPause); next == 0 || due < next {
				next = due
			}
		case c.watched:
		case keep > 0 && age >= keep:
			expired = append(expired, c)
			continue
		case err == nil && age >= watchAfter && t.watch(p, c, keep):
		default: // too young, or without a descriptor
			if due := max(watchAfter-age, sweepPause); next == 0 || due < next {
				next = due
			}
		}
		kept = append(kept, c)
	}
	clear(t.idle[len(kept):])
	t.idle = kept
	if next > 0 {
		t.sweepIn(next)
	}
	t.mu.Unlock()
	for _, c := range expired {
		c.Close()
	}
}

// watch starts watching an idle connection. Called with mu held.
func (t *Target) watch(p *netconn.Poller, c *Conn, keep time.Duration) bool {
	var end balance.Instant
	if keep > 0 {
		end = c.since.Add(keep)
	}
	if c.dies != 0 && (end == 0 || c.dies < end) {
		end = c.dies
	}
	ticket, err := p.Wait(c.nc, netconn.WantBytes, end, func(ev netconn.PollEvent) {
		if ev == netconn.PollGone { // may be said within Wait, where mu is held
			go t.stirred(c, ev)
			return
		}
		t.stirred(c, ev)
	})
	if err != nil {
		return false
	}
	c.watched, c.ticket = true, ticket
	return true
}

// unwatch stops watching. Called with mu held. When it comes too late, stirred
// finds the connection gone from the idle ones.
func (t *Target) unwatch(c *Conn) {
	if !c.watched {
		return
	}
	c.watched = false
	if p, err := netconn.SharedPoller(); err == nil {
		p.Cancel(c.ticket)
	}
}

// stirred is called when a watched idle connection has bytes, ended, or reached
// its age. It runs on the Poller's goroutine and does not wait.
func (t *Target) stirred(c *Conn, ev netconn.PollEvent) {
	t.mu.Lock()
	i := slices.Index(t.idle, c)
	if i < 0 || !c.watched {
		t.mu.Unlock()
		return
	}
	t.unwatch(c) // there may be a newer wait, when this one came late
	t.idle = slices.Delete(t.idle, i, i+1)
	t.mu.Unlock()

	now := clock.Now()
	if ev == netconn.PollReady {
		switch c.nc.Peek() {
		case netconn.Quiet: // TLS's own records: it stays where it was
			t.restore(c, i)
			return
		case netconn.EOF, netconn.Error:
			t.closedByPeer(now, now.Sub(c.since))
		case netconn.HasBytes: // unasked: nothing to learn
			t.stale.Add(1)
		}
	}
	c.Close()
}

// closedByPeer counts a close that the backend made, and learns from it.
func (t *Target) closedByPeer(now balance.Instant, age time.Duration) {
	t.stale.Add(1)
	news := time.Duration(0)
	t.mu.Lock()
	if !t.draining && !t.closed {
		t.learner.observe(now, age)
		news = t.learner.news()
	}
	t.mu.Unlock()
	if tell := t.set.Load().Learned; news > 0 && tell != nil {
		tell(news)
	}
}

// Teach tells what another process has learned of the backend, age ago: the idle
// timeout that Stats returned there. It holds until it is learned anew, or is too
// old.
func (t *Target) Teach(idle, age time.Duration) {
	if idle <= 0 || age < 0 || age >= learnFor {
		return
	}
	now := clock.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.learner.learned == 0 {
		t.learner.learned, t.learner.told, t.learner.at = idle, idle, now.Add(-age)
	}
}

// restore puts an idle connection back at its place; the sweep watches it anew.
func (t *Target) restore(c *Conn, i int) {
	t.mu.Lock()
	if t.draining || t.closed || len(t.idle) >= t.set.Load().MaxIdle {
		t.mu.Unlock()
		c.Close()
		return
	}
	t.idle = slices.Insert(t.idle, min(i, len(t.idle)), c)
	t.sweepIn(sweepPause)
	t.mu.Unlock()
}

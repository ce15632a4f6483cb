// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"sync"
)

var errNoDescriptor = errors.New("connection without a descriptor")

// abortNotifier is what a net.Conn of a test may implement to be watched.
type abortNotifier interface {
	NotifyAbort(fn func()) (stop func() bool)
}

// AbortWatch is one running watch for the peer's abort. The zero value is none.
type AbortWatch struct {
	p    *Poller
	t    Ticket
	stop func() bool
}

// WatchOf makes a watch of something else that hears of a peer's abort, such as a
// stream among others on one connection. stop is Stop.
func WatchOf(stop func() bool) AbortWatch { return AbortWatch{stop: stop} }

// OnAbort calls fn once when the peer resets the connection or hangs up with an
// error (from another goroutine), or when Abort or Close is called here (from
// within the call).
// A half-close alone is no abort, and no byte is consumed; reads and writes may
// go on meanwhile. fn must not block. Stop the watch before the exchange ends;
// one watch per connection at a time. It costs two system calls and no
// goroutine. A connection that cannot be watched never calls fn.
func (c *Conn) OnAbort(fn func()) AbortWatch {
	if c.raw == nil {
		if n, ok := c.nc.(abortNotifier); ok {
			return AbortWatch{stop: n.NotifyAbort(fn)}
		}
		hook := fn
		c.hook.Store(&hook)
		if c.gone() {
			c.wake()
		}
		return AbortWatch{stop: func() bool { return c.hook.CompareAndSwap(&hook, nil) }}
	}
	p, err := SharedPoller()
	if err != nil {
		return AbortWatch{}
	}
	t, err := p.Wait(c, WantHangup, 0, func(PollEvent) { fn() })
	if err != nil {
		return AbortWatch{}
	}
	return AbortWatch{p: p, t: t}
}

// Stop ends the watch. It reports whether fn was not and will not be called.
func (w AbortWatch) Stop() bool {
	if w.p != nil {
		return w.p.Cancel(w.t)
	}
	return w.stop == nil || w.stop()
}

// SharedPoller returns the process's one Poller for waits whose callbacks do not
// block: hang-ups of clients, ends of idle connections. It is opened with the
// first use and never closed; its goroutine ends when nothing is waited for.
func SharedPoller() (*Poller, error) { return sharedPoller() }

var sharedPoller = sync.OnceValues(func() (*Poller, error) { return NewPoller(false) })

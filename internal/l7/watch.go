// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

// watchAfter is how long something is awaited before weir looks whether the
// client is still there. Nearly all answers come sooner.
//
// There is no timer per request behind it. The first wait for an answer runs
// into a deadline of start+watchAfter; netconn arms the runtime's timer only
// when none is armed that fires earlier, and absorbs early firings, so that a
// busy connection re-arms a timer about every watchAfter and a request costs a
// comparison. When that deadline does pass, the client's socket is put into a
// poller (two system calls, no goroutine) and the wait goes on. A dial and a
// place in the queue cannot be resumed, so there the watch begins at once.
const watchAfter = 50 * time.Millisecond

// watch notices that the client left while nothing is read from it. A client
// that only ended its sending half has not left (RFC 9112 section 9.6 leaves
// this open; scripts that pipe a request into nc are served).
type watch struct {
	// Owned by the exchange's goroutine.
	armed  bool
	handle netconn.AbortWatch
	fired  chan struct{} // holds one element after the callback ran; kept when pooled
	leave  func()        // onAbort, bound once

	gone atomic.Bool // the client has left

	mu    sync.Mutex
	up    Upstream      // guarded by mu: cut when the client leaves
	abort chan struct{} // guarded by mu: closed when the client leaves; nil: nobody asked
}

// leaver tells when a client has left: a connection, or a codec whose exchanges
// own none.
type leaver interface {
	// OnAbort is as netconn.Conn's.
	OnAbort(fn func()) netconn.AbortWatch
}

// leaverOf returns who tells of a client's leaving; nil when nobody can.
func leaverOf(d Downstream) leaver {
	if c := d.Conn(); c != nil {
		return c
	}
	l, _ := d.(leaver)
	return l
}

// begin starts watching, unless it is on already.
func (w *watch) begin(d Downstream) {
	if w.armed {
		return
	}
	c := leaverOf(d)
	if c == nil {
		return
	}
	if w.leave == nil {
		w.fired, w.leave = make(chan struct{}, 1), w.onAbort
	}
	w.armed = true
	w.handle = c.OnAbort(w.leave)
}

// onAbort says that the client has left and cuts what is done for it. It runs
// on the poller's goroutine, or within Abort and Close of the connection.
func (w *watch) onAbort() {
	w.gone.Store(true)
	w.mu.Lock()
	if w.up != nil {
		w.up.Cut()
	}
	if w.abort != nil {
		close(w.abort)
		w.abort = nil
	}
	w.mu.Unlock()
	w.fired <- struct{}{}
}

// target names the exchange with a backend to cut; nil for none.
func (w *watch) target(c Upstream) {
	if !w.armed {
		w.up = c
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = c
	if c != nil && w.gone.Load() {
		c.Cut()
	}
}

// aborted returns a channel that is closed when the client leaves; nil, which
// blocks for ever, when nobody watches.
func (w *watch) aborted() <-chan struct{} {
	if !w.armed {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abort == nil {
		w.abort = make(chan struct{})
		if w.gone.Load() {
			c := w.abort
			close(c)
			w.abort = nil
			return c
		}
	}
	return w.abort
}

// end stops watching. When it returns the callback has run or never will.
func (w *watch) end() {
	if !w.armed {
		return
	}
	w.armed = false
	if !w.handle.Stop() {
		<-w.fired
	}
	w.handle = netconn.AbortWatch{}
}

// reset prepares for the next exchange. The watch must have ended.
func (w *watch) reset() {
	w.up, w.abort = nil, nil
	w.gone.Store(false)
}

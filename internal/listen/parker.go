// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"runtime/debug"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
)

// Parker holds idle plain connections without a goroutine or a buffer: one
// epoll instance waits for all of them. It is safe for concurrent use. Make it
// with NewParker and Close it.
type Parker struct {
	poller  *netconn.Poller
	onPanic func(v any, stack []byte)
}

// NewParker opens the epoll instance. onPanic, if not nil, gets what a resume
// function panicked with; the connection is closed.
func NewParker(onPanic func(v any, stack []byte)) (*Parker, error) {
	p, err := netconn.NewPoller(true)
	if err != nil {
		return nil, err
	}
	return &Parker{poller: p, onPanic: onPanic}, nil
}

// CanPark reports whether a connection can be parked: plain, on a socket.
func CanPark(c *netconn.Conn) bool { return c.Spliceable() }

// Park gives the connection up until it is readable, hung up, or past the
// deadline (0: none); then resume runs once on a goroutine of its own. ready is
// false when the deadline passed, the connection was aborted or closed, or the
// Parker is closed; the connection is then to be closed. The caller must not
// touch the connection after Park, except by Abort and Close. A connection that
// cannot be parked is resumed at once with false.
//
// Parking costs one system call and waking one goroutine start: worth it for
// connections that have been idle for a while, not between two busy requests.
func (p *Parker) Park(c *netconn.Conn, deadline balance.Instant, resume func(ready bool)) {
	run := func(ev netconn.PollEvent) {
		defer func() {
			if v := recover(); v != nil {
				_ = c.Close()
				if p.onPanic != nil {
					p.onPanic(v, debug.Stack())
				}
			}
		}()
		resume(ev == netconn.PollReady)
	}
	if !CanPark(c) {
		go run(netconn.PollGone)
		return
	}
	if _, err := p.poller.Wait(c, netconn.WantBytes, deadline, run); err != nil {
		go run(netconn.PollGone)
	}
}

// Parked returns the number of parked connections.
func (p *Parker) Parked() int { return p.poller.Waiting() }

// Close resumes every parked connection with false and waits for the Parker's
// own goroutine, not for the resumed ones. Later parks resume at once.
func (p *Parker) Close() error { return p.poller.Close() }

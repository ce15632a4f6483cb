// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// connectTo connects to one address.
func (t *Target) connectTo(where string, to netip.Addr, limit balance.Instant, abort <-chan struct{}) (net.Conn, error) {
	ctx, cancel := context.WithCancel(abortContext{context.Background(), abort})
	defer cancel()
	a := &attempt{giveUp: cancel}
	d := net.Dialer{KeepAlive: -1, ControlContext: func(ctx context.Context, network, address string, c syscall.RawConn) error {
		a.socket(c)
		return t.control(ctx, network, address, c)
	}}
	d.SetMultipathTCP(false)
	if from := t.set.Load().Bind; len(from) > 0 && to.IsValid() {
		src, ok := t.source(from, to)
		if !ok {
			return nil, &DialError{Kind: LocalPorts, Addr: where, Err: errNoSource}
		}
		d.LocalAddr = &net.TCPAddr{IP: src.AsSlice(), Zone: src.Zone()}
	}
	if limit != 0 {
		left := limit.Sub(clock.Now())
		if left <= 0 {
			return nil, &DialError{Kind: Timeout, Addr: where, Err: os.ErrDeadlineExceeded}
		}
		defer a.watch(left)()
	}
	nc, err := d.DialContext(ctx, t.network, where)
	switch {
	case err == nil:
		return nc, nil
	case aborted(abort):
		return nil, &DialError{Kind: Canceled, Addr: where, Err: errAborted}
	case a.late():
		return nil, &DialError{Kind: Timeout, Addr: where, Err: fmt.Errorf("connect: %w", os.ErrDeadlineExceeded)}
	}
	return nil, &DialError{Kind: kindOf(err), Addr: where, Err: err}
}

// grace is how much longer an attempt may take whose outcome is known to the
// kernel when its time is over: only this process has not got round to it.
const grace = time.Second

// attempt bounds one connection attempt. A net.Dialer's own deadline wins over a
// handshake that was finished long ago when the process had no processor time to
// look at it, and a failed connection is a fact that takes backends out: a weir
// that is starved would empty its pools. So the socket is asked before the
// backend is blamed.
type attempt struct {
	giveUp func()

	mu    sync.Mutex
	raw   syscall.RawConn
	timer *time.Timer
	over  bool // given up for want of an answer
	ended bool
}

// socket takes the socket that is about to be connected.
func (a *attempt) socket(c syscall.RawConn) {
	a.mu.Lock()
	a.raw = c
	a.mu.Unlock()
}

// watch gives the attempt up after d. The function that it returns ends that.
func (a *attempt) watch(d time.Duration) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(d, func() { a.expire(true) })
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ended = true
		a.timer.Stop()
	}
}

// expire gives the attempt up, unless it may have some grace and the kernel
// knows its outcome.
func (a *attempt) expire(mayWait bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended:
	case mayWait && settled(a.raw):
		a.timer = time.AfterFunc(grace, func() { a.expire(false) })
	default:
		a.over = true
		a.giveUp()
	}
}

func (a *attempt) late() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// settled reports that a socket is connected, or that it never will be.
func settled(c syscall.RawConn) (done bool) {
	if c == nil {
		return false
	}
	err := c.Control(func(fd uintptr) {
		look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(look[:], 0)
		done = err == nil && n > 0
	})
	return err == nil && done
}

// abortContext is a context that ends when a channel is closed. Embedding
// Background gives it no deadline and no values.
type abortContext struct {
	context.Context
	abort <-chan struct{}
}

// Done implements context.Context.
func (c abortContext) Done() <-chan struct{} { return c.abort }

// Err implements context.Context.
func (c abortContext) Err() error {
	if aborted(c.abort) {
		return context.Canceled
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// Bounds of how long an answer is used (S18).
const (
	ttlFloor   = time.Second
	ttlCap     = 5 * time.Minute
	ttlUnknown = 5 * time.Second // /etc/hosts, as often as the standard library reads it
	retryAfter = time.Second     // after a failure
	askFor     = 10 * time.Second
)

// Resolver turns names into addresses and remembers them for as long as their
// answers say. It is safe for concurrent use. Close it.
type Resolver struct {
	ask    askFunc
	ctx    context.Context
	cancel context.CancelFunc
	asking sync.WaitGroup

	mu     sync.Mutex
	closed bool
	names  map[string]*name
}

// old reports whether it is time to ask (again).
func (n *name) old(now balance.Instant) bool { return !n.asked || now >= n.until }

// askFunc asks once; ttl is negative when it is not known.
type askFunc func(ctx context.Context, host string) (addrs []netip.Addr, ttl time.Duration, err error)

// name is what is known of one name. Its fields are guarded by Resolver.mu.
type name struct {
	good    []netip.Addr // last good answer; never modified
	err     error        // of the last question, nil when it was answered
	asked   bool         // there was an answer or a failure, which holds
	until   balance.Instant
	pending chan struct{} // closed when the running question is over; nil: none runs
}

// NewResolver returns a resolver that follows the machine's configuration.
func NewResolver() *Resolver { return newResolver(askSystem("")) }

func newResolver(ask askFunc) *Resolver {
	r := &Resolver{ask: ask, names: make(map[string]*name)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close ends running questions and waits for them. What is known stays.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.asking.Wait()
}

// known returns the last good answer without waiting. With a clock it also
// starts a new question when the answer is old and somebody has asked before.
func (r *Resolver) known(host string, now func() balance.Instant) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.names[host]
	if n == nil {
		return nil
	}
	if now != nil && n.pending == nil && n.old(now()) {
		r.startLocked(host, n)
	}
	return n.good
}

// pending returns what is closed when the question about a name that runs is over, or
// what is closed already.
func (r *Resolver) pending(host string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.names[host]; n != nil && n.pending != nil {
		return n.pending
	}
	over := make(chan struct{})
	close(over)
	return over
}

// Lookup returns the addresses of a name as connections for traffic would get
// them: what is remembered at once, renewed meanwhile when it is old, else what
// the servers say before the context ends. The slice must not be modified.
func (r *Resolver) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := r.lookup(host, 0, ctx.Done())
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, ctx.Err())
	}
	return addrs, err
}

// lookup returns addresses of a name: at once when there ever was a good
// answer (renewing an old one meanwhile), else by waiting for one.
func (r *Resolver) lookup(host string, limit balance.Instant, abort <-chan struct{}) ([]netip.Addr, error) {
	r.mu.Lock()
	n := r.names[host]
	if n == nil {
		n = &name{}
		r.names[host] = n
	}
	if n.pending == nil && n.old(clock.Now()) {
		r.startLocked(host, n)
	}
	good, err, pending := n.good, n.err, n.pending
	r.mu.Unlock()
	if len(good) > 0 {
		return good, nil
	}
	if pending == nil {
		return nil, err // failed a moment ago
	}
	var late <-chan time.Time
	if limit != 0 {
		timer := time.NewTimer(limit.Sub(clock.Now()))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-pending:
	case <-late:
		return nil, fmt.Errorf("resolve %s: %w", host, context.DeadlineExceeded)
	case <-abort:
		return nil, errAborted
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(n.good) > 0 {
		return n.good, nil
	}
	return nil, n.err
}

// startLocked asks in the background.
func (r *Resolver) startLocked(host string, n *name) {
	if r.closed {
		n.err = net.ErrClosed
		return
	}
	done := make(chan struct{})
	n.pending = done
	r.asking.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, askFor)
		defer cancel()
		addrs, ttl, err := r.ask(ctx, host)
		if err == nil && len(addrs) == 0 {
			err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		now := clock.Now()
		n.err, n.asked = err, true
		switch {
		case err != nil:
			n.until = now.Add(retryAfter)
		case ttl < 0:
			n.until = now.Add(ttlUnknown)
		default:
			n.until = now.Add(min(max(ttl, ttlFloor), ttlCap))
		}
		if err == nil && !slices.Equal(addrs, n.good) {
			n.good = addrs
		}
		n.pending = nil
		close(done)
	})
}

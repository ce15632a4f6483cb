// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// Conn is a connection to a backend, on loan from its Target to one exchange:
// give it back with Put, or Close it.
type Conn struct {
	*http1.ClientConn                   // nil where mux is not
	mux               *http2.ClientConn // of one that speaks HTTP/2; set under Target.mu

	// bare asks whoever has a socket of Begin to end; nil: nc is the connection.
	bare func()

	// Constant after Dial.
	nc    *netconn.Conn
	addr  netip.Addr      // zero for unix
	dies  balance.Instant // MaxAge; 0 never
	epoch uint32          // of the settings that it was made with
	// header is the PROXY header that it began with: it carries nobody else's
	// requests. Empty: none.
	header string

	cut atomic.Bool // Cut ended it

	// Owned by the exchange, or by the Target while idle.
	requests  int
	announced time.Duration // idle timeout from Keep-Alive: timeout=N
	idleFor   time.Duration // before this loan
	since     balance.Instant
	looked    balance.Instant // when it was looked at and quiet, while idle

	// Guarded by Target.mu.
	prev, next *Conn // of Target.all

	ended   bool // http2.Owner.Over was said
	watched bool
	turn    uint32 // counts the loans
	ticket  netconn.Ticket
}

// Reused reports whether the connection has carried a request before.
func (c *Conn) Reused() bool { return c.requests > 1 }

// IdleFor returns how long a reused connection had been idle.
func (c *Conn) IdleFor() time.Duration { return c.idleFor }

// RemoteAddr returns the address that was dialed; the zero Addr for unix.
func (c *Conn) RemoteAddr() netip.Addr { return c.addr }

// ReadHead reads the next head as ClientConn does, and notes the idle timeout
// that the backend announces with it.
func (c *Conn) ReadHead(r *message.Response, toHEAD bool, deadline balance.Instant) error {
	err := c.ClientConn.ReadHead(r, toHEAD, deadline)
	if err == nil && r.KeepAlive > 0 {
		c.announced = time.Duration(min(r.KeepAlive, 1<<30)) * time.Second
	}
	return err
}

// idleTimeout is the smaller of what is announced and what was learned; 0 when
// neither is known.
func (c *Conn) idleTimeout(learned time.Duration) time.Duration {
	switch {
	case c.announced == 0:
		return learned
	case learned == 0:
		return c.announced
	}
	return min(c.announced, learned)
}

// early is the share of a backend's idle timeout that a connection is used for.
func early(timeout time.Duration) time.Duration { return timeout / 10 * 8 }

// keepFor is how long the connection may stay idle; 0 means for ever.
func (c *Conn) keepFor(keepAlive, learned time.Duration) time.Duration {
	t := c.idleTimeout(learned)
	switch {
	case t == 0:
		return keepAlive
	case keepAlive == 0:
		return early(t)
	}
	return min(keepAlive, early(t))
}

// unsafeFor is how long it may have been idle for a request that must not be
// replayed.
func (c *Conn) unsafeFor(within, learned time.Duration) time.Duration {
	if t := c.idleTimeout(learned); t != 0 {
		return early(t)
	}
	return within
}

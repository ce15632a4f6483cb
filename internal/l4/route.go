// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// Client is what is known of who opened a session.
type Client struct {
	// Peer is who the session is counted, logged and hashed as: the source of a
	// PROXY header that was believed, else the socket's peer. Invalid for unix
	// sockets and for a PROXY header that names nobody.
	Peer netip.AddrPort
	// Local is where the client connected to, the header's destination where one
	// was believed.
	Local netip.AddrPort
	// Said are the TLVs that came in a PROXY header of version 2, and Checksum that a
	// CRC32C was among them, see proxyproto.Header. ProxiedBy is who sent it; invalid:
	// nobody, or whoever has a unix socket.
	Said      []byte
	Checksum  bool
	ProxiedBy netip.Addr
	// Name is the server name of a ClientHello, in lower case; empty: none.
	Name string
	// Asked says that the client has asked for TLS by PostgreSQL's SSLRequest, which
	// was answered: the backend is asked in its place before anything else is sent.
	Asked bool
	// Via is the Proxy that has read the hello of a client that asked so, where TLS has
	// been ended here since: its CancelRequests come there. nil: none has.
	Via *Proxy
	// Hello is what a log can say of a hello that passes on; nil: there is none.
	Hello *observe.Session
	// TLVs are what a PROXY header of version 2 says of TLS that was ended here; nil:
	// nothing. It is called when a header is made.
	TLVs func() []byte
	// Session is TLS that was ended here; nil: none.
	Session *observe.Session
	// Began is when the connection was accepted; 0: when Serve is called.
	Began balance.Instant
}

// PoolHandle is what a session asks of a pool; *pool.Pool is one.
type PoolHandle interface {
	BeginRequest(now balance.Instant)
	Pick(l *pool.Lease, r *balance.Request) pool.Refusal
	Wait(l *pool.Lease, r *balance.Request, deadline balance.Instant, abort <-chan struct{}) pool.Refusal
	Next(now balance.Instant, rr *pool.RetryRules, t *pool.Try, f pool.Failure, rnd uint64) pool.Decision
}

// Limit bounds the sessions of a route; l7's Limiter is one.
type Limit interface {
	Acquire() bool
	Release()
}

// Route is where sessions go. It is immutable once published; a session keeps
// the one that it began with.
type Route struct {
	Listener, Protocol string // the words in logs and metrics; tcp or sni
	Name, PoolName     string
	Pool               PoolHandle
	// Key makes the key of a client for a pool whose policy wants one; nil: there
	// is none.
	Key func(client netip.Addr) (key uint64, ok bool)

	Idle    time.Duration // without a byte either way; 0: no bound
	Total   time.Duration // from the first byte of the session's life to its last; 0: no bound
	Connect time.Duration // of one attempt, TLS included; also bounded by upstream's own; 0: no bound
	Retry   pool.RetryRules
	Limit   Limit // nil: no limit

	// ProxyHeader appends the PROXY header that the pool's backends are told the
	// client by; nil: none.
	ProxyHeader func(dst []byte, ci *Client) []byte

	Series     *observe.RouteSeries // nil: not counted
	PoolSeries *observe.PoolSeries  // nil: not counted
	Log        *observe.AccessLog   // nil: off
}

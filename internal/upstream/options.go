// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"net/netip"
	"time"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/netconn"
)

// Options describe the connections to one backend. Durations of 0 mean none,
// except where a default is said.
type Options struct {
	Address string      // host:port, [v6]:port or unix:/path
	TLS     *tls.Config // nil: plain. Cloned; ServerName defaults to the address's host

	ConnectTimeout time.Duration // name, connect; all addresses together
	TLSTimeout     time.Duration // handshake
	KeepAlive      time.Duration // longest idle time, less when announced or learned

	MaxIdle     int           // idle connections kept for longer than a second; 0: none is kept
	MaxConns    int           // open connections; 0: no limit
	MaxRequests int           // requests on one connection; 0: no limit
	MaxAge      time.Duration // of a connection, jittered by 10 %

	// ReuseUnsafeWithin is how long a connection may have been idle to carry a
	// request that must not be replayed. An announced or learned idle timeout
	// replaces it by 80 % of its value.
	ReuseUnsafeWithin time.Duration

	Bind []netip.Addr // source addresses, used in turn; empty: the kernel's choice

	UserTimeout time.Duration // sent bytes unacknowledged (TCP_USER_TIMEOUT); 30s, negative: kernel's
	Probe       time.Duration // silence before the kernel probes the peer; 15s, negative: off

	// Learned is called, if it is not nil, when the backend's idle timeout has been
	// learned, or was found to be another one by more than a tenth. It must return
	// at once.
	Learned func(idle time.Duration)

	// Relieve is asked when a connection got a reserved descriptor, or none: it
	// gives descriptors back that others can do without, and reports whether there
	// was one for the caller. It must not wait. Nil: there is none.
	Relieve func() bool
	Files   *netconn.Files // which descriptors are reserved, shared; nil: the Target's own

	Protocol   Protocol
	HTTP2      *http2.Client // shared; nil: the Target's own
	MaxStreams int           // exchanges at once on a connection over HTTP/2, fewer where the backend says so; 0: DefaultStreams
	Ping       time.Duration // after what silence such a connection is asked whether it is there; 0: never

	Limits   http1.Limits
	Resolver *Resolver // shared; nil: the Target's own
}

// Defaults of Options.
const (
	DefaultUserTimeout = 30 * time.Second
	DefaultProbe       = 15 * time.Second
	DefaultStreams     = 100
)

// Stats are figures about a Target's connections.
type Stats struct {
	Open, Idle, InUse int
	Fresh, Reused     int64         // connections handed out, ever
	Failed            int64         // dials that failed, ever
	Stale             int64         // idle connections found or seen closed by the backend, ever
	LearnedIdle       time.Duration // idle timeout the backend was seen to have; 0: not known
	LearnedAge        time.Duration // since that was confirmed last
	Addresses         []netip.Addr  // what the name stood for last; empty for unix
}

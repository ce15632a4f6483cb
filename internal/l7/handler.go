// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
	"github.com/weirlb/weir/pool"
)

// PoolHandle is what an exchange asks of a pool; *pool.Pool is one.
type PoolHandle interface {
	BeginRequest(now balance.Instant)
	Pick(l *pool.Lease, r *balance.Request) pool.Refusal
	Wait(l *pool.Lease, r *balance.Request, deadline balance.Instant, abort <-chan struct{}) pool.Refusal
	Next(now balance.Instant, rr *pool.RetryRules, t *pool.Try, f pool.Failure, rnd uint64) pool.Decision
	HedgeAfter(rr *pool.RetryRules) time.Duration
	Hedge(now balance.Instant, rr *pool.RetryRules, t *pool.Try, by balance.Instant) bool
}

// Handler is what one listener does with requests. It is part of a generation
// and immutable once published.
type Handler struct {
	Listener string
	Routes   *route.Table
	Targets  []*Route // by the index that Routes.Match returns
	Trust    *Trust   // nil: nobody is trusted
	// CertFields tell backends whose certificate was verified. A client behind a
	// trusted proxy has shown weir none: what the proxy says of it passes instead.
	CertFields CertFields

	// ClientAuthNames are the server names whose clients are asked for certificates,
	// where not all are: a request for such a host on a connection for another one,
	// or the other way round, is answered with 421. nil: all or nobody is asked.
	ClientAuthNames route.NameSet

	// HealthPath is answered by weir itself, with 200 while Ready says so and
	// with 503 otherwise. Empty: none. Such requests are neither routed nor
	// counted.
	HealthPath string
	Ready      func() bool // nil: always

	HSTS string // Strict-Transport-Security of every answer; empty: none. A route's own goes before it
	// Challenge returns what a validator of an authority is told under a path that
	// begins with /.well-known/acme-challenge/; nil: the request is like any other.
	// Such answers are neither routed nor counted. nil: nobody is asked.
	Challenge    func(host, path string) []byte
	DebugHeaders bool  // X-Served-By and Server-Timing toward clients
	MaxBody      int64 // largest request content in bytes; 0: no limit

	Series *observe.RouteSeries // of requests that found no route; nil: not counted
	Log    *observe.AccessLog   // nil: off
}

// Route is what happens to requests that match one rule. Exactly one of Pool,
// Respond and Redirect is set. It is immutable once published; Limit alone
// changes, and is kept from generation to generation.
type Route struct {
	Name     string
	Pool     PoolHandle
	PoolName string
	Key      KeyFunc // of requests to a pool whose policy wants keys; nil: they have none
	// ProxyHeader is the version of the PROXY header that connections to the pool's
	// backends begin with, whose Targets are Introducing; 0: none.
	ProxyHeader int
	// LoadReports says that the pool wants the load reports of answers (ORCA).
	LoadReports bool
	// GRPCExhausted says that the pool takes gRPC's RESOURCE_EXHAUSTED for a sign of
	// overload.
	GRPCExhausted bool
	// Priority says who is refused first where the pool has an adaptive limit.
	Priority balance.Priority
	// Weir says that the backends are weirs: each attempt tells them its number.
	Weir bool

	// Sticky keeps the sessions of clients on their backends; nil: there are none.
	Sticky *Sticky

	Respond  *Respond
	Redirect *Redirect

	Rewrite         Rewrite
	RequestHeaders  Edits
	ResponseHeaders Edits

	Timeouts  Timeouts
	Retry     pool.RetryRules
	RetryBody int64 // largest content kept for a replay, in bytes
	// IdempotencyKey is the request field by which a backend recognises a second
	// copy, so that any method may be sent again. nil: Idempotency-Key.
	IdempotencyKey *IdempotencyKey
	Limit          *Limiter // requests in flight; nil: no limit
	PoolSeries     *observe.PoolSeries
	Series         *observe.RouteSeries // nil: not counted
}

// IdempotencyKey names a request field; empty: there is none, and methods that
// are not idempotent by themselves are never sent again.
type IdempotencyKey struct {
	Name string
}

// in reports whether the fields hold a key: one line that is not empty. Of two a
// backend may take either.
func (k *IdempotencyKey) in(f *message.Fields) bool {
	n, full := 0, false
	for i := range f.Len() {
		if k.Name != "" && !f.Removed(i) && message.EqualFold(f.Name(i), k.Name) {
			n++
			full = len(f.Value(i)) > 0
		}
	}
	return n == 1 && full
}

// Timeouts are those rows of S7 that an exchange keeps. 0 means none.
type Timeouts struct {
	Request        time.Duration // head complete until the answer's head is complete; not for gRPC calls and upgrades
	Total          time.Duration // head complete until the last byte of the answer
	Connect        time.Duration // of one attempt, TLS included; also bounded by upstream's own
	Unacked        time.Duration // of the sent request, by the backend's host; as long as connecting may take
	ResponseHeader time.Duration // last byte of the request until the answer's head, restarted by 1xx
	StreamIdle     time.Duration // each byte either way
	TunnelIdle     time.Duration // each byte either way, after an upgrade
	TunnelAge      time.Duration // from the upgrade to its end, jittered by 10 %
}

// Rewrite changes what is forwarded, after routing. The zero value changes
// nothing.
type Rewrite struct {
	StripPrefix string // removed from the front of the path, whole segments only
	Host        string // replaces Host
	Path        string // replaces the path
}

// Respond is an answer that weir gives itself.
type Respond struct {
	Status      int
	ContentType string // empty: text/plain; charset=utf-8
	Body        []byte
}

// Redirect answers with a Location made of the request's own URL, with the
// parts set here replaced.
type Redirect struct {
	Status int    // 301, 302, 303, 307 or 308
	Scheme string // empty: the request's
	Host   string // empty: the request's
	Port   int    // 0: the scheme's own if Scheme is set, else the request's
	Path   string // replaces path and query; empty: the request's
}

// Edits change fields: remove first, then set, then add. Values must be valid
// field values; names that concern framing or one hop are ignored.
type Edits struct {
	Remove   []string
	Set, Add []Header
}

// Header is a field name and its value.
type Header struct {
	Name, Value string
}

func (e *Edits) apply(f *message.Fields) {
	for _, name := range e.Remove {
		if !framing(idOf(name)) {
			f.RemoveName(name)
		}
	}
	for i := range e.Set {
		h := &e.Set[i]
		if id := idOf(h.Name); !framing(id) {
			f.RemoveName(h.Name)
			f.Add(id, h.Name, h.Value)
		}
	}
	for i := range e.Add {
		h := &e.Add[i]
		if id := idOf(h.Name); !framing(id) {
			f.Add(id, h.Name, h.Value)
		}
	}
}

// framing names the fields that a codec decides about.
func framing(id message.FieldID) bool {
	switch id {
	case message.ContentLength, message.TransferEncoding, message.Connection, message.KeepAlive,
		message.ProxyConnection, message.TE, message.Trailer, message.Upgrade, message.HTTP2Settings:
		return true
	default:
		return false
	}
}

// Limiter bounds the requests in flight on one route (a bulkhead). It is safe
// for concurrent use and is kept from generation to generation.
type Limiter struct {
	max atomic.Int64
	n   atomic.Int64
}

// NewLimiter returns a limiter; 0 or less means no limit.
func NewLimiter(most int64) *Limiter {
	l := &Limiter{}
	l.SetMax(most)
	return l
}

// SetMax changes the limit. Requests that are in flight stay.
func (l *Limiter) SetMax(most int64) { l.max.Store(most) }

// InFlight returns the requests in flight.
func (l *Limiter) InFlight() int64 { return l.n.Load() }

// Acquire takes a place, if there is one.
func (l *Limiter) Acquire() bool { return l.acquire() }

// Release gives a place back.
func (l *Limiter) Release() { l.release() }

func (l *Limiter) acquire() bool {
	n := l.n.Add(1)
	if m := l.max.Load(); m > 0 && n > m {
		l.n.Add(-1)
		return false
	}
	return true
}

func (l *Limiter) release() { l.n.Add(-1) }

// ClientInfo says who the client is. There is one per client connection (or per
// stream of a multiplexed one); it carries what exchanges on it reuse, so one
// exchange at a time may use it.
type ClientInfo struct {
	// Set before the first exchange.
	Peer  netip.AddrPort // of the connection, or what its PROXY header said; invalid for unix sockets
	Local netip.AddrPort // where it was accepted, or what its PROXY header said; invalid for unix sockets
	TLS   bool
	// Proxied is what else its PROXY header said; nil: there was none.
	Proxied *Proxied
	// Secure is what its TLS is; nil without, and where nobody wants to know.
	Secure *Secure

	scratch clientScratch
}

// serverName is what the client asked for in TLS; empty: nothing.
func (c *ClientInfo) serverName() string {
	if c.Secure == nil {
		return ""
	}
	return c.Secure.Name
}

// Another returns a ClientInfo for further exchanges of the same connection, at
// the same time.
func (c *ClientInfo) Another() *ClientInfo {
	return &ClientInfo{Peer: c.Peer, Local: c.Local, TLS: c.TLS, Proxied: c.Proxied, Secure: c.Secure}
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"time"
)

// Plan is a complete, checked configuration: every default is filled in, every
// name resolves, every `auto` is decided where the text alone can decide it. It
// is immutable: whoever receives one reads it and copies what it wants to
// change. Throughout, a duration, size or count of 0 means "none" (no limit,
// switched off) unless the field says otherwise.
type Plan struct {
	File string // where the text came from; empty when made from flags
	// Files are all files that were read, File first, in the order of reading;
	// empty when the text came from no file. Globs are the patterns of include
	// (and, for a folder, of the folder), as paths: a file that begins to match
	// one belongs to the configuration, too.
	Files, Globs []string
	Admin        Admin
	Status       Status
	Log          Log
	Shutdown     Shutdown
	Reload       Reload
	Limits       Limits
	Metrics      Metrics
	Upgrade      Upgrade
	ACME         ACME
	// TrustedWeirs are the addresses whose X-Weir-* request headers are believed.
	TrustedWeirs []netip.Prefix
	StateFile    string // what is known outlives the process there; empty: it does not
	Check        Check
	Listeners    []Listener // sorted by name
	Pools        []Pool     // sorted by name

	// Warnings are findings that do not keep the plan from running, in the
	// order of the text, without those that check.silence names.
	Warnings []Warning

	// secrets are values that are never shown, wherever they stand.
	secrets []string
}

// Pool returns the pool with the name, or nil.
func (p *Plan) Pool(name string) *Pool {
	for i := range p.Pools {
		if p.Pools[i].Name == name {
			return &p.Pools[i]
		}
	}
	return nil
}

// Listener returns the listener with the name, or nil.
func (p *Plan) Listener(name string) *Listener {
	for i := range p.Listeners {
		if p.Listeners[i].Name == name {
			return &p.Listeners[i]
		}
	}
	return nil
}

// Position is a place in the text. The zero value means "nowhere": the thing
// came from flags or is a default.
type Position struct {
	File string
	Line int // from 1
	Col  int // in characters, from 1
}

// Warning is a finding that does not keep a plan from running.
type Warning struct {
	Pos  Position
	Name string // what check.silence calls it, e.g. "unused_pool"
	Text string // what is odd, and how to settle it
	Line string // the line of the text, for display
}

// Admin is where the API and the dashboard are served.
type Admin struct {
	Bind      string   // host:port or unix:/path; empty: off
	TokenFile string   // file holding the bearer token; empty: none
	Hosts     []string // further Host values that are accepted
}

// Status is the read-only bind for orchestrators: /livez, /readyz, /metrics.
type Status struct {
	Bind string // empty: off
}

// Log configures what is written where.
type Log struct {
	Level  string // debug, info, warn, error
	Access AccessLog
}

// AccessLog configures one line per request.
type AccessLog struct {
	Off    bool
	Path   string        // stdout, stderr or a file
	Format string        // json, common, combined or a template (package logline)
	Sample float64       // share of requests that are written, above 0, at most 1
	Always []string      // of errors, retried, refused, aborted, sorted: written whatever Sample says; nil: none
	Slow   time.Duration // requests that take this long, too; 0: none
	Query  bool          // queries are written
	// RequestHeaders are the fields of the request that JSON lines show, sorted.
	RequestHeaders []string
}

// Shutdown bounds the end of the process. Both run from the signal.
type Shutdown struct {
	Delay    time.Duration // accepting goes on, /readyz fails; 0: no delay
	Deadline time.Duration // what is left is cut
	Spread   time.Duration // before the deadline: tunnels are ended within it
}

// Limits are the ceilings of the process.
type Limits struct {
	MaxConnections int64   // client connections; 0: auto, 80 % of half of RLIMIT_NOFILE
	Buffered       float64 // part of the memory limit, or of memory, for content that is held; over 0
}

// Metrics configures the label values of metrics.
type Metrics struct {
	Codes         string // class (429, 499, 502, 503, 504 verbatim) or exact
	BackendSeries int    // pools above this size have no per-backend series; 0: none has
}

// Check holds what the linter compares with; nothing of it changes traffic.
type Check struct {
	Detection time.Duration // slo.detection: a dead backend must be out by then; 0: no goal
	Front     *Front        // the balancer in front of weir; nil: none is known
	Layers    []Layer       // what else retries on the way, in file order
	Rate      float64       // requests per second at the peak; 0: unknown
	Grace     time.Duration // the orchestrator's kill grace period; 0: unknown
	Silence   []string      // names of warnings not to report, sorted
}

// Layer is something before or behind weir that retries, too.
type Layer struct {
	Name     string
	Attempts int // every try, the first included
}

// Front describes the balancer in front of weir.
type Front struct {
	Idle     time.Duration // how long it keeps idle connections to weir
	Interval time.Duration // how often it checks weir
	Fall     int           // after how many failed checks it gives weir up
}

// Listener is one group of sockets with one set of routes.
type Listener struct {
	Name           string
	Pos            Position
	Bind           []string       // host:port, :port, unix:/path or systemd:NAME; none only where a route of an sni listener leads here
	Protocol       string         // http or tcp
	TLS            *ListenerTLS   // nil: plain
	H2             bool           // http.h2: HTTP/2 is offered
	MaxHeaderBytes int64          // http.max_header_bytes
	MaxBody        int64          // http.max_body; 0: no limit
	MaxAge         time.Duration  // http.max_connection_age; 0: none
	MaxAgeGrace    time.Duration  // http.max_connection_age_grace: what is left on it is cut; 0: never
	MaxRequests    int64          // http.max_requests, of one client connection; 0: no limit
	HealthPath     string         // answered by weir itself; empty: none
	TrustedProxies []netip.Prefix // peers whose forwarding headers are believed
	ProxyProtocol  ProxyProtocol
	Timeouts       ListenerTimeouts
	MaxConnections int64 // limits.max_connections
	MaxPerClient   int64 // limits.max_connections_per_client
	DebugHeaders   bool
	Routes         []Route // in file order; `pool:` beside bind is a catch-all at the end
}

// ListenerTLS configures the termination of TLS.
type ListenerTLS struct {
	Certificates []KeyPair // in file order; the first is used without SNI; none only with ACME
	ACME         []string  // names whose certificates are obtained by ACME, in file order
	ALPN         []string  // of tcp listeners: what is agreed on; none: nothing is
	MinVersion   uint16    // tls.VersionTLS12 or tls.VersionTLS13
	ClientAuth   ClientAuth
	// TicketKeysFile holds the keys of session tickets; empty: the listener makes
	// its own.
	TicketKeysFile string
	HSTS           *HSTS // nil: off
}

// ClientAuth says what is asked of clients.
type ClientAuth struct {
	Mode    string   // off, optional or required
	CA      string   // PEM file; empty only when off
	CRL     string   // file of revocation lists; empty: none
	Forward []string // of client_cert, client_cert_chain and xfcc, sorted; nil: nothing
	SNI     []string // only clients that ask for one of these names; nil: all
}

// HSTS is RFC 6797's policy for hosts of a listener.
type HSTS struct {
	MaxAge              time.Duration
	Subdomains, Preload bool
}

// KeyPair names a certificate chain and its key, both PEM files.
type KeyPair struct {
	Cert, Key string
	Pos       Position
}

// ListenerTimeouts are S7's rows for listeners.
type ListenerTimeouts struct {
	Header      time.Duration
	Idle        time.Duration
	Write       time.Duration
	BodyMinRate int64 // bytes per second while weir waits for body bytes
	BodyGrace   time.Duration
	Total       time.Duration // of a session; 0: none

	protocol string // of the listener: what "auto" means
}

// Route says what happens to requests that match. Exactly one of Pool, Respond
// and Redirect is set.
type Route struct {
	Name            string // unique within the listener: `name`, or made from the match
	Pos             Position
	Match           Match
	Pool            string
	Listener        string // of sni listeners, in the place of Pool: who ends TLS and goes on
	Respond         *Respond
	Redirect        *Redirect
	Rewrite         Rewrite
	RequestHeaders  HeaderEdits
	ResponseHeaders HeaderEdits
	Timeouts        RouteTimeouts
	Retry           Retry  // the route's keys over the pool's
	MaxRequests     int64  // limits.requests: in flight on this route
	Priority        string // low, normal or high: who is refused first under an adaptive limit
	Raw             bool
	StartTLS        string // starttls of sni listeners: postgres; empty: clients begin with TLS
}

// Match holds the conditions of a route; all must hold. The zero value matches
// everything.
type Match struct {
	Host       string // lower case, no port; `*.example.com` is one or more labels; empty: any
	Path       string // exact, normalised (as written under raw); empty: any
	PathPrefix string // `/v1` matches /v1 and /v1/..., never /v10; empty: any
	Methods    []string
	Headers    []HeaderMatch // sorted by name
	SNI        []string      // lower case; `*.example.com` is one or more labels; empty: any, and none
	ALPN       []string      // of sni listeners: the client offers one of them; empty: any
}

// HeaderMatch asks for a field line with this name and exactly this value.
type HeaderMatch struct {
	Name, Value string
}

// Respond is an answer that weir gives itself.
type Respond struct {
	Code        int
	Body        string
	ContentType string
}

// Redirect answers with a Location. Empty parts are taken from the request.
type Redirect struct {
	Code   int // 301, 302, 303, 307 or 308
	Scheme string
	Host   string
	Port   int    // 0: the port that belongs to the scheme when Scheme is set, else the request's
	Path   string // replaces the path and the query; empty: the request's
}

// Rewrite changes what is forwarded, after routing.
type Rewrite struct {
	StripPrefix string // removed from the front of the path, whole segments only
	Host        string // replaces Host
	Path        string // replaces the path
}

// HeaderEdits change fields: remove first, then set, then add.
type HeaderEdits struct {
	Set    []Header // sorted by name
	Add    []Header // sorted by name
	Remove []string // sorted
}

// Header is a field name and value.
type Header struct {
	Name, Value string
}

// RouteTimeouts are S7's rows for routes.
type RouteTimeouts struct {
	Request time.Duration
	Total   time.Duration
}

// Retry says which failures are tried again (S5).
type Retry struct {
	Attempts int   // every try, the first included; 1: neither retries nor redispatches
	OnReset  bool  // a connection that died after bytes were sent
	OnStatus []int // answers that are retried, sorted
	// OnGRPC are statuses of gRPC calls that are retried where the answer is nothing
	// else, by number, sorted.
	OnGRPC []int
	Within time.Duration
	Body   int64 // largest body that is kept for a replay; 0: only requests without a body
	// IdempotencyKey is the request field that makes any method repeatable; empty:
	// there is none.
	IdempotencyKey string
	Hedge          Hedge
}

// Hedge says when an attempt without an answer gets a second one beside it.
type Hedge struct {
	After HedgeAfter
	Max   int // of a request: 1
}

// HedgeAfter is a time, or a percentage of the pool's answers; the zero value
// switches hedges off.
type HedgeAfter struct {
	Percent int
	Time    time.Duration
}

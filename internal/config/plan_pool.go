// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Pool is a group of backends that share the work.
type Pool struct {
	Name     string
	Pos      Position
	Balance  string // p2c, round_robin, random, least_request, peak_ewma, ring_hash, rendezvous, maglev
	Choices  int    // p2c.choices
	EWMA     EWMA   // of peak_ewma
	Hash     Hash   // of ring_hash, rendezvous and maglev
	Backends []Backend
	Discover *Discover // where further backends are found; nil: nowhere
	Active   Active
	Passive  Passive
	Panic    Panic
	Overload Overload
	// SlowStart is for backends that come later, or back.
	SlowStart SlowStart
	Limits    PoolLimits
	Budget    Budget
	Retry     Retry // what routes to this pool start from
	Timeouts  PoolTimeouts
	Upstream  Upstream
	TLS       PoolTLS
	Subset    *Subset // nil: weir uses every backend
	Zone      *Zone   // nil: zones do not count
	// Overprovisioning says how much of a tier may be lost before the next one
	// takes over a part: with 1.4 it serves alone as long as more than 1/1.4 of
	// it (71 %) serves.
	Overprovisioning float64
	// DrainDeadline cuts what a draining backend still has in flight; 0: never.
	DrainDeadline time.Duration
	// DrainSpread is how long before it tunnels begin to be ended, a few at a time.
	DrainSpread time.Duration
	// OnBroken is what becomes of the tunnels of a backend that broke: keep or close.
	OnBroken  string
	Rebalance *Rebalance // of tunnels; nil: off
	Sticky    *Sticky    // nil: requests are placed one by one
	// SendProxyProtocol is the version of the PROXY header that connections to
	// backends begin with: v1 or v2; empty: none.
	SendProxyProtocol string
	// Weir says that the backends are weirs, which are told the number of each
	// attempt (S6).
	Weir bool
}

// Backend is one server.
type Backend struct {
	ID      string // `id`, or the address
	Pos     Position
	URL     string // scheme://host:port, canonical
	Address string // host:port; IPv6 in brackets; a name is lower case
	TLS     bool   // https
	Weight  uint32 // 0: no new work
	Zone    string
	Backup  bool
	// Priority is the backend's tier, 0 the first. A backup with priority 0
	// belongs to a tier behind all others.
	Priority uint8
}

// Rebalance ends tunnels of backends that have more than their part.
type Rebalance struct {
	Above     float64 // by how much more a backend may have
	PerMinute float64 // part of the pool's tunnels that may be ended in a minute
	MinAge    time.Duration
}

// EWMA configures peak_ewma's estimates.
type EWMA struct {
	Decay   time.Duration // after which an old latency weighs 1/e
	Penalty time.Duration // what a failure counts as
}

// Hash configures the policies that place equal keys on equal backends.
type Hash struct {
	Key          []KeyPart // at least one
	BoundedLoad  float64   // most load of a backend over the mean, at least 1; 0: no bound
	Spill        int       // among how many of the key's next backends a saturated one's work goes; 0: off
	TableSize    int       // of maglev, prime
	VirtualNodes int       // of ring_hash, of a backend of average weight
	Fallback     string    // policy of requests without a key
}

// Keyed reports whether the pool's policy places requests by their key.
func (p *Pool) Keyed() bool { return keyedPolicy(p.Balance) }

// KeyPart is one part of the key that is hashed.
type KeyPart struct {
	From string // client_ip, header, cookie, query, path
	Name string // of the header, cookie or parameter; else empty
}

// String returns the part as it is written, such as header:X-User.
func (k KeyPart) String() string {
	if k.Name == "" {
		return k.From
	}
	return k.From + ":" + k.Name
}

// Overload says what counts as a backend's word that it is full, and how far
// its share shrinks for it.
type Overload struct {
	Off     bool
	Signals []string // of 503_retry_after, 429, orca, grpc_resource_exhausted, queue_full; sorted
	Floor   float64  // least share
}

// SlowStart grants backends that come later their share little by little.
type SlowStart struct {
	Window   time.Duration // 0: off
	From     float64       // first share
	PoolRamp time.Duration // of a whole pool that comes back from nothing; 0: off
}

// Subset lets one of many balancers use a part of the pool.
type Subset struct {
	Size  int // backends of each tier that this balancer uses
	Index int // which of the balancers this one is, from 0; -1: not said
	Count int // how many balancers there are; 0: not said, the subset is drawn by host and process
}

// Zone prefers backends near to the balancer.
type Zone struct {
	Local   string // the balancer's own zone
	MinSize int    // pools smaller than this ignore zones
}

// Active configures probes.
type Active struct {
	Off          bool
	Protocol     string // tcp, http or grpc
	Path         string // path and query that is asked for; empty unless http
	Method       string
	Interval     time.Duration
	FastInterval time.Duration
	Jitter       float64 // share of the interval
	Timeout      time.Duration
	Fall, Rise   int
	Expect       []StatusRange // answers that pass
	Port         int           // 0: the backend's
	Host         string        // Host and TLS name; empty: as for traffic
	TLS          string        // auto (as for traffic), on, off
	Send         string        // what a tcp check says first, see SendText; empty: nothing
	Body         string        // what the answer must contain, see BodyPattern; empty: anything
	Service      string        // that grpc asks about; empty: the server as a whole
	InitialUp    bool          // backends added later take work before their first pass
}

// StatusRange is an inclusive range of status codes.
type StatusRange struct {
	From, To int
}

// Passive configures ejection by traffic.
type Passive struct {
	Off                bool
	Consecutive        int
	ConsecutiveConnect int
	Eject, MaxEject    time.Duration
	MaxEjected         float64 // share of the pool
	SuccessRate        SuccessRate
	Latency            Latency
}

// SuccessRate ejects backends that fail far more often than the others.
type SuccessRate struct {
	Off         bool
	Factor      float64 // standard deviations below the mean
	MinRequests int     // of a backend in the window, for its rate to count
	MinBackends int     // with so many requests; with fewer the others' rate is what a backend is held against
}

// Latency ejects backends that are far slower than the others.
type Latency struct {
	Off         bool
	Factor      float64       // times the others' median
	Above       time.Duration // and at least so much more
	MinRequests int           // of a backend in the window, for its latency to count
}

// Panic says what happens when too much of a pool looks bad (S4).
type Panic struct {
	Off       bool
	Threshold float64 // share of serving backends below which health is distrusted
	Then      string  // serve, shed, failover
	Floor     int     // opinions never leave fewer serving backends than this
}

// PoolLimits are ceilings; the first two are per backend.
type PoolLimits struct {
	Connections  int64
	Requests     int64
	PoolRequests int64
	Queue        int // waiting requests; 0: none wait (a full pool answers at once)
	QueueTimeout time.Duration
	Adaptive     *AdaptiveLimit // nil: off
}

// AdaptiveLimit bounds a pool's requests in flight by a limit that follows
// latency.
type AdaptiveLimit struct {
	Floor     int64   // least limit
	Ceiling   int64   // largest, and where it begins; 0: none
	Tolerance float64 // accepted latency, times that without load
}

// Budget bounds retries of a pool.
type Budget struct {
	Share        float64 // retries allowed per request over the window; 0: only MinPerSecond
	Window       time.Duration
	MinPerSecond float64
	Base, Max    time.Duration // backoff
}

// PoolTimeouts are S7's rows for pools.
type PoolTimeouts struct {
	Connect        time.Duration
	TLS            time.Duration
	ResponseHeader time.Duration
	StreamIdle     time.Duration
	TunnelIdle     time.Duration
	TunnelAge      time.Duration // 0: none
	KeepAlive      time.Duration
}

// Upstream configures the kept connections to each backend.
type Upstream struct {
	MaxIdle           int   // idle connections kept per backend; 0: none is kept
	MaxRequests       int64 // requests per connection
	ReuseUnsafeWithin time.Duration
	MaxConnectionAge  time.Duration
	H2                bool          // https backends are offered HTTP/2
	MaxStreams        int           // requests at once on a connection over HTTP/2
	Ping              time.Duration // silence after which such a connection is asked whether it is there; 0: never
}

// PoolTLS configures https backends.
type PoolTLS struct {
	CA                 string // PEM file; empty: the system's
	ServerName         string // empty: the name in the URL
	Cert, Key          string // client certificate; empty: none
	MinVersion         uint16 // tls.VersionTLS12 or tls.VersionTLS13
	InsecureSkipVerify bool
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Refusal says why no backend was granted.
type Refusal uint8

// The refusals.
const (
	Granted      Refusal = iota
	NoBackend            // the pool holds none, or all are drained, disabled or of weight 0
	AllBroken            // health leaves none
	Full                 // all are at their limits; Wait may help
	QueueFull            // and so is the queue
	QueueTimeout         // no slot came free in time
	Shed                 // the pool protects what is left in panic, ramps up as a whole, or is at its adaptive limit
	Aborted              // the caller's abort channel closed while waiting
)

var refusalNames = [...]string{"granted", "no_backend", "all_broken", "full", "queue_full", "queue_timeout", "shed", "aborted"}

// String returns the word used in logs.
func (r Refusal) String() string {
	if int(r) < len(refusalNames) {
		return refusalNames[r]
	}
	return "unknown"
}

// OutcomeKind is how an attempt on a backend ended.
type OutcomeKind uint8

// The kinds of outcomes.
const (
	Success            OutcomeKind = iota // any final answer, judged by Status and RetryAfter
	ConnectRefused                        // the connection was refused
	ConnectUnreachable                    // no route
	ConnectTimeout                        // no answer to the connection attempt
	TLSFailed                             // handshake or certificate
	Reset                                 // reset or closed before or within the answer
	Malformed                             // an answer that is none
	ResponseTimeout                       // no answer in time
	ClientFault                           // the client sent something bad or stalled
	LocalFault                            // weir's own: ports, files, memory, name resolution
	Canceled                              // the client went away, or the attempt was given up for another
)

var kindNames = [...]string{
	"success", "connect_refused", "unreachable", "connect_timeout", "tls_failed", "reset",
	"bad_response", "response_timeout", "client_fault", "local_fault", "canceled",
}

// String returns the word used in logs.
func (k OutcomeKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// cause translates a failed connection attempt for package health.
func (k OutcomeKind) cause() health.Cause {
	switch k {
	case ConnectRefused:
		return health.CauseRefused
	case ConnectUnreachable:
		return health.CauseNoRoute
	case ConnectTimeout:
		return health.CauseTimeout
	case TLSFailed:
		return health.CauseTLS
	default:
		return health.CauseNone
	}
}

// Outcome is what a lease's holder saw.
type Outcome struct {
	Now        balance.Instant
	Kind       OutcomeKind
	Status     int  // of the answer
	RetryAfter bool // the answer carried Retry-After
	Sent       bool // a byte of the request was put on the backend
	Reused     bool // over a kept connection: an answer does not say that a new one can be made
	Stale      bool // a reused connection died before a response byte: the backend is not to blame
	FirstByte  time.Duration
	Total      time.Duration
	Client     uint64 // hash of the client's address, 0 unknown
	// RetryAfterFor is how long Retry-After asks for; 0 when it is unknown or in
	// the past. Meaningful when RetryAfter is set.
	RetryAfterFor time.Duration
	// Load is the backend's own load report, its utilization: 1 is capacity and
	// more is over it. Meaningful when HasLoad is set.
	Load    float64
	HasLoad bool
	// Tunnel says that the connection was upgraded: its times teach nothing
	// about latency.
	Tunnel bool
	// Overloaded says that the answer carried another signal of overload that is
	// listed in the pool's configuration, gRPC's RESOURCE_EXHAUSTED for one.
	Overloaded bool
	// Behind says that the backend is another layer of balancing which tells of a
	// failure behind it: it has retried itself, or declined to.
	Behind bool
	// Overtaken says of a Canceled attempt that a hedge answered first: it would
	// have taken longer than Total.
	Overtaken bool
}

// firstByte returns the latency that the outcome tells.
func (o *Outcome) firstByte() time.Duration {
	if o.FirstByte <= 0 {
		return max(o.Total, 0)
	}
	return o.FirstByte
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Config is what a pool is built from. It is not changed after New.
type Config struct {
	Name          string
	Instance      uint64         // this balancer's own number, see balance.NewSet
	Policy        balance.Policy // nil: p2c with two choices
	Active        health.Active
	Passive       health.Passive
	Overload      health.Overload
	SlowStart     SlowStart
	Panic         Panic
	Limits        Limits
	Retry         Budget
	DrainDeadline time.Duration // for draining backends; 0: none
	// DrainSpread is how long before the deadline DrainEnding is said; 0: never.
	DrainSpread time.Duration
	// KeepSessions lets requests that prefer a draining backend go there until
	// DrainSpread before its deadline, and those that prefer one of weight 0.
	KeepSessions bool
	Zone         Zone
	// Overprovisioning is how much more than its part of the load a tier is
	// expected to bear, see tierLoads; 0: 1.4.
	Overprovisioning float64
	Subset           Subset
	// First says that the members of the first Update belong to the process's
	// first configuration: they are established, start unproven with full share
	// and are never slow-started.
	First bool
}

// SlowStart grants backends their share little by little: those added after
// the process's first configuration, recovered, re-enabled by the operator or
// proven after an ejection. The zero value is off.
type SlowStart struct {
	Window time.Duration // from From to a full share, in a straight line; 0: off
	From   float64       // share at the beginning, 0..1
	// PoolRamp is how long a pool that served and had nobody left lets requests
	// in little by little, from From on, once there is somebody again; what it
	// does not let in is refused as Shed. 0: off, and never at the start.
	PoolRamp time.Duration
}

// Then is what a pool does in panic.
type Then uint8

// The answers to panic.
const (
	ThenServe    Then = iota // distrust health: spread the load over all
	ThenShed                 // protect what is left: refuse what exceeds it
	ThenFailover             // send it to the backup backends
)

// String returns the word of the configuration.
func (t Then) String() string {
	switch t {
	case ThenShed:
		return "shed"
	case ThenFailover:
		return "failover"
	default:
		return "serve"
	}
}

// Panic says when health is no longer believed.
type Panic struct {
	Off       bool
	Threshold float64 // below this part of serving backends the pool panics
	Then      Then
	Floor     int // opinions never take the pool below so many serving backends
}

// Limits bound the work a pool takes. Zero means no limit, for Queue no queue.
type Limits struct {
	BackendRequests int64         // in flight per backend
	PoolRequests    int64         // in flight in the pool
	Queue           int           // requests that wait for a slot
	QueueTimeout    time.Duration // how long one waits
	// Adaptive is a limit of the pool that finds itself; what exceeds it is refused
	// as Shed and does not wait.
	Adaptive Adaptive
}

// Budget bounds retries, so that they never become the load.
type Budget struct {
	Share        float64       // part of the requests in the window
	Window       time.Duration // 0 counts as 10s
	MinPerSecond float64       // floor for pools with little traffic
	Base, Max    time.Duration // backoff before a retry: full jitter, doubling from Base up to Max
}

// Spec is one backend as configured or discovered.
type Spec struct {
	ID     string // unique within the pool, host:port by default
	URL    string
	Weight uint32 // nominal; 0: no new work
	Zone   string
	// Priority names the backend's tier: 0 takes work first, a higher one as
	// those below it lose health.
	Priority uint8
	// Backup without a priority is a tier of its own after all priorities.
	Backup bool
}

// Override is the operator's word about one backend. It outlives Update: a
// backend that leaves and comes back is still overridden.
type Override struct {
	Admin       *balance.Admin // Enabled ends an override
	Weight      *uint32
	ResetWeight bool
	Deadline    time.Duration // for Draining; 0: the pool's
}

// ErrUnknownBackend is returned for an id that the pool does not hold.
var ErrUnknownBackend = errors.New("unknown backend")

// Driver does what the core decides. Attach is called under the pool's lock
// and must not call back into the pool; the other methods are called from the
// pool's goroutine, one at a time, and should return at once.
type Driver interface {
	// Attach returns the data plane's state for a new backend, which becomes
	// b.Attachment(). Every Attach is answered by one Gone.
	Attach(b *balance.Backend) any
	// Probe starts one probe. done must be called exactly once, from any
	// goroutine, also from within Probe.
	Probe(b *balance.Backend, timeout time.Duration, done func(health.ProbeResult))
	// CloseIdle closes the idle upstream connections of b.
	CloseIdle(b *balance.Backend)
	// Gone says that b was removed and nothing is in flight on it, or that the
	// pool was closed.
	Gone(b *balance.Backend)
	// Notice reports a change, for logs, metrics and events.
	Notice(n Notice)
}

// NoticeKind is what a Notice is about.
type NoticeKind uint8

// The kinds of notices.
const (
	StateChanged     NoticeKind = iota // From, To, Reason, Why
	EjectedNow                         // Reason ejected, For: how long
	PanicBegan                         // Why
	PanicEnded                         //
	SharedDependency                   // much of the pool says not_ready while its traffic succeeds
	SharedOver                         //
	BrokenCheck                        // the checks of much of the pool fail while its traffic succeeds
	BrokenCheckOver                    //
	DrainBegan                         // Left, For: time to the deadline, 0 none
	DrainOver                          // the deadline passed with Left in flight: cut them
	DrainEmpty                         // nothing is in flight any more
	DrainEnding                        // Left in flight, For: time to the deadline; tunnels are to be ended within it
	Overridden                         // Why: what the operator said
	Added                              //
	Removed                            //
	SlowStartBegan                     // Share: where it begins, For: its window; of the whole pool when Backend is nil
	SessionsOver                       // a draining backend that kept its sessions gets no more of their requests; Left in flight
)

var noticeNames = [...]string{
	"state_changed", "ejected", "panic_began", "panic_ended", "shared_dependency", "shared_dependency_over", "broken_check", "broken_check_over",
	"drain_began", "drain_over", "drain_empty", "drain_ending", "overridden", "added", "removed",
	"slow_start", "sessions_over",
}

// String returns the word used in logs and events.
func (k NoticeKind) String() string {
	if int(k) < len(noticeNames) {
		return noticeNames[k]
	}
	return "unknown"
}

// Notice is one change worth telling.
type Notice struct {
	At       balance.Instant
	Kind     NoticeKind
	Pool     string
	Backend  *balance.Backend // nil when it is about the pool
	From, To health.State
	Reason   health.Reason
	Share    float64
	Why      string
	For      time.Duration
	Left     int64 // in flight
	Sessions bool  // of DrainBegan: its sessions go on, so that it gets requests
}

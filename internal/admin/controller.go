// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"time"
)

// Controller is what the API needs from the running balancer. Its methods are
// called concurrently and return plain values that are the caller's to keep.
type Controller interface {
	Status() Status
	// Pools returns every pool, sorted by name, with its backends.
	Pools() []Pool
	// Pool returns one pool, or ErrUnknownPool.
	Pool(name string) (Pool, error)
	// Patch changes what the operator says about one backend and returns the
	// backend as it is then. Weights are those that a configuration may hold. Errors: ErrUnknownPool, ErrUnknownBackend, or an
	// ErrBadPatch with the reason.
	Patch(pool, backend string, p Patch) (Backend, error)
	// NotReady returns why traffic should not be sent here yet or any more; an
	// empty result means ready. With pools it also says which of those would
	// refuse every request.
	NotReady(pools []string) []string
}

// Errors that a Controller returns, possibly wrapped.
var (
	ErrUnknownPool     = errors.New("no such pool")
	ErrUnknownBackend  = errors.New("no such backend")
	ErrUnknownListener = errors.New("no such listener")
	ErrBadPatch        = errors.New("cannot be applied")
)

// Status says what is running.
type Status struct {
	Version    string        `json:"version"`
	PID        int           `json:"pid"`
	Started    time.Time     `json:"started"`
	UptimeS    float64       `json:"uptime_s"`
	State      string        `json:"state"` // starting, serving, draining
	Generation uint64        `json:"generation"`
	Config     string        `json:"config,omitempty"` // file of the configuration; empty: made from flags
	Ready      bool          `json:"ready"`
	NotReady   []string      `json:"not_ready,omitempty"`
	Listeners  []Listener    `json:"listeners"`
	Pools      []PoolSummary `json:"pools"`
	Warnings   []string      `json:"warnings,omitempty"`
	// Predecessor is the process that this one took over from; absent: there was
	// none, or it has ended.
	Predecessor *Predecessor `json:"predecessor,omitempty"`
	// Successor is the process that took over from this one, which drains; absent:
	// none did.
	Successor *Process `json:"successor,omitempty"`
	// Host is what the kernel says of weir's network namespace; absent: nothing.
	Host *Host `json:"host,omitempty"`
	// Memory is how much there is for weir.
	Memory Memory `json:"memory"`
}

// Listener is one listener in Status.
type Listener struct {
	Name        string   `json:"name"`
	Bind        []string `json:"bind"` // as bound: real ports
	Protocol    string   `json:"protocol"`
	TLS         bool     `json:"tls"`
	Connections int64    `json:"connections"`
	// AcceptQueue are the connections that the kernel holds for accept, and
	// AcceptQueueLimit is where their queue overflows; 0: unknown.
	AcceptQueue      int64         `json:"accept_queue"`
	AcceptQueueLimit int64         `json:"accept_queue_limit"`
	Certificates     []Certificate `json:"certificates,omitempty"`
	Routes           []Route       `json:"routes"`
}

// Route is one route of a listener, in the order in which they are tried.
type Route struct {
	Name     string `json:"name"`
	Match    string `json:"match"` // in words: "api.example.com/v1..."
	Pool     string `json:"pool,omitempty"`
	InFlight int64  `json:"in_flight"`
}

// PoolSummary is one pool without its backends.
type PoolSummary struct {
	Name     string `json:"name"`
	Balance  string `json:"balance"`
	Ready    bool   `json:"ready"`           // the first round of probes is over
	Backends int    `json:"size"`            // how many there are
	Known    int    `json:"known,omitempty"` // of how many they are a subset; absent: there is none
	Serving  int    `json:"serving"`         // backends that may get new work
	Panic    bool   `json:"panic"`
	// Correlated says what the checks of much of the pool fail together for while
	// its requests succeed: broken_check, shared_dependency; absent: they do not.
	Correlated    string `json:"correlated_failure,omitempty"`
	CorrelatedWhy string `json:"correlated_failure_why,omitempty"`
	InFlight      int64  `json:"in_flight"`
	// Tunnels are how many of them are open tunnels (WebSocket); absent: none.
	Tunnels int64 `json:"tunnels,omitempty"`
	// Streams are how many are server-sent events or gRPC streams that have lasted
	// for a moment; absent: none.
	Streams int64 `json:"streams,omitempty"`
	// Adaptive is a limit that finds itself; absent: there is none.
	Adaptive             *AdaptiveLimit `json:"adaptive,omitempty"`
	QueueLength          int            `json:"queue_length"`
	Saturation           float64        `json:"saturation"`
	RetryBudgetRemaining float64        `json:"retry_budget_remaining"`
	Connections          int64          `json:"connections"` // open, to backends
	Requests             uint64         `json:"requests"`
	Failures             uint64         `json:"failures"`
	DetectionMS          float64        `json:"detection_ms"` // worst case until a dead backend is out; 0: no checks
	// Discovery is where backends are found; absent: all are listed.
	Discovery *Discovery `json:"discovery,omitempty"`
}

// AdaptiveLimit is a pool's limit that finds itself.
type AdaptiveLimit struct {
	Limit     int64             `json:"limit,omitempty"` // requests in flight, as those of high priority see it; absent: nothing is bounded so far
	InFlight  int64             `json:"in_flight"`
	Allowed   map[string]int64  `json:"allowed,omitempty"`         // in flight up to which requests of a priority are let in
	Shed      map[string]uint64 `json:"shed"`                      // requests refused, by priority
	BaseMS    float64           `json:"base_latency_ms,omitempty"` // what is taken for the latency without load; absent: not known
	LatencyMS float64           `json:"latency_ms,omitempty"`      // of the last moments
}

// Discovery tells how a pool's backends are found.
type Discovery struct {
	Source      string     `json:"source"`                  // such as "dns srv _http._tcp.example.com"
	Found       int        `json:"found"`                   // backends in the pool that come from it
	Held        int        `json:"held,omitempty"`          // of them, those missing from the last answer that stay until another one confirms that
	LastAnswer  *time.Time `json:"last_answer,omitempty"`   // the last one with backends; absent: none yet
	Failing     bool       `json:"failing"`                 // the last look failed, or found nobody: what was found before stays in use
	LastError   string     `json:"last_error,omitempty"`    // of the last failure, which may be over
	LastErrorAt *time.Time `json:"last_error_at,omitempty"` // when that was
	NotUsed     string     `json:"not_used,omitempty"`      // one that was found and is not used, and why
}

// Pool is a pool with its backends.
type Pool struct {
	PoolSummary
	Tiers   []Tier    `json:"tiers,omitempty"` // best first; absent when there is one, without zones
	Members []Backend `json:"backends"`
}

// Tier is the backends of one priority.
type Tier struct {
	Name     string  `json:"name"`    // "priority N" or "backup"
	Backends int     `json:"size"`    // enabled, with a weight
	Serving  int     `json:"serving"` // of them
	Health   float64 `json:"health"`  // serving part by weight
	Load     float64 `json:"load"`    // part of the requests that comes here first
	Panic    bool    `json:"panic"`
	Zoned    string  `json:"zoned,omitempty"` // whether zones count: on, or why not: panic, min_size, not_local, one_zone; absent: not configured
	Zones    []Zone  `json:"zones,omitempty"`
}

// Zone is the backends of a tier that are in one zone.
type Zone struct {
	Name     string  `json:"name"` // empty: those that name none
	Local    bool    `json:"local"`
	Backends int     `json:"size"`
	Serving  int     `json:"serving"`
	Capacity float64 `json:"capacity"` // part of the tier's; 0 while zones do not count
	Load     float64 `json:"load"`     // part of the tier's requests that comes here first; 0 while zones do not count
}

// Backend is one backend.
type Backend struct {
	ID     string  `json:"id"`
	URL    string  `json:"url"`
	Zone   string  `json:"zone"`
	Weight uint32  `json:"weight"`
	Backup bool    `json:"backup,omitempty"`
	Tier   string  `json:"tier,omitempty"` // name of its tier; absent when there is one
	Admin  string  `json:"admin"`          // enabled, draining, disabled
	Health string  `json:"health"`         // unproven, healthy, overloaded, not_ready, broken
	Share  float64 `json:"share"`          // in force now
	// SlowStartLeftS is when a slow start is over, in seconds; absent: none is
	// under way.
	SlowStartLeftS float64   `json:"slow_start_left_s,omitempty"`
	Reason         string    `json:"reason"`        // what binds the share; empty: nothing does
	Why            string    `json:"why,omitempty"` // the cause of the state in words
	Since          time.Time `json:"since"`         // of the state
	Flips          uint64    `json:"flips"`
	InFlight       int64     `json:"in_flight"`
	Tunnels        int64     `json:"tunnels,omitempty"` // of InFlight, open tunnels (WebSocket)
	Streams        int64     `json:"streams,omitempty"` // of InFlight, server-sent events and gRPC streams
	Requests       uint64    `json:"requests"`
	Failures       uint64    `json:"failures"`
	Latency        Latency   `json:"latency_ms"`
	LastCheck      *Check    `json:"last_check"` // null: none yet
	History        []Change  `json:"history"`    // of state and share; oldest first, the last 16
	Override       *Override `json:"override,omitempty"`
	Drain          *Drain    `json:"drain,omitempty"`  // while draining
	Source         string    `json:"source,omitempty"` // what lists it: config, api, discovery; absent: nothing does any more
	Added          *Added    `json:"added,omitempty"`  // with source api
	// Removed says that it is no longer a member and finishes what is in flight.
	Removed bool `json:"removed,omitempty"`
	// Warning is in the answer to a change: what it costs.
	Warning string `json:"warning,omitempty"`
	// OutsideSubset says that only other balancers use it; nothing but what the
	// operator says is known of it here, and kept for when it comes here.
	OutsideSubset bool `json:"outside_subset,omitempty"`
	// LearnedIdleS is after how long the backend was seen to close idle
	// connections, in seconds; absent: not known. weir closes before that.
	LearnedIdleS float64 `json:"learned_idle_s,omitempty"`
	// LoadReport is what the backend last said of its own load (ORCA); absent: it
	// says nothing.
	LoadReport *LoadReport `json:"load_report,omitempty"`
}

// LoadReport is a backend's own word about its load.
type LoadReport struct {
	Utilization float64   `json:"utilization"` // 1: all of it is used; above when it says so
	At          time.Time `json:"at"`
}

// Latency holds milliseconds until the first byte of answers; 0: unknown.
type Latency struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	EWMA float64 `json:"ewma"`
}

// Check is the last health check of a backend.
type Check struct {
	At    time.Time `json:"at"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
}

// Change is one change of a backend's state or share.
type Change struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"` // health states; equal when only the share changed
	To     string    `json:"to"`
	Reason string    `json:"reason"` // what bound the share from then on; empty: nothing did
	Why    string    `json:"why,omitempty"`
}

// Override says what the operator has set over the configuration.
type Override struct {
	Admin            string    `json:"admin,omitempty"`   // empty: not overridden
	Weight           *uint32   `json:"weight,omitempty"`  // nil: not overridden
	ConfiguredWeight uint32    `json:"configured_weight"` // what a reset returns to
	Since            time.Time `json:"since"`
	AgeS             float64   `json:"age_s"`
}

// Drain is the progress of taking a backend out.
type Drain struct {
	InFlight  int64   `json:"in_flight"`
	DeadlineS float64 `json:"deadline_s"` // seconds until what is left is given up; 0: over, negative: none
	Done      bool    `json:"done"`
	Cut       int64   `json:"cut,omitempty"` // requests that were in flight at the deadline, and were cut
	// Sessions says that requests of its sticky sessions still come, so that it is
	// not done while nothing is in flight.
	Sessions bool `json:"sessions,omitempty"`
	// Ended is what was ended before the deadline because it has no end of its own;
	// absent: nothing was.
	Ended *DrainEnded `json:"ended,omitempty"`
}

// DrainEnded counts what a drain has ended, spread over the time before its
// deadline.
type DrainEnded struct {
	Closed     int64 `json:"closed,omitempty"`     // WebSockets whose peers both answered
	Unanswered int64 `json:"unanswered,omitempty"` // WebSockets of which one did not, and was cut
	Torn       int64 `json:"torn,omitempty"`       // WebSockets that could not be told
	Streams    int64 `json:"streams,omitempty"`    // server-sent events and gRPC streams
	Sessions   int64 `json:"sessions,omitempty"`   // of TCP
}

// Patch is what the operator changes about a backend.
type Patch struct {
	Admin       string        // enabled, draining, disabled; empty: unchanged
	Weight      *uint32       // nil: unchanged
	ResetWeight bool          // back to the configured weight
	Deadline    time.Duration // of a drain; 0: the pool's
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Snapshot is a pool at one instant, as plain values.
type Snapshot struct {
	Name            string
	At              balance.Instant
	Policy          string
	Panic           bool
	PanicWhy        string
	Then            Then
	Shared          bool    // a shared dependency is suspected (much of the pool says not_ready, traffic succeeds)
	Admit           float64 // part of the requests admitted; below 1 only while shedding
	Ready           bool
	Members         int // configured
	Serving         int // of them, with a share above 0 and enabled
	Ejected         int
	InFlight        int64
	Queue           int // waiting now
	QueueLimit      int
	Saturation      float64 // in flight over capacity, 0 without limits; 1 when requests queue
	Requests        uint64  // client requests counted for the budget since the start
	Retries         uint64  // retries granted since the start
	BudgetRemaining float64 // part of the retry budget left, 0..1
	MeanLatency     time.Duration
	Publications    uint64 // how often pickers were rebuilt
	Detection       time.Duration
	DrainDeadline   time.Duration
	Backends        []BackendSnapshot
}

// BackendSnapshot is one backend at one instant.
type BackendSnapshot struct {
	Backend          *balance.Backend
	ID, URL, Zone    string
	Backup           bool
	Removed          bool   // no longer a member; finishes what is in flight
	Weight           uint32 // in force
	NominalWeight    uint32 // as configured
	WeightOverridden bool
	WeightSince      balance.Instant // when overridden
	Admin            balance.Admin
	AdminOverridden  bool
	AdminSince       balance.Instant // when overridden
	Draining         bool            // no new work, in flight finishes
	DrainDeadline    balance.Instant // 0: none
	Health           health.State
	Share            float64
	Reason           health.Reason
	Why              string // last error or cause in words
	Since            balance.Instant
	Flips            int
	Ejections        int             // in a row, decides how long the next lasts
	EjectedUntil     balance.Instant // 0: not ejected
	Suspect          bool
	Unreachable      bool
	InFlight         int64
	Limit            int64
	Requests         uint64 // attempts with any outcome
	Failures         uint64 // of them, those that were the backend's fault
	P50, P99, EWMA   time.Duration
	LastCheck        Check
	History          []health.Change // oldest first, at most 16
}

// Check is the last probe of a backend.
type Check struct {
	At      balance.Instant
	Done    bool // there was one
	OK      bool
	Outcome health.ProbeOutcome
	Cause   health.Cause
	Status  int
	Error   string
}

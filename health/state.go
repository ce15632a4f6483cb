// SPDX-License-Identifier: Apache-2.0

package health

import "github.com/weirlb/weir/balance"

// State is what health believes of a backend.
type State uint8

// The states.
const (
	StateUnproven   State = iota // no probe has been answered yet
	StateHealthy                 // takes work
	StateOverloaded              // alive, out of headroom: gets less, is never evicted
	StateNotReady                // the backend said so itself
	StateBroken                  // gets nothing
)

var stateNames = [...]string{"unproven", "healthy", "overloaded", "not_ready", "broken"}

// States is the number of states, for arrays indexed by State.
const States = len(stateNames)

// String returns the name used by the admin API and metrics.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Reason names what binds a backend's share. The zero value is none: full
// share.
type Reason uint8

// The reasons.
const (
	None           Reason = iota
	ReasonUnproven        // waiting for its first probe
	ReasonProbeFailing
	ReasonNotReady
	ReasonOverloaded
	ReasonEjected
	ReasonProbation
	ReasonSlowStart
	ReasonSuspect
	ReasonFloor
	ReasonPanic
	ReasonOverride
	ReasonConnectRefused
	ReasonUnreachable
	ReasonConnectTimeout
	ReasonTLSFailed
)

var reasonNames = [...]string{
	"", "unproven", "probe_failing", "not_ready", "overloaded", "ejected", "probation", "slow_start", "suspect",
	"floor", "panic", "override", "connect_refused", "unreachable", "connect_timeout", "tls_failed",
}

// String returns the word used by the admin API; empty for None.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

func reasonOf(c Cause) Reason {
	switch c {
	case CauseRefused:
		return ReasonConnectRefused
	case CauseNoRoute:
		return ReasonUnreachable
	case CauseTimeout:
		return ReasonConnectTimeout
	case CauseTLS:
		return ReasonTLSFailed
	default:
		return ReasonProbeFailing
	}
}

// Change is one change of state, kept as history.
type Change struct {
	At       balance.Instant
	From, To State
	Reason   Reason
	Why      string
}

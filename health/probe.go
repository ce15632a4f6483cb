// SPDX-License-Identifier: Apache-2.0

package health

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// ProbeOutcome is what one probe said. The zero value is Pass.
type ProbeOutcome uint8

// The four outcomes of a probe.
const (
	Pass       ProbeOutcome = iota // the expected answer
	NotReady                       // an answer arrived whose status or body is not expected
	Overloaded                     // the expected answer, with a load report above the limit
	NoAnswer                       // timeout, refused, reset, TLS error, malformed
)

// String returns the name used in logs and metrics.
func (o ProbeOutcome) String() string {
	switch o {
	case Pass:
		return "pass"
	case NotReady:
		return "not_ready"
	case Overloaded:
		return "overloaded"
	default:
		return "no_answer"
	}
}

// Cause distinguishes why a probe or a connection attempt failed.
type Cause uint8

// The causes. Their names are the last error's first word.
const (
	CauseNone      Cause = iota
	CauseRefused         // the address answered: nobody listens
	CauseNoRoute         // no route, host or network unreachable
	CauseTimeout         // no answer in time
	CauseTLS             // handshake or certificate
	CauseStatus          // an answer with an unexpected status
	CauseBody            // an answer with an unexpected body
	CauseMalformed       // an answer that is none
	CauseReset           // the connection was reset or closed before an answer
)

// ProbeCause is the Cause of a probe.
type ProbeCause = Cause

var causeNames = [...]string{"none", "refused", "no_route", "timeout", "tls", "status", "body", "malformed", "reset"}

// String returns the name used in logs and the admin API.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "unknown"
}

// Fact reports whether the cause says that nobody can be reached at the
// address now: a fact, which holds in panic too.
func (c Cause) Fact() bool { return c == CauseRefused || c == CauseNoRoute || c == CauseTimeout }

// ProbeResult is the end of one probe.
type ProbeResult struct {
	Outcome ProbeOutcome
	Sent    balance.Instant // when the probe began to be sent
	At      balance.Instant // when its result was known
	Cause   ProbeCause
	Status  int    // status of the answer, 0 when there was none or the protocol has none
	Error   string // one line for the operator, empty on Pass
	// Load is the backend's load report, as Outcome.Load of package pool;
	// meaningful when HasLoad is set.
	Load    float64
	HasLoad bool
	// OnTrafficPort says that the probe went where the traffic goes; only then
	// is a refusal a fact about the traffic.
	OnTrafficPort bool
	// Shared says that another pool's probe served this one too: it may have been
	// sent before this one was asked for.
	Shared bool
	// Retry says that the probe could not be made for a reason of weir's own
	// (no descriptor, no local port): the result tells nothing about the
	// backend and the probe is made again.
	Retry bool
}

// Active configures probes. The zero value is disabled.
type Active struct {
	Enabled      bool
	Interval     time.Duration // between the starts of two probes
	FastInterval time.Duration // the same while a state is about to change
	Timeout      time.Duration // of one probe; below Interval
	Jitter       float64       // 0.1: intervals vary by 10 % either way
	Fall         int           // failures in a row that take a backend out
	Rise         int           // passes in a row that bring it back
	InitialUp    bool          // backends added later take work before their first pass
	HTTP         bool          // the probe carries the backend's own word (http, grpc); false: tcp
}

// Detection returns the worst-case time from a backend's failure to its
// verdict: interval x (1 + jitter) + (fall - 1) x max(fast_interval, timeout)
// + timeout. With 5s, 10 %, 3, 1s and 2s that is 5.5 + 2 x 2 + 2 = 11.5s.
// It is zero when probes are off.
func (a Active) Detection() time.Duration {
	if !a.Enabled {
		return 0
	}
	first := time.Duration(float64(a.Interval) * (1 + a.Jitter))
	return first + time.Duration(max(a.Fall, 1)-1)*max(a.FastInterval, a.Timeout) + a.Timeout
}

// Jittered returns the interval varied by the jitter; rnd is any 64 evenly
// spread bits.
func (a Active) Jittered(rnd uint64) time.Duration {
	u := float64(rnd>>11)/(1<<52) - 1 // -1 .. 1
	return time.Duration(float64(a.Interval) * (1 + a.Jitter*u))
}

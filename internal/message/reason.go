// SPDX-License-Identifier: Apache-2.0

package message

// Reason is the one word for how an exchange ended, shared by logs, metrics,
// explain and status. The zero value is OK.
type Reason uint8

// The vocabulary.
const (
	OK Reason = iota
	ClientAbort
	NoRoute
	NoBackend
	AllBroken
	ConnLimit
	RouteFull
	QueueFull
	QueueTimeout
	ConnectRefused
	ConnectTimeout
	Unreachable
	TLSFailed
	ResetBeforeResponse
	ResetMidResponse
	BadResponse
	ResponseTimeout
	StreamIdleTimeout
	RequestTimeout
	HeaderTimeout
	BodyTimeout
	WriteTimeout
	BodyTooLarge
	HeaderTooLarge
	URITooLong
	BadRequest
	Misdirected
	UpgradeRefused
	RateLimited
	Shed
	BackendOverloaded
	RetryBudgetEmpty
	LocalPorts
	LocalFiles
	LocalMemory
	DNSFailed
	DrainCut
	MaxAge
	DrainClosed
	Rebalanced
	DeadlineExceeded
	// Reasons is the number of reasons, for arrays indexed by Reason.
	Reasons
)

var reasonNames = [Reasons]string{
	"ok", "client_abort", "no_route", "no_backend", "all_broken", "conn_limit", "route_full",
	"queue_full", "queue_timeout", "connect_refused", "connect_timeout", "unreachable", "tls_failed",
	"reset_before_response", "reset_mid_response", "bad_response", "response_timeout",
	"stream_idle_timeout", "request_timeout", "header_timeout", "body_timeout", "write_timeout",
	"body_too_large", "header_too_large", "uri_too_long", "bad_request", "misdirected",
	"upgrade_refused", "rate_limited", "shed", "backend_overloaded", "retry_budget_empty",
	"local_ports", "local_files", "local_memory", "dns_failed", "drain_cut", "max_age", "drain_closed", "rebalanced",
	"deadline_exceeded",
}

// String returns the word as it appears in logs and metrics.
func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Status returns the status code that weir itself answers with for the reason
// (0 for OK and for reasons that never become an answer; 499 is for logs only).
func (r Reason) Status() int {
	switch r {
	case ConnectRefused, Unreachable, TLSFailed, ResetBeforeResponse, ResetMidResponse, BadResponse, DNSFailed, UpgradeRefused:
		return 502
	case NoBackend, AllBroken, ConnLimit, RouteFull, QueueFull, QueueTimeout, Shed, BackendOverloaded,
		LocalPorts, LocalFiles, LocalMemory, DrainCut:
		return 503
	case ConnectTimeout, ResponseTimeout, RequestTimeout, StreamIdleTimeout, DeadlineExceeded:
		return 504
	case HeaderTimeout, BodyTimeout:
		return 408
	case BodyTooLarge:
		return 413
	case URITooLong:
		return 414
	case HeaderTooLarge:
		return 431
	case NoRoute:
		return 404
	case BadRequest:
		return 400
	case RateLimited:
		return 429
	case Misdirected:
		return 421
	case ClientAbort:
		return 499
	default:
		return 0
	}
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// StatusSet is a set of HTTP status codes, 0 to 1023. The zero value is empty.
type StatusSet [16]uint64

// Add puts codes into the set; others than 0 to 1023 are ignored.
func (s *StatusSet) Add(codes ...int) {
	for _, c := range codes {
		if c >= 0 && c < 1024 {
			s[c/64] |= 1 << (c % 64)
		}
	}
}

// Has reports whether the code is in the set.
func (s *StatusSet) Has(code int) bool {
	return code >= 0 && code < 1024 && s[code/64]&(1<<(code%64)) != 0
}

// RetryRules are a route's rules, compiled once. The zero value allows neither
// retries nor redispatches.
type RetryRules struct {
	Attempts int           // every try, the first included
	OnReset  bool          // a connection that died after bytes were sent
	OnStatus StatusSet     // answers that are retried; 502 covers malformed answers, 504 response timeouts
	Within   time.Duration // from the first failure; 0: no bound
}

// NewRetryRules compiles the rules of one route.
func NewRetryRules(attempts int, onReset bool, onStatus []int, within time.Duration) RetryRules {
	r := RetryRules{Attempts: attempts, OnReset: onReset, Within: within}
	r.OnStatus.Add(onStatus...)
	return r
}

// Try is what an exchange remembers between attempts. The zero value stands
// before the first attempt. Next keeps it up to date.
type Try struct {
	N              int             // attempts that failed and count
	Retries        int             // retries granted so far, for the backoff
	FirstFailed    balance.Instant // when the first one failed
	Stale          bool            // the one extra try for a stale connection is used
	RetryAfterUsed bool            // the one retry of a 503 with Retry-After is used
}

// Failure is a failed attempt as the retry rules see it.
type Failure struct {
	Kind       OutcomeKind
	Status     int
	RetryAfter bool
	Sent       bool             // a byte of the request was put on the backend
	Stale      bool             // a reused connection died before a response byte
	Replayable bool             // method and body allow to send it again after bytes were sent
	Backend    *balance.Backend // which one failed; may be nil
}

// DecisionWhy says why there is no further attempt.
type DecisionWhy uint8

// The reasons. Granted decisions carry WhyNone.
const (
	WhyNone       DecisionWhy = iota
	Attempts                  // all attempts are used
	BudgetEmpty               // the pool's retry budget is spent
	NotReplayable             // bytes were sent and the request may not be sent twice
	Within                    // the time for retries is over
	NotListed                 // the route does not retry this
	NoneBetter                // a 503 with Retry-After, and no other backend has headroom
)

var whyNames = [...]string{"none", "attempts", "budget", "not_replayable", "within", "not_listed", "none_better"}

// String returns the word used in logs and metrics.
func (w DecisionWhy) String() string {
	if int(w) < len(whyNames) {
		return whyNames[w]
	}
	return "unknown"
}

// Decision is what to do after a failed attempt. The zero value: give up.
type Decision struct {
	Again            bool
	Redispatch       bool          // nothing had been sent: free, at once
	SameBackendFresh bool          // on the same backend, on a fresh connection
	After            time.Duration // wait so long before the attempt
	Why              DecisionWhy
}

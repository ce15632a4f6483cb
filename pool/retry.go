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

// GRPCSet is a set of gRPC statuses, 1 to 31. The zero value is empty.
type GRPCSet uint32

// Add puts statuses into the set; OK and those above 31 are ignored.
func (s *GRPCSet) Add(codes ...uint8) {
	for _, c := range codes {
		if c > 0 && c < 32 {
			*s |= 1 << c
		}
	}
}

// Has reports whether the status is in the set.
func (s GRPCSet) Has(code uint8) bool { return code < 32 && s&(1<<code) != 0 }

// RetryRules are a route's rules, compiled once. The zero value allows neither
// retries nor redispatches.
type RetryRules struct {
	Attempts int           // every try, the first included
	OnReset  bool          // a connection that died after bytes were sent
	OnStatus StatusSet     // answers that are retried; 502 covers malformed answers, 504 response timeouts
	OnGRPC   GRPCSet       // statuses of gRPC calls that were answered with nothing else, which are retried
	Within   time.Duration // from the first failure; 0: no bound
	Hedge    Hedge
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
	Hedges         int             // second attempts beside one that was unanswered
	FirstFailed    balance.Instant // when the first one failed
	Stale          bool            // the one extra try for a stale connection is used
	RetryAfterUsed bool            // the one retry of a 503 with Retry-After is used
}

// Failure is a failed attempt as the retry rules see it.
type Failure struct {
	Kind       OutcomeKind
	Status     int
	RetryAfter bool
	GRPC       uint8            // status of a gRPC call that was answered with nothing else; 0: none
	Pushback   time.Duration    // the answer asks to wait so long before a retry; 0: it does not
	Sent       bool             // a byte of the request was put on the backend
	Stale      bool             // a reused connection died before a response byte
	Replayable bool             // method and body allow to send it again after bytes were sent
	Backend    *balance.Backend // which one failed; may be nil
	By         balance.Instant  // when the request's answer is due; 0: never
	NoRetry    bool             // the answer says that whoever gave it has retried, or declined to (S6)
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
	NoneBetter                // an answer is in hand, and no other backend can be asked; for a 503 with Retry-After, none has headroom
	TooLate                   // of the pool's answers too few come in the time that is left
	RetriedBelow              // the answer says that a weir behind this one has retried, or declined to
)

var whyNames = [...]string{"none", "attempts", "budget", "not_replayable", "within", "not_listed", "none_better", "too_late", "retried_below"}

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
	// Declined says that the rules allow a retry and that it is held back all the
	// same, for the sake of the load or of the request: then whoever is in front
	// of this weir had better not retry either (S6). It is false where this layer
	// has no opinion: it does not retry such failures at all, nothing was sent, or
	// there is one backend only, so that a choice is left to the layer above alone.
	Declined bool
}

// Next records in t that an attempt failed and decides whether there is
// another one (S5 of the semantics):
//
//   - a redispatch, when no byte of the request was put on a backend: free,
//     immediate, bounded by Attempts;
//   - one more on the same backend over a fresh connection, when a reused one
//     turned out dead: once per exchange, whatever Attempts says; not on one
//     that drains, whose connections were cut at its deadline;
//   - a retry, when bytes were sent and the request may be replayed: after a
//     backoff, if there is hope of an answer in time (the fastest tenth of the
//     pool's answers of late takes no longer than what is left), and only if the
//     pool's budget has room for it, which is spent.
//
// rnd is 64 random bits for the backoff's jitter.
func (p *Pool) Next(now balance.Instant, rr *RetryRules, t *Try, f Failure, rnd uint64) Decision {
	if t.N == 0 && !t.Stale {
		t.FirstFailed = now
	}
	if f.Kind == ClientFault || f.Kind == Canceled {
		t.N++
		return Decision{Why: NotListed}
	}
	if f.Stale && !t.Stale && (!f.Sent || f.Replayable) && (f.Backend == nil || f.Backend.Admin() == balance.Enabled) {
		t.Stale = true
		if f.Sent {
			p.budget.Load().spend(now, true) // counted, so that others yield, never refused
		}
		return Decision{Again: true, Redispatch: !f.Sent, SameBackendFresh: true}
	}
	t.N++
	redispatch := !f.Sent && f.Kind != Success
	if why := rr.forbid(f, redispatch); why != WhyNone {
		return rr.decline(f, why)
	}
	if t.N+t.Hedges >= rr.Attempts {
		return rr.decline(f, Attempts)
	}
	if redispatch {
		return Decision{Again: true, Redispatch: true}
	}
	if f.Kind == Success {
		// An answer is in hand, and better than the same backend's next one.
		later := f.Status == 503 && f.RetryAfter
		if later && t.RetryAfterUsed || !p.beside(now, f.Backend, later) {
			d := rr.decline(f, NoneBetter)
			d.Declined = d.Declined && len(p.view.Load().members) > 1
			return d
		}
	}
	after := max(p.backoff(t.Retries, rnd), f.Pushback)
	if rr.Within > 0 && now.Add(after).Sub(t.FirstFailed) > rr.Within {
		return rr.decline(f, Within)
	}
	if f.By != 0 && now.Add(after+p.Latency(Hopeless)) >= f.By {
		return rr.decline(f, TooLate)
	}
	if !p.budget.Load().spend(now, false) {
		return rr.decline(f, BudgetEmpty)
	}
	t.Retries++
	t.RetryAfterUsed = t.RetryAfterUsed || f.RetryAfter
	return Decision{Again: true, After: after}
}

// decline is the decision that there is no further attempt after f.
func (rr *RetryRules) decline(f Failure, why DecisionWhy) Decision {
	return Decision{Why: why, Declined: f.Sent && rr.Attempts > 1 && why != NotListed}
}

// forbid returns why the route does not try again after f.
func (rr *RetryRules) forbid(f Failure, redispatch bool) DecisionWhy {
	if redispatch {
		return WhyNone
	}
	listed := false
	switch f.Kind {
	case Success:
		listed = rr.OnStatus.Has(f.Status) || f.GRPC != 0 && rr.OnGRPC.Has(f.GRPC)
	case Reset:
		listed = rr.OnReset
	case Malformed:
		listed = rr.OnReset || rr.OnStatus.Has(502)
	case ResponseTimeout:
		listed = rr.OnStatus.Has(504)
	}
	switch {
	case !listed:
		return NotListed
	case f.NoRetry:
		return RetriedBelow
	case !f.Replayable:
		return NotReplayable
	default:
		return WhyNone
	}
}

// backoff returns a random time up to Base x 2^n, at most Max ("full jitter").
func (p *Pool) backoff(n int, rnd uint64) time.Duration {
	c := &p.set.Load().Retry
	most := c.Base << min(n, 20)
	if c.Max > 0 {
		most = min(most, c.Max)
	}
	return time.Duration(unit(rnd) * float64(max(most, 0)))
}

// beside reports whether there is a backend other than b that requests may be
// given to and that can be reached as far as is known; with headroom, one whose
// share is above 0.5 now.
func (p *Pool) beside(now balance.Instant, b *balance.Backend, headroom bool) bool {
	n := 0
	return p.view.Load().anyTaker(func(m *balance.Member, panicked bool) bool {
		o := m.Backend
		if o == b || m.Weight == 0 || o.Admin() != balance.Enabled || o.Unreachable() {
			return false
		}
		if share := o.ShareAt(now); headroom && share <= 0.5 || share <= 0 && !panicked {
			return false
		}
		n++
		return b != nil || n > 1
	})
}

// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/weirlb/weir/balance"

// RetryCase is one way in which a first attempt may fail, and what happens then.
type RetryCase struct {
	Failure    Failure
	Again      bool // there is another attempt
	Redispatch bool // it is free: nothing had been sent
	Why        DecisionWhy
}

// ExplainRetry says what Next would decide after a first attempt of a request
// that failed on b, for every kind of failure: those that had sent nothing, then
// those that had, then answers. replayable says that method and content allow
// another attempt. Nothing is counted or spent.
func (p *Pool) ExplainRetry(now balance.Instant, rr *RetryRules, b *balance.Backend, replayable bool) []RetryCase {
	fails := []Failure{
		{Kind: ConnectRefused}, {Kind: ConnectTimeout}, {Kind: TLSFailed},
		{Kind: Reset, Sent: true}, {Kind: Malformed, Sent: true}, {Kind: ResponseTimeout, Sent: true},
		{Status: 500, Sent: true}, {Status: 502, Sent: true}, {Status: 503, Sent: true},
		{Status: 503, RetryAfter: true, Sent: true}, {Status: 504, Sent: true}, {Status: 429, Sent: true},
	}
	out := make([]RetryCase, len(fails))
	for i, f := range fails {
		f.Backend, f.Replayable = b, replayable
		out[i] = p.explainRetry(now, rr, f)
	}
	return out
}

// explainRetry takes the decisions of Next in the same order.
func (p *Pool) explainRetry(now balance.Instant, rr *RetryRules, f Failure) RetryCase {
	c := RetryCase{Failure: f}
	redispatch := !f.Sent && f.Kind != Success
	switch c.Why = rr.forbid(f, redispatch); {
	case c.Why != WhyNone:
	case rr.Attempts <= 1:
		c.Why = Attempts
	case redispatch:
		c.Again, c.Redispatch = true, true
	case f.Kind == Success && !p.beside(now, f.Backend, f.Status == 503 && f.RetryAfter):
		c.Why = NoneBetter
	case !p.budget.Load().has(now):
		c.Why = BudgetEmpty
	default:
		c.Again = true
	}
	return c
}

// has reports that spend would grant one retry now.
func (b *budget) has(now balance.Instant) bool {
	requests, retries := b.sums(now)
	return float64(retries+1) <= b.allowed(requests)
}

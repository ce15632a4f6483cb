// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// TestRetryRules is S5 as a table: a series of failures of one exchange and
// what is decided after each.
func TestRetryRules(t *testing.T) {
	sent := func(kind OutcomeKind) Failure { return Failure{Kind: kind, Sent: true, Replayable: true} }
	status := func(code int) Failure { return Failure{Status: code, Sent: true, Replayable: true} }
	tests := []struct {
		name     string
		attempts int
		fails    []Failure
		want     []string
	}{
		{"refused goes elsewhere", 2, []Failure{{Kind: ConnectRefused}}, []string{"redispatch"}},
		{"up to attempts", 3, []Failure{{Kind: ConnectRefused}, {Kind: TLSFailed}, {Kind: ConnectTimeout}}, []string{"redispatch", "redispatch", "attempts"}},
		{"one attempt only", 1, []Failure{{Kind: ConnectRefused}}, []string{"attempts"}},
		{"a POST is redispatched too", 2, []Failure{{Kind: ConnectUnreachable}}, []string{"redispatch"}},
		{"a local fault reached nobody", 2, []Failure{{Kind: LocalFault}}, []string{"redispatch"}},
		{"reset after bytes is a retry", 2, []Failure{sent(Reset), sent(Reset)}, []string{"retry", "attempts"}},
		{"not for what may not run twice", 2, []Failure{{Kind: Reset, Sent: true}}, []string{"not_replayable"}},
		{"listed statuses only", 2, []Failure{status(500)}, []string{"not_listed"}},
		{"502", 2, []Failure{status(502)}, []string{"retry"}},
		{"a timeout is a 504", 2, []Failure{sent(ResponseTimeout)}, []string{"retry"}},
		{"a malformed answer is a 502", 2, []Failure{sent(Malformed)}, []string{"retry"}},
		{"redispatch, then retry", 3, []Failure{{Kind: ConnectRefused}, status(504), status(504)}, []string{"redispatch", "retry", "attempts"}},
		{"client faults are final", 5, []Failure{{Kind: ClientFault, Sent: true, Replayable: true}}, []string{"not_listed"}},
		{"the client left", 5, []Failure{{Kind: Canceled}}, []string{"not_listed"}},
		{"a stale connection is one extra", 2, []Failure{{Kind: Reset, Stale: true}, {Kind: ConnectRefused}, {Kind: ConnectRefused}}, []string{"fresh redispatch", "redispatch", "attempts"}},
		{"even with one attempt", 1, []Failure{{Kind: Reset, Stale: true, Sent: true, Replayable: true}, sent(Reset)}, []string{"fresh", "attempts"}},
		{"but once", 2, []Failure{{Kind: Reset, Stale: true}, {Kind: Reset, Stale: true}, {Kind: Reset, Stale: true}}, []string{"fresh redispatch", "redispatch", "attempts"}},
		{"and not for a POST that was sent", 2, []Failure{{Kind: Reset, Stale: true, Sent: true}}, []string{"not_replayable"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := benchPool(3, func(c *Config) {
				c.Retry = Budget{MinPerSecond: 100, Base: 25 * time.Millisecond, Max: 250 * time.Millisecond}
			})
			rr := NewRetryRules(tt.attempts, true, []int{502, 503, 504}, 5*time.Second)
			var try Try
			for i, f := range tt.fails {
				d := p.Next(balance.Instant(i)*balance.Instant(time.Millisecond), &rr, &try, f, uint64(i))
				got := d.Why.String()
				switch {
				case d.SameBackendFresh && d.Redispatch:
					got = "fresh redispatch"
				case d.SameBackendFresh:
					got = "fresh"
				case d.Redispatch:
					got = "redispatch"
				case d.Again:
					got = "retry"
				}
				if got != tt.want[i] {
					t.Errorf("after failure %d: %s, want %s", i+1, got, tt.want[i])
				}
				if (d.Redispatch || d.SameBackendFresh) && d.After != 0 {
					t.Errorf("waits %v before a redispatch", d.After)
				}
				if d.Again != (d.Why == WhyNone) {
					t.Errorf("%+v contradicts itself", d)
				}
			}
		})
	}
}

// TestStaleConnectionOfDrainingBackend: what was cut at a drain's deadline goes
// elsewhere, as a retry, not back to the backend that is to become empty.
func TestStaleConnectionOfDrainingBackend(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{MinPerSecond: 100} })
	rr := NewRetryRules(2, true, nil, 0)
	a := p.core.order[0].b
	f := Failure{Kind: Reset, Stale: true, Sent: true, Replayable: true, Backend: a}
	if d := p.Next(0, &rr, new(Try), f, 0); !d.SameBackendFresh {
		t.Errorf("enabled: %+v", d)
	}
	a.SetAdmin(balance.Draining)
	if d := p.Next(0, &rr, new(Try), f, 0); d.SameBackendFresh || !d.Again {
		t.Errorf("draining: %+v", d)
	}
}

func TestRetryAfterIsRetriedOnceAndOnlyWithHeadroom(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{MinPerSecond: 100} })
	rr := NewRetryRules(5, true, []int{503}, 0)
	a, b := p.core.order[0].b, p.core.order[1].b
	f := Failure{Status: 503, RetryAfter: true, Sent: true, Replayable: true, Backend: a}
	var try Try
	if d := p.Next(0, &rr, &try, f, 0); !d.Again {
		t.Errorf("%+v", d)
	}
	if d := p.Next(0, &rr, &try, f, 0); d.Again || d.Why != NoneBetter {
		t.Errorf("twice: %+v", d)
	}
	b.SetUnreachable(true)
	try = Try{}
	if d := p.Next(0, &rr, &try, f, 0); d.Again || d.Why != NoneBetter {
		t.Errorf("beside one that cannot be reached: %+v", d)
	}
	b.SetUnreachable(false)
	b.SetShare(0.5)
	if d := p.Next(0, &rr, &try, f, 0); d.Again || d.Why != NoneBetter {
		t.Errorf("without headroom: %+v", d)
	}
	f.RetryAfter = false
	if d := p.Next(0, &rr, &try, f, 0); !d.Again {
		t.Errorf("a plain 503: %+v", d)
	}
	b.SetUnreachable(true)
	if d := p.Next(0, &rr, new(Try), f, 0); d.Again || d.Why != NoneBetter {
		t.Errorf("a plain 503 beside one that cannot be reached: %+v", d)
	}
	b.SetUnreachable(false)
	b.SetShare(0)
	if d := p.Next(0, &rr, new(Try), f, 0); d.Again || d.Why != NoneBetter || p.budget.Load().retries.Load() != 2 {
		t.Errorf("a plain 503 beside one that is out: %+v, %d retries paid", d, p.budget.Load().retries.Load())
	}
	b.SetShare(1)
	specs := benchSpecs(2)
	specs[1].Weight = 0
	p = benchPool(0, func(c *Config) { c.Retry = Budget{MinPerSecond: 100} })
	p.Update(specs)
	f.Backend, f.RetryAfter = p.core.order[0].b, true
	try = Try{}
	if d := p.Next(0, &rr, &try, f, 0); d.Again || d.Why != NoneBetter {
		t.Errorf("beside one without weight: %+v", d)
	}
}

func TestRetriesEndWithin(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{MinPerSecond: 100} })
	rr := NewRetryRules(9, true, nil, 5*time.Second)
	f := Failure{Kind: Reset, Sent: true, Replayable: true}
	var try Try
	start := balance.Instant(40 * time.Second) // the first attempt may take long
	if d := p.Next(start, &rr, &try, f, 0); !d.Again {
		t.Errorf("%+v", d)
	}
	if d := p.Next(start.Add(5*time.Second), &rr, &try, f, 0); !d.Again {
		t.Errorf("%+v", d)
	}
	if d := p.Next(start.Add(5*time.Second+1), &rr, &try, f, 0); d.Again || d.Why != Within {
		t.Errorf("%+v", d)
	}
	if d := p.Next(start.Add(time.Minute), &rr, &try, Failure{Kind: ConnectRefused}, 0); !d.Redispatch {
		t.Errorf("a redispatch is bounded by the deadline only: %+v", d)
	}
}

// TestBackoff checks full jitter: evenly spread from 0 to Base x 2^n, capped.
func TestBackoff(t *testing.T) {
	p := benchPool(2, func(c *Config) { c.Retry = Budget{Base: 25 * time.Millisecond, Max: 250 * time.Millisecond} })
	for n, ms := range []int64{25, 50, 100, 200, 250, 250} {
		most := time.Duration(ms) * time.Millisecond
		var sum, top time.Duration
		for i := range uint64(10000) {
			d := p.backoff(n, i*0x9e3779b97f4a7c15)
			sum, top = sum+d, max(top, d)
		}
		if mean := sum / 10000; top > most || top < most*99/100 || mean < most*48/100 || mean > most*52/100 {
			t.Errorf("retry %d: up to %v, mean %v; want up to %v", n+1, top, mean, most)
		}
	}
}

// naiveBudget remembers every instant.
type naiveBudget struct{ requests, retries []balance.Instant }

func TestBudgetAgainstNaive(t *testing.T) {
	const part = time.Second
	var b budget
	b.init(&Budget{Share: 0.2, Window: 10 * time.Second, MinPerSecond: 0.5})
	var n naiveBudget
	rnd := uint64(1)
	now := balance.Instant(-20 * time.Second) // negative instants are legal
	granted, denied := 0, 0
	for range 50000 {
		rnd = mix(rnd)
		now = now.Add(time.Duration(rnd % uint64(20*time.Millisecond)))
		if rnd>>32%3 != 0 {
			b.begin(now)
			n.requests = append(n.requests, now)
			continue
		}
		// The window slides by parts: it holds between nine and ten of them.
		from := balance.Instant(floorDiv(int64(now), int64(part))-9) * balance.Instant(part)
		count := func(list []balance.Instant) (c int) {
			for i := len(list) - 1; i >= 0 && list[i] >= from; i-- {
				c++
			}
			return c
		}
		want := float64(count(n.retries)+1) <= max(0.2*float64(count(n.requests)), 5)
		if got := b.spend(now, false); got != want {
			t.Fatalf("at %v: %v, want %v (%d retries of %d)", time.Duration(now), got, want, count(n.retries), count(n.requests))
		}
		if want {
			n.retries = append(n.retries, now)
			granted++
		} else {
			denied++
		}
	}
	if granted == 0 || denied == 0 {
		t.Errorf("granted %d, denied %d: the test shows nothing", granted, denied)
	}
	if b.total() != uint64(len(n.requests)) || b.retries.Load() != uint64(granted) {
		t.Errorf("counted %d and %d, want %d and %d", b.total(), b.retries.Load(), len(n.requests), granted)
	}
}

func floorDiv(a, b int64) int64 {
	if q := a / b; a%b < 0 {
		return q - 1
	} else {
		return q
	}
}

func TestBudgetFloorAndRemaining(t *testing.T) {
	var b budget
	b.init(&Budget{Share: 0.2, MinPerSecond: 3}) // the window defaults to 10s
	for i := range 30 {
		if !b.spend(0, false) {
			t.Fatalf("retry %d of the floor's 30 was refused", i+1)
		}
	}
	if b.spend(0, false) || b.remaining(0) != 0 {
		t.Errorf("the 31st was granted, or %v remain", b.remaining(0))
	}
	if !b.spend(0, true) {
		t.Error("force was refused")
	}
	if got := b.remaining(balance.Instant(20 * time.Second)); got != 1 {
		t.Errorf("%v remain after the window", got)
	}
	var none budget
	none.init(&Budget{})
	if none.spend(0, false) {
		t.Error("an empty budget granted a retry")
	}
}

func TestStatusSet(t *testing.T) {
	var s StatusSet
	s.Add(502, 599, 0, 1023, -1, 1024)
	for code := -5; code < 1100; code++ {
		want := code == 502 || code == 599 || code == 0 || code == 1023
		if s.Has(code) != want {
			t.Errorf("%d: %v", code, s.Has(code))
		}
	}
}

// TestDeclined: a retry that is held back is held back above, too; where this
// layer has no opinion the one above may try.
func TestDeclined(t *testing.T) {
	answer := Failure{Status: 503, Sent: true, Replayable: true}
	marked, posted, later := answer, answer, answer
	marked.NoRetry, posted.Replayable, later.RetryAfter = true, false, true
	for _, tt := range []struct {
		name     string
		backends int
		attempts int
		budget   float64
		within   time.Duration
		fails    []Failure
		why      DecisionWhy
		declined bool
	}{
		{"attempts", 2, 2, 100, 0, []Failure{answer, answer}, Attempts, true},
		{"after redispatches", 2, 2, 100, 0, []Failure{{Kind: ConnectRefused}, answer}, Attempts, true},
		{"budget", 2, 2, 0, 0, []Failure{answer}, BudgetEmpty, true},
		{"time", 2, 3, 100, time.Nanosecond, []Failure{answer, answer}, Within, true},
		{"may not run twice", 2, 2, 100, 0, []Failure{posted}, NotReplayable, true},
		{"told from below", 2, 2, 100, 0, []Failure{marked}, RetriedBelow, true},
		{"told about what is not retried here", 2, 2, 100, 0, []Failure{{Status: 500, Sent: true, Replayable: true, NoRetry: true}}, NotListed, false},
		{"no headroom", 2, 9, 100, 0, []Failure{later, later}, NoneBetter, true},
		{"a pool of one", 1, 2, 100, 0, []Failure{answer}, NoneBetter, false},
		{"not retried here", 2, 2, 100, 0, []Failure{{Status: 500, Sent: true, Replayable: true}}, NotListed, false},
		{"retries are off", 2, 1, 100, 0, []Failure{answer}, Attempts, false},
		{"nobody was reached", 2, 2, 100, 0, []Failure{{Kind: ConnectRefused}, {Kind: ConnectRefused}}, Attempts, false},
		{"the client left", 2, 2, 100, 0, []Failure{{Kind: Canceled, Sent: true}}, NotListed, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := benchPool(tt.backends, func(c *Config) { c.Retry = Budget{MinPerSecond: tt.budget} })
			rr := NewRetryRules(tt.attempts, true, []int{503}, tt.within)
			var try Try
			var d Decision
			for i, f := range tt.fails {
				f.Backend = p.core.order[0].b
				d = p.Next(balance.Instant(i)*balance.Instant(time.Millisecond), &rr, &try, f, 0)
			}
			if d.Again || d.Why != tt.why || d.Declined != tt.declined {
				t.Errorf("%+v (%s), want %s, declined %v", d, d.Why, tt.why, tt.declined)
			}
		})
	}
}

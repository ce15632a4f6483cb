// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

func TestHedgeRules(t *testing.T) {
	const ms = time.Millisecond
	p := benchPool(2, func(c *Config) { c.Retry = Budget{MinPerSecond: 0.2} }) // two in ten seconds
	rr := NewRetryRules(2, true, nil, 0)
	if got := p.HedgeAfter(&rr); got != 0 {
		t.Errorf("off, but after %v", got)
	}
	rr.Hedge = Hedge{Percent: 95}
	if got := p.HedgeAfter(&rr); got != 0 {
		t.Errorf("latency is not known, but after %v", got)
	}
	var times []time.Duration
	for i := range 100 {
		times = append(times, time.Duration(1+i/94*9)*100*ms) // 94 of 100 ms, six of 1 s
	}
	answered(p, p.core.order[0], times...)
	p.core.lookLately()
	if got := p.HedgeAfter(&rr); got < 875*ms || got > 1125*ms {
		t.Errorf("95 %% of the answers take 1 s, but after %v", got)
	}
	rr.Hedge = Hedge{After: 200 * ms}
	if got := p.HedgeAfter(&rr); got != 200*ms {
		t.Errorf("after %v", got)
	}
	var try Try
	if !p.Hedge(0, &rr, &try, 0) || try.Hedges != 1 {
		t.Fatal("refused")
	}
	if p.Hedge(0, &rr, &try, 0) {
		t.Error("a third attempt of two")
	}
	sent := Failure{Kind: Reset, Sent: true, Replayable: true}
	if d := p.Next(0, &rr, &try, sent, 0); d.Again || d.Why != Attempts {
		t.Errorf("a retry after a hedge, of two attempts: %+v", d)
	}
	if p.Hedge(0, &rr, &Try{N: 1}, 0) {
		t.Error("a hedge of the second attempt of two")
	}
	if p.Hedge(0, &rr, new(Try), balance.Instant(50*ms)) {
		t.Error("granted with 50 ms left, of which all answers need 100")
	}
	if !p.Hedge(0, &rr, new(Try), balance.Instant(200*ms)) {
		t.Error("refused with time and budget left")
	}
	if p.Hedge(0, &rr, new(Try), 0) {
		t.Error("granted beyond the budget")
	}
	rr.Attempts = 1
	if got := p.HedgeAfter(&rr); got != 0 {
		t.Errorf("one attempt is all, but a hedge after %v", got)
	}
}

// TestOvertakenCountAsSlow: answers that a hedge was faster than count in the
// pool's latency with what they had taken, else each hedge would make the next
// one earlier.
func TestOvertakenCountAsSlow(t *testing.T) {
	p := benchPool(1, nil)
	m := p.core.order[0]
	for i := range 100 {
		var l Lease
		m.b.Reserve()
		l.take(p, m, m.b, 0)
		if i%20 == 0 {
			l.Done(Outcome{Kind: Canceled, Sent: true, Total: time.Second, Overtaken: true})
		} else {
			l.Done(Outcome{Status: 200, Sent: true, FirstByte: 10 * time.Millisecond})
		}
	}
	p.core.lookLately()
	if got := p.Latency(94); got > 12*time.Millisecond {
		t.Errorf("94 %% take %v", got)
	}
	if got := p.Latency(97); got < 875*time.Millisecond {
		t.Errorf("97 %% take %v", got)
	}
	s := p.Snapshot().Backends[0]
	if s.Failures != 0 {
		t.Errorf("%d failures of a backend that was overtaken", s.Failures)
	}
}

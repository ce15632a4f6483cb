// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// TestMeanLatencyInSnapshot: the mean of a snapshot holds the answers that the
// statistics have not looked at yet.
func TestMeanLatencyInSnapshot(t *testing.T) {
	now := balance.Instant(time.Second)
	p := benchPool(1, nil)
	p.now = func() balance.Instant { return now }
	answer := func(d time.Duration) {
		t.Helper()
		var l Lease
		if r := p.Pick(&l, &balance.Request{Now: now}); r != Granted {
			t.Fatal(r)
		}
		l.Done(Outcome{Now: now, Status: 200, FirstByte: d, Total: d})
	}
	if got := p.Snapshot().Backends[0].EWMA; got != 0 {
		t.Errorf("%v before the first answer", got)
	}
	answer(10 * time.Millisecond)
	answer(20 * time.Millisecond)
	if got := p.Snapshot().Backends[0].EWMA; got != 15*time.Millisecond {
		t.Errorf("%v, want 15ms: nothing has been looked at yet", got)
	}
	now = now.Add(10 * time.Second)
	p.Advance()
	answer(115 * time.Millisecond)
	now = now.Add(ewmaTime)
	// 15ms + (1 - 1/e) x (115 - 15)ms, one time constant after the look.
	if got := p.Snapshot().Backends[0].EWMA; got < 78*time.Millisecond || got > 78300*time.Microsecond {
		t.Errorf("%v, want 78.2ms", got)
	}
	before := p.Snapshot().Backends[0].EWMA
	p.Advance()
	if got := p.Snapshot().Backends[0].EWMA; (got - before).Abs() > time.Microsecond {
		t.Errorf("%v after the look, %v before it", got, before)
	}
}

// TestLoadReportInSnapshot: what a backend says of its own load is shown, below
// the limit as above it, with its time, and no answer without a report changes it.
func TestLoadReportInSnapshot(t *testing.T) {
	now := balance.Instant(90 * time.Second)
	p := benchPool(1, nil)
	p.now = func() balance.Instant { return now }
	answer := func(load float64, has bool) {
		t.Helper()
		var l Lease
		if r := p.Pick(&l, &balance.Request{Now: now}); r != Granted {
			t.Fatal(r)
		}
		l.Done(Outcome{Now: now, Status: 200, FirstByte: time.Millisecond, Total: time.Millisecond, Load: load, HasLoad: has})
	}
	said := func() (float64, balance.Instant) {
		b := p.Snapshot().Backends[0]
		return b.Load, b.LoadAt
	}
	answer(0, false)
	if load, at := said(); load != 0 || at != 0 {
		t.Errorf("%v at %v before the first report", load, at)
	}
	for _, load := range []float64{0.625, 0, 1.5} {
		now = now.Add(time.Second + time.Millisecond)
		answer(load, true)
		at := now
		now = now.Add(10 * time.Second)
		answer(0, false)
		if got, when := said(); got != load || at.Sub(when) < 0 || at.Sub(when) >= time.Second {
			t.Errorf("%v at %v, want %v at %v", got, when, load, at)
		}
	}
}

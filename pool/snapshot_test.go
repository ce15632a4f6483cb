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

// TestSaturation: the limit that is nearest counts, whichever it is; without a
// backend that serves there is no capacity, which is not the same as no load.
func TestSaturation(t *testing.T) {
	disabled := balance.Disabled
	for _, c := range []struct {
		name   string
		limits Limits
		out    int // backends that are disabled
		want   float64
	}{
		{"without limits", Limits{}, 0, 0},
		{"per backend", Limits{BackendRequests: 6}, 0, 0.25},
		{"of the pool", Limits{BackendRequests: 100, PoolRequests: 4}, 0, 0.75},
		{"adaptive", Limits{BackendRequests: 100, Adaptive: Adaptive{Enabled: true, Floor: 6, Ceiling: 6}}, 0, 0.5},
		{"adaptive, not lowered yet", Limits{Adaptive: Adaptive{Enabled: true}}, 0, 0},
		{"nobody serves", Limits{BackendRequests: 6}, 2, 1},
		{"nobody serves, adaptive", Limits{Adaptive: Adaptive{Enabled: true, Ceiling: 20}}, 2, 1},
		{"nobody serves, without limits", Limits{}, 2, 0},
	} {
		p := benchPool(2, func(cfg *Config) { cfg.Limits, cfg.Active.Enabled = c.limits, false })
		leases := make([]Lease, 3)
		for i := range leases {
			if got := p.Pick(&leases[i], &balance.Request{Priority: balance.HighPriority, Rand: uint64(i)}); got != Granted {
				t.Fatalf("%s: %v", c.name, got)
			}
		}
		for _, m := range p.core.order[:c.out] {
			if err := p.Override(m.b.ID(), Override{Admin: &disabled}); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Snapshot().Saturation; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		for i := range leases {
			leases[i].Return(0)
		}
		p.Close()
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

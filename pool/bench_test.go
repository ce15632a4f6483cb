// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// quiet is a driver for benchmarks: no probe is ever answered.
type quiet struct{}

func (quiet) Attach(*balance.Backend) any                                     { return nil }
func (quiet) Probe(*balance.Backend, time.Duration, func(health.ProbeResult)) {}
func (quiet) CloseIdle(*balance.Backend)                                      {}
func (quiet) Gone(*balance.Backend)                                           {}
func (quiet) Notice(Notice)                                                   {}

var benchSizes = []int{3, 100, 10000}

func benchSpecs(n int) []Spec {
	specs := make([]Spec, n)
	for i := range specs {
		specs[i] = Spec{ID: fmt.Sprintf("10.%d.%d.%d:8080", i>>16, i>>8&255, i&255), URL: "http://b", Weight: 1}
	}
	return specs
}

func benchPool(n int, change func(*Config)) *Pool {
	cfg := Config{
		Name: "app", First: true,
		Active:  health.Active{Enabled: true, Interval: 5 * time.Second, FastInterval: time.Second, Timeout: 2 * time.Second, Jitter: 0.1, Fall: 3, Rise: 2},
		Passive: health.Passive{Enabled: true, Consecutive: 5, ConsecutiveConnect: 2, Eject: 30 * time.Second, MaxEject: 300 * time.Second, MaxEjected: 0.5},
		Panic:   Panic{Threshold: 0.5, Floor: 1},
	}
	if change != nil {
		change(&cfg)
	}
	p := New(cfg, quiet{}, func() balance.Instant { return 0 })
	p.Update(benchSpecs(n))
	return p
}

// BenchmarkPickDone is one attempt as the data plane sees it; the policy is a
// part of it, see package balance for its own figure.
func BenchmarkPickDone(b *testing.B) {
	for _, limited := range []bool{false, true} {
		for _, n := range benchSizes {
			for _, procs := range []int{1, 2} {
				name := fmt.Sprintf("backends=%d/goroutines=%d", n, procs)
				if limited {
					name = "limits/" + name
				}
				b.Run(name, func(b *testing.B) {
					p := benchPool(n, func(c *Config) {
						if limited {
							c.Limits = Limits{BackendRequests: 100, PoolRequests: 1 << 30, Queue: 10}
						}
					})
					b.ReportAllocs()
					if procs == 1 {
						for i := uint64(0); b.Loop(); i++ {
							attempt(p, i)
						}
						return
					}
					var seed atomic.Uint64
					b.ResetTimer() // what came before is not the subject
					b.RunParallel(func(pb *testing.PB) {
						for i := seed.Add(1) << 32; pb.Next(); i++ {
							attempt(p, i)
						}
					})
				})
			}
		}
	}
}

func attempt(p *Pool, i uint64) {
	var l Lease
	r := balance.Request{Rand: mix(i), Now: balance.Instant(i)}
	if got := p.Pick(&l, &r); got != Granted {
		panic(got)
	}
	l.Done(Outcome{Now: r.Now, Status: 200, FirstByte: 300 * time.Microsecond, Total: time.Millisecond, Client: i & 1})
}

func BenchmarkPolicyAlone(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			p := benchPool(n, nil)
			v := p.view.Load()
			for i := uint64(0); b.Loop(); i++ {
				v.only.Pick(balance.Request{Rand: mix(i), Now: balance.Instant(i)})
			}
		})
	}
}

func BenchmarkBeginRequest(b *testing.B) {
	p := benchPool(3, nil)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p.BeginRequest(balance.Instant(i * 1000))
	}
}

func BenchmarkNext(b *testing.B) {
	p := benchPool(3, func(c *Config) { c.Retry = Budget{Share: 1, MinPerSecond: 1e9} })
	rr := NewRetryRules(2, true, []int{502, 503, 504}, 5*time.Second)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var t Try
		p.Next(balance.Instant(i*1000), &rr, &t, Failure{Status: 502, Sent: true, Replayable: true}, uint64(i))
	}
}

// TestHotPathAllocatesNothing asserts what the benchmarks print, also for
// failures, and with a full pool.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, n := range benchSizes {
		p := benchPool(n, nil)
		i := uint64(0)
		if got := testing.AllocsPerRun(500, func() {
			attempt(p, i)
			i++
		}); got != 0 {
			t.Errorf("%d backends: Pick and Done allocate %v times", n, got)
		}
	}
	p := benchPool(3, func(c *Config) { c.Limits.BackendRequests, c.Passive.Consecutive = 1, 1<<30 })
	var full [3]Lease
	for i := range full {
		p.Pick(&full[i], &balance.Request{Rand: uint64(i)})
	}
	rr := NewRetryRules(2, true, []int{502}, time.Second)
	if got := testing.AllocsPerRun(500, func() {
		var l Lease
		if got := p.Pick(&l, &balance.Request{}); got != Full {
			t.Fatal(got)
		}
		var try Try
		p.BeginRequest(0)
		p.Next(0, &rr, &try, Failure{Kind: Reset, Sent: true, Replayable: true}, 1)
		full[0].Done(Outcome{Kind: Reset, Sent: true, Total: time.Millisecond})
		p.Pick(&full[0], &balance.Request{})
	}); got != 0 {
		t.Errorf("failing, retrying and being refused allocates %v times", got)
	}
}

// BenchmarkCore is the control path of a pool of 10,000: what one probe costs
// from being due to its answer, a removal until it is published, the figures
// that are refreshed once a second, and a snapshot.
func BenchmarkCore(b *testing.B) {
	const n = 10000
	b.Run("probe", func(b *testing.B) {
		var now balance.Instant
		d := &answering{}
		p := New(benchPool(0, nil).cfg, d, func() balance.Instant { return now })
		d.now = &now
		p.Update(benchSpecs(n))
		for !p.Ready() {
			now = now.Add(time.Millisecond)
			p.Advance()
		}
		d.n = 0
		b.ResetTimer()
		for d.n < b.N {
			next, _ := p.Advance()
			now = max(next, now.Add(2*time.Millisecond))
		}
	})
	b.Run("removal", func(b *testing.B) {
		var now balance.Instant
		p := New(benchPool(0, nil).cfg, quiet{}, func() balance.Instant { return now })
		specs := benchSpecs(n)
		p.Update(specs)
		i := 0
		for b.Loop() {
			now = now.Add(time.Second)
			i++
			p.Update(append(append([]Spec(nil), specs[:i%n]...), specs[i%n+1:]...))
		}
	})
	b.Run("drain", func(b *testing.B) {
		var now balance.Instant
		p := New(benchPool(0, nil).cfg, quiet{}, func() balance.Instant { return now })
		p.Update(benchSpecs(n))
		i := 0
		for b.Loop() {
			now = now.Add(time.Second)
			i++
			if err := p.Override(p.core.order[i/2%n].b.ID(), Override{Admin: new(balance.Admin(i % 2))}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("statistics", func(b *testing.B) {
		p := benchPool(n, nil)
		now := balance.Instant(0)
		for i := uint64(0); b.Loop(); i++ {
			now = now.Add(time.Second)
			p.core.statistics(now)
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		p := benchPool(n, nil)
		for b.Loop() {
			p.Snapshot()
		}
	})
}

// answering passes every probe at once.
type answering struct {
	quiet
	now *balance.Instant
	n   int
}

func (d *answering) Probe(_ *balance.Backend, _ time.Duration, done func(health.ProbeResult)) {
	d.n++
	done(health.ProbeResult{Sent: *d.now, At: *d.now, OnTrafficPort: true})
}

// BenchmarkExport is what the state file costs every 30 s, beside its encoding,
// and BenchmarkRestore what it costs a start.
func BenchmarkExport(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			p := worked(n)
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				p.Export()
			}
			text, err := json.Marshal(p.Export())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(text))/float64(n), "bytes/backend")
		})
	}
}

// BenchmarkRestore takes in what BenchmarkExport gives.
func BenchmarkRestore(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			p := worked(n)
			defer p.Close()
			s := p.Export()
			b.ReportAllocs()
			for b.Loop() {
				p.Restore(s, 0)
			}
		})
	}
}

// worked is a pool that has answered requests.
func worked(n int) *Pool {
	p := benchPool(n, nil)
	for i, m := range p.core.order {
		for k := range 50 {
			o := Outcome{Status: 200, Sent: true, FirstByte: time.Duration(1+(i+k)%20) * time.Millisecond, Client: uint64(k % 2)}
			m.observe(p, 0, &o)
		}
	}
	p.Advance()
	return p
}

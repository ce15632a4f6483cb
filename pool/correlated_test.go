// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// dice is a driver whose probes fail by chance, each on its own.
type dice struct {
	now     balance.Instant
	rnd     *rand.Rand
	fails   func() float64
	failure health.ProbeResult
	said    []string
}

func (d *dice) Attach(*balance.Backend) any { return nil }
func (d *dice) CloseIdle(*balance.Backend)  {}
func (d *dice) Gone(*balance.Backend)       {}
func (d *dice) Notice(n Notice) {
	switch n.Kind {
	case SharedDependency, SharedOver, BrokenCheck, BrokenCheckOver:
		d.said = append(d.said, fmt.Sprintf("%v %v", time.Duration(n.At).Round(100*time.Millisecond), n.Kind))
	}
}

func (d *dice) Probe(_ *balance.Backend, _ time.Duration, done func(health.ProbeResult)) {
	r := health.ProbeResult{Status: 200}
	if d.rnd.Float64() < d.fails() {
		r = d.failure
	}
	r.Sent, r.At, r.OnTrafficPort = d.now, d.now, true
	done(r)
}

// play runs a pool of n backends for so long, at two requests per second on each
// of them, all of which succeed.
func (d *dice) play(n int, active health.Active, long time.Duration) {
	cfg := benchPool(0, func(c *Config) {
		c.First, c.Active, c.Panic = true, active, Panic{Threshold: 0.5, Floor: 1}
	}).cfg
	p := New(cfg, d, func() balance.Instant { return d.now })
	defer p.Close()
	p.Update(benchSpecs(n))
	for end := d.now.Add(long); d.now < end; {
		for next, ok := p.Advance(); ok && next <= d.now; next, ok = p.Advance() {
		}
		if d.now%balance.Instant(500*time.Millisecond) == 0 {
			for _, m := range p.core.order {
				if m.b.Reserve() {
					l := &Lease{}
					l.take(p, m, m.b, d.now)
					l.Done(Outcome{Now: d.now, Status: 200, Sent: true, FirstByte: time.Millisecond, Total: time.Millisecond})
				}
			}
		}
		d.now = d.now.Add(100 * time.Millisecond)
	}
}

var (
	quickCheck  = health.Active{Enabled: true, Interval: 500 * time.Millisecond, FastInterval: 200 * time.Millisecond, Timeout: 200 * time.Millisecond, Jitter: 0.1, Fall: 1, Rise: 1, HTTP: true}
	noAnswer    = health.ProbeResult{Outcome: health.NoAnswer, Cause: health.CauseReset, Error: "reset"}
	answered503 = health.ProbeResult{Outcome: health.NotReady, Cause: health.CauseStatus, Status: 503, Error: "status 503"}
)

// TestIndependentFailures: probes that fail each on its own fail many at a time
// now and then, the more the fewer backends there are. That is no news about what
// they share.
func TestIndependentFailures(t *testing.T) {
	three := quickCheck
	three.Fall, three.Rise = 3, 2
	for _, c := range []struct {
		n      int
		rate   float64
		active health.Active
	}{{2, 0.33, quickCheck}, {3, 0.33, quickCheck}, {6, 0.33, quickCheck}, {6, 0.5, quickCheck}, {20, 0.45, quickCheck}, {2, 0.5, three}, {6, 0.5, three}} {
		for seed := range uint64(3) {
			d := &dice{rnd: rand.New(rand.NewPCG(seed, 1)), fails: func() float64 { return c.rate }, failure: noAnswer}
			d.play(c.n, c.active, 10*time.Minute)
			if len(d.said) > 0 {
				t.Errorf("%d backends, fall %d, %v of the probes fail, seed %d: %d notices, first %v", c.n, c.active.Fall, c.rate, seed, len(d.said), d.said[:min(len(d.said), 4)])
			}
		}
	}
}

// TestFailuresThatBeginTogether: what is shared is named within seconds though
// probes have always failed by chance, once, and its end is, too.
func TestFailuresThatBeginTogether(t *testing.T) {
	for _, failure := range []health.ProbeResult{noAnswer, answered503} {
		for _, c := range []struct {
			n      int
			rate   float64
			within time.Duration
		}{{2, 0, 4 * time.Second}, {2, 0.2, 8 * time.Second}, {6, 0, 2 * time.Second}, {6, 0.33, 4 * time.Second}, {20, 0.33, 3 * time.Second}} {
			if failure.Outcome == health.NotReady && c.rate > 0 {
				continue // a backend's own word is never doubted: see TestWordsByChance
			}
			d := &dice{rnd: rand.New(rand.NewPCG(7, 1)), failure: failure}
			d.fails = func() float64 {
				if s := time.Duration(d.now); s >= time.Minute && s < 90*time.Second || s >= 150*time.Second && s < 180*time.Second {
					return 1
				}
				return c.rate
			}
			d.play(c.n, quickCheck, 4*time.Minute)
			var at [4]time.Duration
			var kinds [4]string
			for i := range min(len(d.said), 4) {
				var text string
				fmt.Sscan(d.said[i], &text, &kinds[i])
				at[i], _ = time.ParseDuration(text)
			}
			if len(d.said) != 4 || kinds != [4]string{"shared_dependency", "shared_dependency_over", "shared_dependency", "shared_dependency_over"} ||
				at[0] < time.Minute || at[0] > time.Minute+c.within || at[1] < 90*time.Second || at[1] > 120*time.Second ||
				at[2] < 150*time.Second || at[2] > 150*time.Second+2*c.within || at[3] > 210*time.Second {
				t.Errorf("%d backends, %v by chance, %v: %v", c.n, c.rate, failure.Outcome, d.said)
			}
		}
	}
}

// TestWordsByChance: where backends say by chance that they are not ready, so many
// may say so at once that panic.then applies, which is said, but not every time
// that it begins and ends.
func TestWordsByChance(t *testing.T) {
	d := &dice{rnd: rand.New(rand.NewPCG(3, 1)), fails: func() float64 { return 0.33 }, failure: answered503}
	d.play(6, quickCheck, 10*time.Minute)
	if len(d.said) > 12 {
		t.Errorf("%d notices in ten minutes: %v", len(d.said), d.said)
	}
}

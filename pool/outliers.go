// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

const (
	outlierEvery = 5 * time.Second // members are compared with each other so often
	slowConfirms = 10              // slow answers after the suspicion that it takes to eject
	slowRelapse  = 3               // in a row that end a probation
)

// failings is what requests write about a member's failures, for the comparison
// with the pool's others.
type failings struct {
	count atomic.Uint64 // 5xx but 503 with Retry-After, resets, malformed answers, timeouts
	who   addresses
}

// slowness is what requests write about a member that is suspected of being dead
// slow, or was ejected for it; of others nothing.
type slowness struct {
	limit atomic.Int64  // nanoseconds to the first byte that are slow; written by the core
	count atomic.Uint32 // slow answers since the suspicion
	run   atomic.Uint32 // in a row
	who   addresses
}

// slow takes an answer of a member in modeSlow or modeSlowAsk and reports whether
// it was slow: then it proves nothing in the member's favour.
func (m *member) slow(mode uint32, o *Outcome) bool {
	s := &m.slowness
	if o.Tunnel || int64(o.firstByte()) < s.limit.Load() {
		s.run.Store(0)
		return false
	}
	s.count.Add(1)
	s.who.see(o.Client)
	if run := s.run.Add(1); mode&modeProbation != 0 {
		m.goodRun.Store(0)
		if run >= slowRelapse {
			m.mark(markRelapse)
		}
	}
	return true
}

// outliers compares the members with each other: by failures and by latency.
func (c *core) outliers(now balance.Instant) {
	st, rules := &c.stats, &c.cfg.Passive
	if !rules.Enabled || now < st.outliersAt && len(st.slow) == 0 {
		return
	}
	st.outliersAt = now.Add(outlierEvery)
	st.sampled, st.samples = st.sampled[:0], st.samples[:0]
	poolTwo := c.hot.clients.two.Load() || st.twoBefore
	requests, failures := uint64(0), uint64(0)
	tardy := false // somebody's mean is such that its median may be dead slow
	for _, m := range c.order {
		s := m.core
		if s.class != serving || s.health.Probation() {
			continue
		}
		t := m.tally()
		st.sampled = append(st.sampled, m)
		st.samples = append(st.samples, health.Sample{
			Requests: t.answers + t.faults - s.base[0].answers - s.base[0].faults, Failures: t.failures - s.base[0].failures,
			TwoClients: !poolTwo || m.failings.who.two.Load() || s.failTwoBefore,
		})
		x := &st.samples[len(st.samples)-1]
		requests, failures = requests+x.Requests, failures+x.Failures
		// Half of all answers take the median or longer (Markov).
		tardy = tardy || 2*s.ewma >= float64(rules.Latency.Least())
	}
	for _, i := range rules.SuccessRate.Outliers(st.samples) {
		x := st.samples[i]
		c.eject(now, st.sampled[i], fmt.Sprintf("%d of %d requests failed, %d of %d elsewhere", x.Failures, x.Requests, failures-x.Failures, requests-x.Requests), modeShare)
	}
	c.slowOutliers(now, tardy && !rules.Latency.Off, poolTwo)
}

// slowOutliers suspects the dead slow, and ejects those whose suspicion the
// answers since have confirmed, from two client addresses if the pool saw two.
// Only while there is a suspicion are single answers looked at.
func (c *core) slowOutliers(now balance.Instant, tardy, poolTwo bool) {
	st := &c.stats
	before := st.slow
	st.slow, st.slowSpare = st.slowSpare[:0], before
	if tardy {
		for i, m := range st.sampled {
			x := &st.samples[i]
			x.Answers, x.Median = m.hist.median(m.core.window())
		}
		for _, o := range c.cfg.Passive.Latency.Outliers(st.samples) {
			m := st.sampled[o.Index]
			if m.core.class != serving {
				continue // ejected a moment ago
			}
			w := &m.slowness
			if m.mode.Load()&modeSlowAsk == 0 {
				w.count.Store(0)
				w.who.forget()
				w.limit.Store(int64(o.Limit))
				m.mode.Or(modeSlowAsk)
			} else if w.count.Load() >= slowConfirms && (!poolTwo || w.who.two.Load()) {
				why := fmt.Sprintf("median latency %v, %v elsewhere", st.samples[o.Index].Median.Round(time.Millisecond), o.Others.Round(time.Millisecond))
				w.run.Store(0)
				if c.eject(now, m, why, modeSlow) {
					continue
				}
			}
			m.core.slowAt = now
			st.slow = append(st.slow, m)
		}
	}
	for _, m := range before {
		if m.core.slowAt != now || m.core.class != serving {
			m.mode.And(^uint32(modeSlowAsk))
		}
	}
	clear(before)
}

// window returns where the window for quantiles begins, nil: at the beginning.
func (s *coreState) window() *histogramCopy {
	if s.hist == nil {
		return nil
	}
	return &s.hist[0]
}

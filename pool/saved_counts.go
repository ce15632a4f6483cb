// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"
	"time"

	"github.com/weirlb/weir/balance"
)

// restoreCounts brings back what requests have counted, and the windows.
func (c *core) restoreCounts(base balance.Instant, m *member, b *SavedBackend) {
	s, n := m.core, &b.Count
	m.answers.Store(n.Answers)
	m.latency.Store(n.LatencyNS)
	m.failed.Store(n.Failed)
	m.faults.Store(n.Faults)
	m.others.Store(n.Others)
	m.serverErrors.Store(n.ServerErrors)
	m.failings.count.Store(n.Failings)
	m.untimed.Store(n.Untimed)
	m.badTimed.Store(n.BadTimed)
	m.badLatency.Store(n.BadLatencyNS)
	m.run.Store(uint64(b.ConnRun)<<32 | uint64(b.BadRun))
	m.goodRun.Store(b.GoodRun)
	m.since.Store(instantOr(b.Changed, base, c.now, int64(c.now)))
	m.lastGood.Store(instantOr(b.LastGood, base, c.now, math.MinInt64))
	m.b.SetLearned(base, b.Learned)

	w := &b.Windows
	for i, x := range w.Base {
		s.base[i] = tally{x.Answers, x.Bad, x.Faults, x.Failures}
	}
	m.badFrom.Store(s.base[0].bad)
	m.errWho.restore(w.Errors)
	m.failings.who.restore(w.Fails)
	s.errTwoBefore, s.failTwoBefore, s.ewma = w.ErrorsTwo, w.FailsTwo, w.EWMA
	s.seenAnswers, s.seenLatency, s.seenBad, s.seenBadLatency = w.SeenAnswers, w.SeenLatencyNS, w.SeenBad, w.SeenBadNS
	s.summed = false
	m.restoreHistogram(w)

	g := &b.Signs
	for i, x := range g.Base {
		s.pressure.base[i] = pressed{x[0], x[1]}
	}
	s.pressure.before = g.Two
	m.signs.count.Store(g.Count)
	m.signs.from.Store(g.Base[0][1])
	m.signs.since.Store(instantOr(g.Since, base, c.now, 0))
	m.signs.asked.Store(g.AskedNS)
	m.signs.who.restore(g.Who)

	d := &m.slowness
	d.limit.Store(b.Slow.LimitNS)
	d.count.Store(b.Slow.Count)
	d.run.Store(b.Slow.Run)
	d.who.restore(b.Slow.Who)
}

// restoreHistogram makes the window what it was; what lay before it is gone.
func (m *member) restoreHistogram(w *SavedWindows) {
	for i := range m.hist {
		m.hist[i].Store(0)
	}
	for _, x := range w.Hist {
		m.hist[x[0]].Store(x[1])
	}
	m.core.hist = nil
	if !w.Turned {
		return
	}
	m.core.hist = new([2]histogramCopy)
	for _, x := range w.HistBefore {
		m.core.hist[1][x[0]] = x[1]
	}
}

func (a *addresses) restore(s SavedAddresses) {
	a.first.Store(s.First)
	a.two.Store(s.Two)
}

// restore brings back what the window holds, if it is the same window.
func (b *budget) restore(base balance.Instant, s *SavedBudget) {
	b.retries.Store(s.Retries)
	inParts := uint64(0)
	if time.Duration(s.WindowNS) == b.part*budgetSlots {
		for _, x := range s.Parts {
			inParts += uint64(x.Requests)
			at := base.Add(-time.Duration(x.Ago) * b.part)
			slot := b.slot(at)
			if slot.part.Load() != b.partOf(at) {
				continue // it counts what is later already
			}
			slot.requests[0].n.Store(x.Requests)
			slot.retries.Store(x.Retries)
		}
	}
	b.requests.Store(s.Requests - min(inParts, s.Requests))
}

func (c *core) restoreStats(now, base balance.Instant, s *SavedStats) {
	st := &c.stats
	if s.Last.Known() {
		st.last, st.ever = min(s.Last.At(base), now), true
		st.shareAt = min(s.Turned.At(base), now)
	}
	if s.Next.Known() {
		st.next = min(max(s.Next.At(base), now), now.Add(statsIdle))
	}
	if s.Compared.Known() {
		st.outliersAt = min(s.Compared.At(base), now.Add(outlierEvery))
	}
	st.mean, st.histAt, st.twoBefore = s.Mean, s.HistAt, s.Two
	if s.MeanAt.Known() {
		st.meanAt = min(s.MeanAt.At(base), now.Add(meanSoon))
	}
	c.hot.meanAsked.Store(s.MeanAt.Known())
	c.hot.mean.Store(s.MeanNS)
	c.hot.refused.Store(s.Refused)
	c.hot.clients.restore(s.Clients)
	for _, m := range c.order {
		m.b.SetMeanLatency(time.Duration(s.MeanNS))
	}
	st.sums = st.sums[:0]
	for _, x := range s.Sums {
		st.sums = append(st.sums, sum{x.At.At(base), x.Good, x.Bad, x.Good + x.Bad})
	}
	st.darkSince = sum{good: s.Dark.Good, bad: s.Dark.Bad}
}

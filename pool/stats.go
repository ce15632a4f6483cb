// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

const (
	ewmaTime  = 10 * time.Second // a latency mean forgets with this time constant
	shareTurn = 15 * time.Second // the window for 5xx shares is one to two of these
	histTurn  = 30 * time.Second // the window for quantiles is one to two of these
	keepSums  = 32
	meanSoon  = 100 * time.Millisecond // the first mean latency is looked for so often
)

// stats is what the core derives from the counters of all members, once a
// second: the only place that looks at every member by time.
type stats struct {
	next      balance.Instant
	last      balance.Instant
	ever      bool
	shareAt   balance.Instant
	histAt    int // which member's histogram turns next
	mean      float64
	meanAt    balance.Instant // when it is looked for again; 0: nobody waits for it
	sums      []sum           // at the last ticks, oldest first
	darkSince sum             // when the last member that served went out
	twoBefore bool
	watch     []*member // whose share of 5xx is being looked at
	windowed  tally     // of all members that serve, see core.windowed
	inWindow  bool      // it is known
	strained  []*member // whose overload is

	windowedAt balance.Instant // of when it is
	outliersAt balance.Instant // when members are compared next
	slow       []*member       // suspected of being dead slow
	slowSpare  []*member
	sampled    []*member
	samples    []health.Sample
}

// sum is the pool's traffic so far.
type sum struct {
	at             balance.Instant
	good, bad, all uint64
}

// statistics refreshes what depends on everyone.
func (c *core) statistics(now balance.Instant) {
	st := &c.stats
	dt := now.Sub(st.last)
	if !st.ever {
		dt, st.shareAt, st.ever = statsEvery, now, true
	}
	st.last = now
	weight := 1 - math.Exp(-dt.Seconds()/ewmaTime.Seconds())
	var total sum
	var answers, good, goodLatency uint64
	for _, m := range c.order {
		a, l := m.answers.Load(), m.latency.Load()
		timed := m.timed()
		failed := m.failed.Load()
		total.good += a - min(failed, a)
		total.bad += failed + m.faults.Load()
		s := m.core
		c.alarm.together = c.alarm.together || s.failRun > 0
		if n := timed - min(s.seenAnswers, timed); n > 0 {
			mean := float64(l-s.seenLatency) / float64(n)
			if s.ewma == 0 {
				s.ewma = mean
			} else {
				s.ewma += weight * (mean - s.ewma)
			}
			answers += n
			bad, badLatency := m.badTimed.Load(), m.badLatency.Load() // may be ahead of the rest
			good += n - min(bad-s.seenBad, n)
			goodLatency += l - s.seenLatency - min(badLatency-s.seenBadLatency, l-s.seenLatency)
			s.seenBad, s.seenBadLatency = bad, badLatency
		}
		s.seenAnswers, s.seenLatency = timed, l
	}
	total.all, total.at = total.good+total.bad, now
	if len(st.sums) == keepSums {
		st.sums = append(st.sums[:0], st.sums[1:]...)
	}
	st.sums = append(st.sums, total)
	if good > 0 {
		c.setMean(float64(goodLatency)/float64(good), weight)
	}
	c.served = c.served || total.good > 0
	c.forgetRemembered(now)
	if answers > 0 {
		c.lookLately()
	}
	c.turnHistograms(dt)
	c.outliers(now)
	c.turnPressure(now, now.Sub(st.shareAt) >= shareTurn)
	c.turnShares(now)
	for _, t := range c.tiers {
		c.alarm.stale = c.alarm.stale || t.latelyLive > 0 || t.shared
		c.alarm.together = c.alarm.together || t.correlated.kind != NotCorrelated
	}
	st.next = now.Add(statsEvery)
	if answers == 0 && len(st.watch) == 0 && len(st.strained) == 0 && len(st.slow) == 0 {
		st.next = now.Add(statsIdle)
	}
}

// firstMean finds the mean latency before the first statistics, because a failure
// is there to be charged: a backend that fails fast would otherwise look idle for
// as long as the process is young. It is tried at once, and as often as failures
// ask for it every 100 ms until an answer is good.
func (c *core) firstMean(now balance.Instant) {
	st := &c.stats
	if st.mean != 0 {
		st.meanAt = 0
		return
	}
	var good, latency uint64
	for _, m := range c.order {
		bad, badLatency, n, l := m.badTimed.Load(), m.badLatency.Load(), m.timed(), m.latency.Load()
		good += n - min(bad, n)
		latency += l - min(badLatency, l)
	}
	switch {
	case good > 0:
		c.setMean(float64(latency)/float64(good), 1)
	case st.meanAt == 0:
		st.meanAt = now.Add(meanSoon)
		return
	}
	st.meanAt = 0
	c.hot.meanAsked.Store(false)
}

// setMean moves the pool's mean latency, by which failed attempts are charged: of
// good answers only. With fast failures in it each of them
// would be charged too little, which attracts more of them, which makes the mean
// smaller yet.
func (c *core) setMean(mean, weight float64) {
	st := &c.stats
	if st.mean == 0 {
		st.mean = mean
	} else {
		st.mean += weight * (mean - st.mean)
	}
	p := c.hot
	if old := float64(p.mean.Load()); math.Abs(st.mean-old) <= old/10 {
		return
	}
	p.mean.Store(int64(st.mean))
	for _, m := range c.order {
		m.b.SetMeanLatency(time.Duration(st.mean))
	}
}

// turnHistograms moves the windows of some members on, so that each has its
// turn once in histTurn.
func (c *core) turnHistograms(dt time.Duration) {
	if len(c.order) == 0 {
		return
	}
	n := int(math.Ceil(float64(len(c.order)) * min(float64(dt)/float64(histTurn), 1)))
	for range n {
		c.stats.histAt++
		m := c.order[c.stats.histAt%len(c.order)]
		if m.core.seenAnswers == 0 {
			continue
		}
		if m.core.hist == nil {
			m.core.hist = new([2]histogramCopy)
		}
		m.core.hist[0] = m.core.hist[1]
		m.hist.copyTo(&m.core.hist[1])
	}
}

// watch looks at a member's share of 5xx, now and for as long as the window
// gives reason to.
func (c *core) watch(now balance.Instant, m *member) {
	ejected := c.shareEjects(now, m)
	if m.core.watched {
		return // turnShares lets it be asked again
	}
	if ejected {
		m.shareAsk.Store(false)
		return
	}
	m.core.watched = true
	c.stats.watch = append(c.stats.watch, m)
	c.stats.next = min(c.stats.next, now.Add(statsEvery))
}

// shareEjects applies the rule for the application's own 5xx.
func (c *core) shareEjects(now balance.Instant, m *member) bool {
	s := m.core
	if s.leaving || s.class != serving || s.health.Probation() {
		return false
	}
	mine := m.tally()
	bad, answers := mine.bad-s.base[0].bad, mine.answers-s.base[0].answers
	two := m.errWho.two.Load() || s.errTwoBefore
	poolTwo := c.hot.clients.two.Load() || c.stats.twoBefore
	if !health.ShareEjects(bad, answers, 0, 0, two, poolTwo) {
		return false // whatever the others' share
	}
	all := c.windowed(now)
	others := all
	if s.summed { // younger than the sum, so it may be ahead of it
		others = tally{bad: all.bad - min(bad, all.bad), answers: all.answers - min(answers, all.answers)}
	}
	if others.answers < health.ShareAnswers {
		return false // nothing to compare with
	}
	if !health.ShareEjects(bad, answers, others.bad, others.answers, two, poolTwo) || !c.mayEject(m) {
		return false
	}
	return c.eject(now, m, fmt.Sprintf("%d of %d answers were 5xx, %d of %d elsewhere", bad, answers, others.bad, others.answers), modeShare)
}

// windowed returns what the windows of all members that serve hold together:
// what one that is out still answers says nothing about those that are left, and
// the last of them must not be measured against it. Where one poisonous
// URL is asked of everybody, everybody's share is looked at, and summing up anew
// for each of ten thousand takes half a second; so a large pool keeps the sum for
// a thousand times as long as it took to make.
func (c *core) windowed(now balance.Instant) tally {
	st := &c.stats
	if st.inWindow && now.Sub(st.windowedAt) < time.Duration(len(c.order)-largePool)*perMember {
		return st.windowed
	}
	var sum tally
	for _, m := range c.order {
		if m.core.summed = m.core.class == serving; !m.core.summed {
			continue
		}
		base := &m.core.base[0]
		sum.bad += m.serverErrors.Load() - base.bad
		sum.answers += m.answers.Load() - base.answers
	}
	st.windowed, st.windowedAt, st.inWindow = sum, now, true
	return sum
}

// leaveWindow takes a member's part out of the sum: its windows begin anew.
func (c *core) leaveWindow(m *member) {
	if !m.core.summed {
		return
	}
	st, t, base := &c.stats, m.tally(), &m.core.base[0]
	st.windowed.bad -= min(t.bad-base.bad, st.windowed.bad)
	st.windowed.answers -= min(t.answers-base.answers, st.windowed.answers)
}

// turnShares looks again at those being watched and moves the windows on.
func (c *core) turnShares(now balance.Instant) {
	st := &c.stats
	turn := now.Sub(st.shareAt) >= shareTurn
	still := st.watch[:0]
	for _, m := range st.watch {
		if !m.core.gone && !c.shareEjects(now, m) && !turn {
			still = append(still, m)
			continue
		}
		m.core.watched = false
		m.shareAsk.Store(false)
	}
	clear(st.watch[len(still):])
	st.watch = still
	if !turn {
		return
	}
	st.shareAt, st.inWindow = now, false
	for _, m := range c.order {
		s := m.core
		s.base[0], s.base[1] = s.base[1], m.tally()
		m.badFrom.Store(s.base[0].bad)
		s.errTwoBefore = m.errWho.forget()
		s.failTwoBefore = m.failings.who.forget()
	}
	st.twoBefore = c.hot.clients.forget()
}

// forgetWindows begins a member's windows anew: for 5xx shares, success rate and
// latency.
func (c *core) forgetWindows(m *member) {
	c.leaveWindow(m)
	t := m.tally()
	m.core.base = [2]tally{t, t}
	m.badFrom.Store(t.bad)
	m.core.errTwoBefore, m.core.failTwoBefore = false, false
	m.errWho.forget()
	m.failings.who.forget()
	if t.answers > 0 {
		if m.core.hist == nil {
			m.core.hist = new([2]histogramCopy)
		}
		m.hist.copyTo(&m.core.hist[1])
		m.core.hist[0] = m.core.hist[1]
	}
}

// trafficSucceeds reports whether the pool's real requests went well lately:
// there were some, and nine in ten were good.
func (c *core) trafficSucceeds(now balance.Instant, window time.Duration) bool {
	return c.traffic().succeedsSince(c.sumBefore(now, window))
}

// trafficFails reports whether they went badly: there were some, and fewer were
// good.
func (c *core) trafficFails(now balance.Instant, window time.Duration) bool {
	cur, base := c.traffic(), c.sumBefore(now, window)
	return cur.good+cur.bad > base.good+base.bad && !cur.succeedsSince(base)
}

// sumBefore returns the traffic up to a window ago, or up to the oldest that is
// remembered.
func (c *core) sumBefore(now balance.Instant, window time.Duration) (base sum) {
	if len(c.stats.sums) == keepSums {
		base = c.stats.sums[0]
	}
	for _, s := range c.stats.sums {
		if now.Sub(s.at) >= window {
			base = s
		}
	}
	return base
}

// traffic adds up what all members have answered so far.
func (c *core) traffic() (t sum) {
	for _, m := range c.order {
		a, failed := m.answers.Load(), m.failed.Load()
		t.good += a - min(failed, a)
		t.bad += failed + m.faults.Load()
	}
	return t
}

// succeedsSince reports whether there were requests since, nine in ten of them good.
func (s sum) succeedsSince(base sum) bool {
	good, bad := s.good-min(base.good, s.good), s.bad-min(base.bad, s.bad)
	return good > 0 && good >= 9*bad
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// eventKind is what happened.
type eventKind uint8

const (
	evTick        eventKind = iota // time has passed
	evUpdate                       // specs: the whole membership
	evOverride                     // id, override: the operator's word
	evProbe                        // m, result
	evCrossed                      // m, marks: thresholds that requests crossed
	evReconfigure                  // was: the settings until now
	evDismiss                      // id, specs: the membership without it, deadline
	evRestore                      // restoring: what another process knew
)

// event is one input of the core.
type event struct {
	kind     eventKind
	specs    []Spec
	id       string
	override Override
	m        *member
	result   health.ProbeResult
	marks    uint32
	was      *Config
	deadline time.Duration

	restoring *restoring
}

// effectKind is what is to be done.
type effectKind uint8

const (
	doPublish   effectKind = iota // v: build its pickers and make it what requests read
	doProbe                       // m
	doCloseIdle                   // m
	doGone                        // m
	doNotice                      // notice
	doWake                        // at: step again then at the latest
)

// effect is one output of the core. Shares, flags and the operator's word are
// stored on the Backends by the core itself: that is their publication.
type effect struct {
	kind    effectKind
	m       *member
	publish *publication
	notice  Notice
	at      balance.Instant
}

const (
	publishEvery = 100 * time.Millisecond // at most one rebuild in this time
	readyWithin  = 5 * time.Second        // a pool is ready then at the latest
	statsEvery   = time.Second            // while there is traffic
	// In pools larger than this, what looks at everyone is not done for every event
	// but once in so much time for each member above it.
	largePool = 100
	perMember = 10 * time.Microsecond
	statsIdle = 5 * time.Second // while there is none
)

// core is the deciding half of a pool: a state machine without clock, dice,
// goroutine or socket. step takes an event at an instant and returns what is to
// be done. All of it is guarded by Pool.mu.
type core struct {
	cfg    *Config
	hot    *Pool              // the figures that requests write; atomics only
	attach func(Spec) *member // makes a member and lets the driver attach to it

	started   bool
	now       balance.Instant
	seq       uint64
	updated   bool // there was an Update
	updates   uint64
	order     []*member
	byID      map[string]*member   // current members
	leaving   map[identity]*member // removed, with work in flight
	overrides map[string]*override
	dismissed string        // the id that dismiss takes out just now,
	grace     time.Duration // and the time for what it has in flight, as drain takes it
	timers    timerHeap

	tiers     []*tier         // by level; those that have members
	outside   map[string]bool // ids that another subset holds
	outByWork int             // members that real requests have taken out, of all tiers
	alarm     alarm

	moved  []*member     // to another class in this step
	proven bool          // somebody has passed a probe, or a process before knew the pool
	lit    bool          // somebody serves
	dark   bool          // nobody does, in a pool that has served
	served bool          // it has given a good answer
	gate   *balance.Ramp // lets requests in little by little, nil: all

	dirty     bool // the published view is out of date
	rebuild   bool // and its pickers are of another policy
	published balance.Instant
	composed  balance.Instant // the last time that something might have been
	ever      bool            // something was published
	hurried   bool            // out of turn, because nobody was left
	hurriedAt balance.Instant

	awaited int // first probes that Ready waits for
	readyBy balance.Instant
	ready   bool

	stats stats

	remembered remembered // of another process, see Restore
	happened   uint64     // events that changed something, see Activity

	effects []effect
	woken   balance.Instant // the wake-up last asked for
	hasWake bool
}

// override is the operator's word, kept by id.
type override struct {
	admin       balance.Admin
	hasAdmin    bool
	adminSince  balance.Instant
	deadline    time.Duration
	weight      uint32
	hasWeight   bool
	weightSince balance.Instant
}

// step takes one event. The result is valid until the next step.
func (c *core) step(now balance.Instant, ev event) []effect {
	c.now = now
	c.effects = c.effects[:0]
	if !c.started {
		c.started = true
		c.readyBy = now.Add(readyWithin)
		c.stats.next = now.Add(statsIdle)
	}
	if ev.kind != evTick {
		c.happened++
	}
	switch ev.kind {
	case evTick:
		c.tick(now)
	case evUpdate:
		c.update(now, ev.specs)
	case evOverride:
		c.override(now, ev.id, ev.override)
	case evProbe:
		c.probed(now, ev.m, ev.result)
	case evCrossed:
		c.crossed(now, ev.m, ev.marks)
	case evReconfigure:
		c.reconfigure(now, ev.was)
	case evDismiss:
		c.dismiss(now, ev.id, ev.specs, ev.deadline)
	case evRestore:
		c.restore(now, ev.restoring)
	}
	c.adapt(now)
	c.settleRamps(now)
	c.reckon(now)
	c.correlate(now)
	c.publish(now)
	c.settleReady(now)
	c.wake()
	return c.effects
}

func (c *core) do(e effect) { c.effects = append(c.effects, e) }

func (c *core) notice(m *member, n Notice) {
	n.At, n.Pool = c.now, c.cfg.Name
	if m != nil {
		n.Backend = m.b
	}
	c.do(effect{kind: doNotice, m: m, notice: n})
}

// tick handles everything that is due.
func (c *core) tick(now balance.Instant) {
	for t := c.timers.due(now); t != nil; t = c.timers.due(now) {
		m := t.m
		c.happened++
		switch t.kind {
		case timerProbe:
			c.probe(now, m)
		case timerEject:
			c.judge(now, m, func(h *health.Machine) { h.Tick(now) })
		case timerFact:
			c.factOver(now, m)
		case timerDrain:
			c.drainOver(m)
		case timerLast:
			c.drainEnding(m)
		case timerRamp:
			c.endRamp(m)
		}
	}
	if at := c.stats.meanAt; at != 0 && now >= at {
		c.firstMean(now)
	}
	if now >= c.stats.next {
		c.statistics(now)
	}
}

// wake asks for the next step by time, if that is news.
func (c *core) wake() {
	at, ok := c.stats.next, c.updated
	sooner := func(t balance.Instant) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if len(c.timers) > 0 {
		sooner(c.timers[0].at)
	}
	if c.gate != nil {
		sooner(c.gate.Start.Add(c.gate.Window))
	}
	if a := c.hot.set.Load().adaptive; a != nil {
		sooner(a.next)
	}
	if c.stats.meanAt != 0 {
		sooner(c.stats.meanAt)
	}
	if c.dirty {
		sooner(c.publishAt())
	}
	if !c.ready {
		sooner(c.readyBy)
	}
	if ok && (!c.hasWake || at != c.woken || c.woken <= c.now) {
		c.woken, c.hasWake = at, true
		c.do(effect{kind: doWake, at: at})
	}
}

// settleReady decides whether the first probe round is over.
func (c *core) settleReady(now balance.Instant) {
	if !c.ready {
		c.ready = c.updated && len(c.order) > 0 && c.awaited == 0 || now >= c.readyBy
	}
}

// publish asks for new pickers, at most once in publishEvery; the first change
// of a quiet period is published at once.
func (c *core) publish(now balance.Instant) {
	if !c.dirty {
		return
	}
	if c.ever && now < c.publishAt() {
		if c.hurried && now.Sub(c.hurriedAt) < publishEvery || !c.starved() {
			return
		}
		c.hurried, c.hurriedAt = true, now
	}
	c.dirty, c.composed = false, now
	pub := c.compose()
	if c.rebuild {
		c.rebuild, c.hot.last = false, nil
	} else if c.ever && pub.equal(c.hot.last) {
		return // classes moved, but not who is in
	}
	c.ever, c.published = true, now
	c.do(effect{kind: doPublish, publish: pub})
}

// publishAt returns when what has changed may be published. Changes that move
// nobody in or out are found out only by composing, which costs as much as there
// are members; when all of a large pool change at once (every backend answers
// that it is overloaded) that is not done for each of them.
func (c *core) publishAt() balance.Instant {
	looked := time.Duration(max(len(c.order)-largePool, 0)) * perMember
	return max(c.published.Add(publishEvery), c.composed.Add(min(looked, publishEvery)))
}

// starved reports that what is published has nobody left who takes work, so
// that the next publication must not wait: that would be refusals.
func (c *core) starved() bool {
	v := c.hot.view.Load()
	return !v.anyTaker(func(m *balance.Member, panicked bool) bool {
		return m.Backend.Admin() == balance.Enabled && (panicked || m.Backend.Share() > 0)
	})
}

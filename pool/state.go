// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// eventKind is what happened.
type eventKind uint8

const (
	evTick     eventKind = iota // time has passed
	evUpdate                    // specs: the whole membership
	evOverride                  // id, override: the operator's word
	evProbe                     // m, result
	evCrossed                   // m, marks: thresholds that requests crossed
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

// publication is a membership to build pickers over.
type publication struct {
	first, second []balance.Member
	panicked      [2]bool
	members       []*member
	idle          bool // the operator's word leaves nobody: all are drained, disabled or of weight 0
	admit         float64
}

const (
	publishEvery = 100 * time.Millisecond // at most one rebuild in this time
	readyWithin  = 5 * time.Second        // a pool is ready then at the latest
	statsEvery   = time.Second            // while there is traffic
	statsIdle    = 5 * time.Second        // while there is none
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
	timers    timerHeap

	counts    [2][classes]int // members by tier (0 first, 1 backup) and class
	outByWork int             // members that real requests have taken out, of both tiers
	alarm     alarm

	dirty     bool // the published view is out of date
	published balance.Instant
	ever      bool // something was published
	hurried   bool // out of turn, because nobody was left
	hurriedAt balance.Instant

	awaited int // first probes that Ready waits for
	readyBy balance.Instant
	ready   bool

	stats stats

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
	}
	c.reckon(now)
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
		switch t.kind {
		case timerProbe:
			c.probe(now, m)
		case timerEject:
			c.judge(now, m, func(h *health.Machine) { h.Tick(now) })
		case timerFact:
			c.factOver(now, m)
		case timerDrain:
			c.drainOver(m)
		}
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
	if c.dirty {
		sooner(c.published.Add(publishEvery))
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
	if c.ever && now.Sub(c.published) < publishEvery {
		if c.hurried && now.Sub(c.hurriedAt) < publishEvery || !c.starved() {
			return
		}
		c.hurried, c.hurriedAt = true, now
	}
	c.dirty = false
	pub := c.compose()
	if c.ever && pub.equal(c.hot.last) {
		return // classes moved, but not who is in
	}
	c.ever, c.published = true, now
	c.do(effect{kind: doPublish, publish: pub})
}

// starved reports that what is published has nobody left who takes work, so
// that the next publication must not wait: that would be refusals.
func (c *core) starved() bool {
	last := c.hot.last
	for i, tier := range [2][]balance.Member{last.first, last.second} {
		for _, m := range tier {
			if m.Backend.Admin() == balance.Enabled && (last.panicked[i] || m.Backend.Share() > 0) {
				return false
			}
		}
	}
	return true
}

func (p *publication) equal(q *publication) bool {
	return p.admit == q.admit && p.idle == q.idle && p.panicked == q.panicked && slices.Equal(p.members, q.members) &&
		slices.Equal(p.first, q.first) && slices.Equal(p.second, q.second)
}

// compose gathers the members that the two tiers' pickers are built over.
func (c *core) compose() *publication {
	out := &publication{members: append([]*member(nil), c.order...), admit: 1, idle: c.counts == [2][classes]int{}}
	a := &c.alarm
	first := c.tier(0, a.open, a.shared)
	second := c.tier(1, false, false)
	if len(second) == 0 && c.counts[0][serving] == 0 {
		// Nothing is left but what the opinions about the backups forbid.
		second = c.tier(1, true, true)
		out.panicked[1] = len(second) > 0
	}
	out.first, out.second = first, second
	out.panicked[0] = a.open
	if a.open && c.counts[1][serving] > 0 && (c.cfg.Panic.Then == ThenFailover || c.counts[0][serving] == 0) {
		out.first, out.second = second, first
		out.panicked[0], out.panicked[1] = out.panicked[1], out.panicked[0]
	}
	if a.shedding {
		out.admit = c.admit()
	}
	return out
}

// tier lists the members of one tier that may take work. Open is panic: all
// that opinions exclude are in; of those who say themselves that they are not
// ready only with shared, or when nobody else is left; of those still awaiting
// their first probe only when nobody else at all is left.
func (c *core) tier(tier int, open, shared bool) []balance.Member {
	n := &c.counts[tier]
	words := open && (shared || n[serving]+n[opinion] == 0)
	newcomers := open && n[serving]+n[opinion] == 0 && (!words || n[notReady] == 0)
	stable := c.keepsExcluded()
	out := make([]balance.Member, 0, n[serving]+btoi(open)*(n[opinion]+n[unreachable]+n[notReady]+n[waiting]))
	for _, m := range c.order {
		s := m.core
		if s.class == out0 || btoi(s.backup) != tier {
			continue
		}
		in := s.class == serving || s.floored || stable && !open
		switch s.class {
		case opinion, unreachable:
			in = in || open
		case notReady:
			in = in || words
		case waiting:
			in = in || newcomers
		}
		if in {
			out = append(out, balance.Member{Backend: m.b, Weight: s.weight})
		}
	}
	return out
}

// keepsExcluded reports whether the policy wants excluded members in its set
// and skips them itself: hash policies, whose tables must not change with
// health.
func (c *core) keepsExcluded() bool {
	k, ok := c.cfg.Policy.(balance.Keeper)
	return ok && k.KeepsExcluded()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// addresses notes client addresses until two were seen.
type addresses struct {
	first atomic.Uint64
	two   atomic.Bool
}

func (a *addresses) see(client uint64) {
	if client == 0 || a.two.Load() {
		return
	}
	if first := a.first.Load(); first != client && (first != 0 || !a.first.CompareAndSwap(0, client)) {
		a.two.Store(true)
	}
}

// forget begins a new window and returns whether the last one saw two.
func (a *addresses) forget() bool {
	a.first.Store(0)
	return a.two.Swap(false)
}

// signs is what requests write about a member's overload, and only those whose
// answer is a sign of it.
type signs struct {
	count atomic.Uint64
	from  atomic.Uint64 // value of count when the window began; written by the core
	since atomic.Int64  // of attempts begun before, nothing counts; written by the core
	asked atomic.Int64  // the longest Retry-After, nanoseconds
	who   addresses
	ask   atomic.Bool // the rule is being looked at
}

// pressure is what the core knows of a member's overload.
type pressure struct {
	health.Pressure
	base   [2]pressed // when the last two windows began
	before bool       // the older one saw two addresses
	listed bool
}

type pressed struct{ answers, signs uint64 }

func (m *member) pressed() pressed { return pressed{m.answers.Load(), m.signs.count.Load()} }

// strained takes an answer that may be a sign of overload.
func (m *member) strained(began balance.Instant, o *Outcome) {
	if o.HasLoad {
		m.reported(o.Now, o.Load)
	}
	g, w := &m.signs, &m.p.set.Load().Overload
	if !w.Enabled || int64(began) < g.since.Load() {
		return
	}
	if !o.Overloaded && !(w.RetryAfter503 && o.Status == 503 && o.RetryAfter) && !(w.TooMany429 && o.Status == 429) && !(o.HasLoad && w.Exceeds(o.Load)) {
		return
	}
	if o.RetryAfter {
		for asked := int64(o.RetryAfterFor); ; {
			if old := g.asked.Load(); asked <= old || g.asked.CompareAndSwap(old, asked) {
				break
			}
		}
	}
	g.who.see(o.Client)
	// As with bad answers, the core is told once, when there could be enough.
	if n := g.count.Add(1); n-g.from.Load() >= health.OverloadAnswers*health.OverloadPart && !g.ask.Load() && g.ask.CompareAndSwap(false, true) {
		m.mark(markStrained)
	}
}

// reported keeps what the backend says of its own load, for those who look: in one
// word, the seconds of the instant above the bits of the figure, so that the two
// belong together. 0 says that there was no report.
func (m *member) reported(now balance.Instant, load float64) {
	m.report.Store(uint64(uint32(max(int64(now)/int64(time.Second), 0))+1)<<32 | uint64(math.Float32bits(float32(load))))
}

// lastReport returns the last report, to the second; false: there was none.
func (m *member) lastReport() (load float64, at balance.Instant, ok bool) {
	v := m.report.Load()
	if v == 0 {
		return 0, 0, false
	}
	return float64(math.Float32frombits(uint32(v))), balance.Instant(v>>32-1) * balance.Instant(time.Second), true
}

// refusedFull notes that a request was refused because everyone was at the limit.
func (p *Pool) refusedFull() {
	if o := &p.set.Load().Overload; o.Enabled && o.QueueFull {
		p.refused.Add(1)
	}
}

// lookAtPressure puts a member on the list of those whose overload is looked at
// each second, and looks at once.
func (c *core) lookAtPressure(now balance.Instant, m *member) {
	if s := m.core; !s.pressure.listed && !s.leaving {
		s.pressure.listed = true
		c.stats.strained = append(c.stats.strained, m)
		c.stats.next = min(c.stats.next, now.Add(statsEvery))
	}
	c.weighPressure(now, m)
}

// weighPressure applies the rule to a member: a step down, or what time gives
// back.
func (c *core) weighPressure(now balance.Instant, m *member) {
	s := m.core
	x := &s.pressure
	if s.leaving || s.health.BaseShare() <= 0 {
		return
	}
	if s.health.SaysOverloaded() {
		x.Hold(now)
	}
	cur := m.pressed()
	count, answers := cur.signs-x.base[0].signs, cur.answers-x.base[0].answers
	two := m.signs.who.two.Load() || x.before
	poolTwo := c.hot.clients.two.Load() || c.stats.twoBefore
	if x.Ready(now, time.Duration(s.ewma)) && health.OverloadDue(count, max(answers, count), two, poolTwo) {
		c.relieve(now, m, fmt.Sprintf("%d signs of overload in %d answers", count, answers))
		return
	}
	x.Recover(now)
	c.setPressure(now, m, "no more signs of overload")
}

// relieve takes a step down.
func (c *core) relieve(now balance.Instant, m *member, why string) {
	x := &m.core.pressure
	x.Decrease(now, &c.cfg.Overload, time.Duration(m.signs.asked.Swap(0)), mix(uint64(m.b.Hash())^mix(c.cfg.Instance^x.Decreases())))
	c.forgetSigns(now, m)
	c.setPressure(now, m, why)
}

// setPressure puts a member's share into force. The state may change, the evidence
// about failures that has been gathered stays: overload is no reason to ask anew.
func (c *core) setPressure(now balance.Instant, m *member, why string) {
	s := m.core
	h := &s.health
	share, state := h.Share(), h.State()
	h.SetOverload(now, s.pressure.Share(), why)
	if h.Share() == share && h.State() == state {
		return
	}
	if !s.floored {
		m.b.SetShare(h.Share())
	}
	c.recount(m)
	if h.State() != state {
		c.notice(m, Notice{Kind: StateChanged, From: state, To: h.State(), Reason: h.Reason(), Share: h.Share(), Why: why})
	}
}

// forgetSigns begins a member's window for signs of overload anew.
func (c *core) forgetSigns(now balance.Instant, m *member) {
	t := m.pressed()
	m.core.pressure.base = [2]pressed{t, t}
	m.core.pressure.before = false
	m.signs.from.Store(t.signs)
	m.signs.since.Store(int64(now))
	m.signs.asked.Store(0)
	m.signs.who.forget()
}

// probeStrained takes a probe that was answered: its load report and its word
// count at once, as the backend itself says so.
func (c *core) probeStrained(now balance.Instant, m *member, r *health.ProbeResult) {
	if r.Outcome != health.Overloaded || !c.cfg.Overload.Enabled || m.core.health.BaseShare() <= 0 {
		return
	}
	c.lookAtPressure(now, m)
	if x := &m.core.pressure; x.Ready(now, time.Duration(m.core.ewma)) {
		why := "the probe was answered: overloaded"
		if r.HasLoad {
			why = fmt.Sprintf("the probe reported a load of %.0f %%", 100*r.Load)
		}
		c.relieve(now, m, why)
	}
}

// turnPressure looks at those on the list, once a second; turn moves the windows
// of all members on.
func (c *core) turnPressure(now balance.Instant, turn bool) {
	if !c.cfg.Overload.Enabled {
		return
	}
	if n := c.hot.refused.Swap(0); n > 0 {
		// The others had room for none of them: each that is full is short of it.
		for _, m := range c.order {
			if m.core.class == serving && m.b.Full() {
				m.signs.count.Add(n)
				m.signs.who.two.Store(true) // weir's own word, no client's
				c.lookAtPressure(now, m)
			}
		}
	}
	still := c.stats.strained[:0]
	for _, m := range c.stats.strained {
		c.weighPressure(now, m)
		s := m.core
		if !s.gone && (s.pressure.Share() < 1 || !turn && m.signs.ask.Load()) {
			still = append(still, m)
			continue
		}
		s.pressure.listed = false
		m.signs.ask.Store(false)
	}
	clear(c.stats.strained[len(still):])
	c.stats.strained = still
	if !turn {
		return
	}
	for _, m := range c.order {
		x := &m.core.pressure
		x.base[0], x.base[1] = x.base[1], m.pressed()
		m.signs.from.Store(x.base[0].signs)
		x.before = m.signs.who.forget()
	}
}

// forgetPressure ends a member's overload: it is out, and who returns is somebody
// else.
func (c *core) forgetPressure(now balance.Instant, m *member) {
	m.core.pressure.Forget()
	m.core.health.SetOverload(now, 1, "")
	c.forgetSigns(now, m)
}

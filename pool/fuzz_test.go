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

// FuzzCore plays a byte string as a sequence of everything that can happen to
// a pool and checks after every step what must always hold.
func FuzzCore(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomPlay(seed, 400))
	}
	f.Fuzz(func(t *testing.T, data []byte) { play(t, data) })
}

// TestRandomPlays is FuzzCore on fixed seeds, for every run of the tests.
func TestRandomPlays(t *testing.T) {
	for seed := range uint64(300) {
		play(t, randomPlay(seed, 600))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func randomPlay(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(rnd.Uint32())
	}
	return out
}

// game is one play.
type game struct {
	t        *testing.T
	data     []byte
	p        *Pool
	now      balance.Instant
	rnd      uint64
	attached map[*balance.Backend]int // 1 attached, 2 gone
	probes   map[*balance.Backend]func(health.ProbeResult)
	held     []*Lease
	waiting  []*waiter
	ids      int
	still    bool // membership never changes and connections never fail
}

func (g *game) Attach(b *balance.Backend) any {
	g.attached[b] = 1
	return b.ID()
}

func (g *game) Probe(b *balance.Backend, _ time.Duration, done func(health.ProbeResult)) {
	if g.probes[b] != nil {
		g.t.Errorf("%v: probes of %s overlap", g.now, b.ID())
	}
	g.probes[b] = done
}

func (g *game) CloseIdle(*balance.Backend) {}

func (g *game) Gone(b *balance.Backend) {
	if g.attached[b] != 1 {
		g.t.Errorf("%s is gone twice", b.ID())
	}
	if b.InFlight() != 0 {
		g.t.Errorf("%s is gone with %d in flight", b.ID(), b.InFlight())
	}
	g.attached[b] = 2
}

func (g *game) Notice(Notice) {}

// next takes a number below n from the play.
func (g *game) next(n int) int {
	if len(g.data) == 0 {
		return 0
	}
	v := int(g.data[0])
	g.data = g.data[1:]
	return v % n
}

func play(t *testing.T, data []byte) {
	g := &game{t: t, data: data, attached: map[*balance.Backend]int{}, probes: map[*balance.Backend]func(health.ProbeResult){}}
	g.ids = 2 + g.next(5)
	g.still = g.next(4) == 0
	cfg := Config{
		Name: "app", First: g.next(2) == 0, DrainDeadline: 5 * time.Second,
		Active: health.Active{
			Enabled: g.next(4) != 0, Interval: 5 * time.Second, FastInterval: time.Second, Timeout: 2 * time.Second,
			Jitter: 0.1, Fall: 1 + g.next(3), Rise: 1 + g.next(3), HTTP: g.next(2) == 0,
		},
		Passive: health.Passive{
			Enabled: g.next(5) != 0, Consecutive: 1 + g.next(4), ConsecutiveConnect: 1 + g.next(2),
			Eject: 3 * time.Second, MaxEject: 10 * time.Second, MaxEjected: float64(g.next(5)) / 4,
		},
		Panic: Panic{Off: g.next(4) == 0, Threshold: float64(g.next(5)) / 4, Floor: g.next(4), Then: Then(g.next(3))},
	}
	if g.next(2) == 0 {
		cfg.Limits = Limits{BackendRequests: int64(g.next(3)), PoolRequests: int64(g.next(6)), Queue: g.next(4)}
	}
	g.p = New(cfg, g, func() balance.Instant { return g.now })
	g.update()
	for len(g.data) > 0 && !t.Failed() {
		g.move()
		g.settle()
		g.check()
	}
	g.end()
}

func (g *game) move() {
	switch g.next(12) {
	case 0:
		if !g.still {
			g.update()
		}
	case 1:
		g.now = g.now.Add(time.Duration(1+g.next(200)) * time.Millisecond)
	case 2:
		g.now = g.now.Add(time.Duration(1+g.next(40)) * 100 * time.Millisecond)
	case 3:
		g.override()
	case 4, 5:
		g.answer()
	case 6, 7, 8:
		g.pick()
	case 9, 10:
		g.finish(g.next(len(g.held) + 1))
	case 11:
		if len(g.waiting) > 0 {
			w := g.waiting[g.next(len(g.waiting))]
			g.p.abandon(w)
		}
	}
}

func (g *game) update() {
	var specs []Spec
	for i := range g.ids {
		if !g.still && g.next(4) == 0 {
			continue
		}
		s := Spec{ID: fmt.Sprint("b", i), URL: "http://b", Weight: 1}
		if !g.still {
			s.Weight = uint32(g.next(4))
			s.Backup = g.next(5) == 0
			s.URL += fmt.Sprint(g.next(2))
		}
		specs = append(specs, s)
	}
	g.p.Update(specs)
}

func (g *game) override() {
	o := Override{Deadline: time.Duration(g.next(3)) * time.Second}
	switch g.next(4) {
	case 0:
		o.Admin = new(balance.Admin(g.next(3)))
	case 1:
		o.Admin = new(balance.Enabled)
	case 2:
		if g.still {
			return
		}
		o.Weight = new(uint32(g.next(3)))
	case 3:
		o.ResetWeight = true
	}
	if g.still && o.Admin != nil {
		return
	}
	err := g.p.Override(fmt.Sprint("b", g.next(g.ids)), o)
	_ = err // an id that is away is fine
}

// answer ends one probe under way.
func (g *game) answer() {
	var all []*member
	all = append(all, g.p.core.order...)
	n := g.next(len(all) + 1)
	for i := range all {
		b := all[(i+n)%len(all)].b
		done := g.probes[b]
		if done == nil {
			continue
		}
		delete(g.probes, b)
		r := health.ProbeResult{Sent: g.now.Add(-time.Duration(g.next(20)) * 100 * time.Millisecond), At: g.now, OnTrafficPort: g.next(5) != 0}
		switch g.next(8) {
		case 0:
			r.Outcome = health.NotReady
		case 1:
			r.Outcome, r.Cause = health.NoAnswer, health.CauseTimeout
		case 2:
			r.Outcome, r.Cause = health.NoAnswer, health.CauseReset
		case 3:
			r.Outcome, r.Cause = health.NoAnswer, health.CauseRefused
		case 4:
			r.Retry = true
		}
		if g.still && r.Cause == health.CauseRefused {
			r.Cause = health.CauseReset
		}
		done(r)
		return
	}
}

func (g *game) pick() {
	g.rnd = mix(g.rnd)
	r := &balance.Request{Rand: g.rnd, Now: g.now}
	if g.next(3) == 0 && len(g.held) > 0 {
		r.Tried.Add(g.held[0].Backend().Hash())
	}
	l := &Lease{}
	switch got := g.p.Pick(l, r); got {
	case Granted:
		g.granted(l)
	case Full:
		if g.p.cfg.Limits.Queue == 0 {
			return
		}
		w := &waiter{l: l, r: r, ready: make(chan Refusal, 1)}
		switch got := g.p.enqueue(w); got {
		case Granted:
			g.granted(l)
		case Full:
			g.waiting = append(g.waiting, w)
		}
	}
}

// granted checks what may be granted at all.
func (g *game) granted(l *Lease) {
	b, m := l.Backend(), l.m
	v := g.p.view.Load()
	switch {
	case b.Admin() != balance.Enabled:
		g.t.Errorf("%s was granted, though %v", b.ID(), b.Admin())
	case m.core.leaving || m.core.gone:
		g.t.Errorf("%s was granted, though removed", b.ID())
	case m.core.weight == 0 && !g.p.core.dirty:
		g.t.Errorf("%s was granted at weight 0", b.ID())
	case b.Share() == 0 && !v.panicked:
		g.t.Errorf("%s was granted at share 0", b.ID())
	case b.Limit() > 0 && b.InFlight() > b.Limit():
		g.t.Errorf("%s has %d in flight, limit %d", b.ID(), b.InFlight(), b.Limit())
	}
	g.held = append(g.held, l)
}

func (g *game) finish(i int) {
	if i >= len(g.held) {
		return
	}
	l := g.held[i]
	g.held = append(g.held[:i], g.held[i+1:]...)
	o := Outcome{Now: g.now, Sent: true, Total: time.Duration(g.next(100)) * time.Millisecond, Client: uint64(g.next(3))}
	switch g.next(8) {
	case 0:
		o.Kind = OutcomeKind(g.next(int(Canceled) + 1))
		if g.still && o.Kind.cause() != health.CauseNone {
			o.Kind = Reset
		}
	case 1:
		o.Status = 502
	case 2:
		o.Status, o.RetryAfter = 503, g.next(2) == 0
	case 3:
		o.Status = 500
	default:
		o.Status = 200
	}
	l.Done(o)
}

// settle steps the pool until it rests, and collects who was served meanwhile.
func (g *game) settle() {
	for i := 0; ; i++ {
		next, ok := g.p.Advance()
		if len(g.p.inbox) == 0 && g.p.marked.Load() == nil && (!ok || next > g.now) {
			break
		}
		if i == 100 {
			g.t.Fatalf("%v: the pool does not come to rest", g.now)
		}
	}
	still := g.waiting[:0]
	for _, w := range g.waiting {
		select {
		case got := <-w.ready:
			if got == Granted {
				g.held = append(g.held, w.l) // some time ago; who may be picked is checked elsewhere
			}
		default:
			if w.queued {
				still = append(still, w)
			}
		}
	}
	g.waiting = still
}

// check recounts everything that is kept by hand, the slow way.
func (g *game) check() {
	p, c := g.p, &g.p.core
	inFlight := map[*balance.Backend]int64{}
	for _, l := range g.held {
		inFlight[l.Backend()]++
	}
	for b := range g.attached {
		if b.InFlight() != inFlight[b] {
			g.t.Errorf("%s has %d in flight, want %d", b.ID(), b.InFlight(), inFlight[b])
		}
	}
	if p.cfg.Limits.PoolRequests > 0 && p.inFlight.Load() != int64(len(g.held)) {
		g.t.Errorf("the pool has %d in flight, want %d", p.inFlight.Load(), len(g.held))
	}
	var counts [2][classes]int
	outByWork, awaited, lately := 0, 0, 0
	for _, m := range c.order {
		s := &m.core
		if now := m.classify(); now != s.class {
			g.t.Errorf("%s is filed as %d, is %d", m.b.ID(), s.class, now)
		}
		if s.class != out0 {
			counts[btoi(s.backup)][s.class]++
		}
		_, ejected := s.health.Ejected()
		outByWork += btoi(ejected || s.health.BrokenByFact())
		awaited += btoi(s.round)
		lately += btoi(s.notReady)
		want := s.health.Share()
		if s.floored {
			want = 1
		}
		if d := m.b.Share() - want; d > 1e-6 || d < -1e-6 {
			g.t.Errorf("%s has share %v, want %v", m.b.ID(), m.b.Share(), want)
		}
		if m.b.Unreachable() != s.hasFact || m.b.Suspect() != s.health.Suspect() {
			g.t.Errorf("%s flags unreachable %v suspect %v, the core says %v %v", m.b.ID(), m.b.Unreachable(), m.b.Suspect(), s.hasFact, s.health.Suspect())
		}
		if got := p.view.Load().find(m.b); got != m && !c.dirty {
			g.t.Errorf("%s is not in the view", m.b.ID())
		}
		if p.cfg.Active.Enabled && !s.probing && s.timers[timerProbe].pos == 0 {
			g.t.Errorf("%s will never be probed again", m.b.ID())
		}
	}
	if counts != c.counts || outByWork != c.outByWork || awaited != c.awaited || lately != c.alarm.latelyLive {
		g.t.Errorf("counted %v %d %d %d, kept %v %d %d %d", counts, outByWork, awaited, lately, c.counts, c.outByWork, c.awaited, c.alarm.latelyLive)
	}
	g.checkPanic(&counts[0])
	if g.still && p.cfg.Active.Enabled && outByWork > p.cfg.Passive.MayEject(len(c.order)) {
		g.t.Errorf("%d of %d are ejected, at most %d may", outByWork, len(c.order), p.cfg.Passive.MayEject(len(c.order)))
	}
	g.checkQueue()
}

// checkPanic is S4 in other words.
func (g *game) checkPanic(n *[classes]int) {
	c, rules := &g.p.core, g.p.cfg.Panic
	opinions := n[opinion]
	if c.alarm.shared {
		opinions += n[notReady]
	}
	below := float64(n[serving]) < rules.Threshold*float64(n[serving]+opinions)-1e-9
	nobody := n[serving] == 0 && n[opinion]+n[notReady]+n[unreachable] > 0 && (rules.Floor > 0 || rules.Threshold > 0)
	if want := !rules.Off && (below || nobody); c.alarm.said != want {
		g.t.Errorf("panic %v, want %v: %v", c.alarm.said, want, *n)
	}
	if rules.Off || c.alarm.said || n[serving] == 0 {
		return
	}
	floored := 0
	for _, m := range c.order {
		floored += btoi(m.core.floored)
	}
	if want := max(min(rules.Floor-n[serving], n[opinion]+n[notReady]), 0); floored != want {
		g.t.Errorf("the floor of %d keeps %d in, want %d: %v", rules.Floor, floored, want, *n)
	}
}

// checkQueue looks for a waiter that could have been served.
func (g *game) checkQueue() {
	p := g.p
	if int(p.queue.length.Load()) != len(g.waiting) {
		g.t.Errorf("%d wait, the queue says %d", len(g.waiting), p.queue.length.Load())
	}
	if len(g.waiting) == 0 {
		return
	}
	r := *p.queue.head.r
	r.Now = g.now
	l := &Lease{}
	if got, _ := p.admit(l, &r); got == Granted {
		g.t.Errorf("a request waits, though %s has a slot", l.Backend().ID())
		l.Done(Outcome{Now: g.now, Kind: Canceled})
	}
}

// end gives everything back and looks for leaks.
func (g *game) end() {
	for _, w := range g.waiting {
		g.p.abandon(w)
	}
	g.settle()
	for len(g.held) > 0 {
		g.data = nil
		g.finish(0)
	}
	g.p.Update(nil)
	g.settle()
	for b, state := range g.attached {
		if b.InFlight() != 0 || state != 2 {
			g.t.Errorf("%s: in flight %d, state %d at the end", b.ID(), b.InFlight(), state)
		}
	}
	c := &g.p.core
	if len(c.timers) != 0 || len(c.leaving) != 0 || c.outByWork != 0 || c.counts != [2][classes]int{} {
		g.t.Errorf("left over: %d timers, %d leaving, %d out, %v", len(c.timers), len(c.leaving), c.outByWork, c.counts)
	}
	g.p.Close()
}

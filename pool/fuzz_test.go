// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
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
	zones    []string
	specs    []Spec // of the last update
	still    bool   // membership never changes and connections never fail
	calm     bool   // and nothing fails at all: backends are at most overloaded
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
	g := newGame(t, data)
	for len(g.data) > 0 && !t.Failed() {
		g.move()
		g.settle()
		g.check()
	}
	g.end()
}

// newGame makes the pool of a play, with its first members.
func newGame(t *testing.T, data []byte) *game {
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
	g.zones = []string{"", "A", "B", "C"}[:1+g.next(4)]
	if g.next(2) == 0 {
		cfg.Zone = Zone{Local: "A", MinSize: g.next(3)}
	}
	if g.next(4) == 0 {
		cfg.Subset = Subset{Size: 1 + g.next(3), Count: g.next(3)}
	}
	g.shares(&cfg)
	g.p = New(cfg, g, func() balance.Instant { return g.now })
	g.update()
	return g
}

func (g *game) move() {
	switch g.next(14) {
	case 12, 13:
		g.burst()
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
			s.Priority = uint8(max(g.next(6)-3, 0))
			s.Zone = g.zones[g.next(len(g.zones))]
			s.URL += fmt.Sprint(g.next(2))
		}
		specs = append(specs, s)
	}
	g.specs = specs
	if g.rnd%3 != 2 { // by what the picks have drawn: plays that were kept go on meaning what they did
		g.p.Update(specs)
		return
	}
	id := fmt.Sprint("b", g.rnd/3%uint64(g.ids))
	g.p.Dismiss(id, specs, time.Duration(int64(g.rnd/64%4)-1)*time.Second)
	named := slices.ContainsFunc(specs, func(s Spec) bool { return s.ID == id })
	if o, _ := g.p.Overridden(id); !named && (o.Admin != nil || o.Weight != nil) {
		g.t.Errorf("%s was dismissed, and is still overridden: %+v", id, o)
	}
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
		what := g.next(10)
		if g.calm {
			what = 5 + what%5
		}
		switch what {
		case 5:
			r.Outcome = health.Overloaded
		case 6:
			r.Load, r.HasLoad = float64(g.next(12))/10, true
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
	case b.Share() == 0 && !v.panickedFor(b):
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
	l.Done(g.outcome())
}

// outcome draws how an attempt ended.
func (g *game) outcome() Outcome {
	o := Outcome{Now: g.now, Sent: true, Total: time.Duration(g.next(100)) * time.Millisecond, Client: uint64(g.next(3))}
	what := g.next(12)
	if g.calm {
		what = 6 + what%6
	}
	switch what {
	case 6:
		o.Status, o.RetryAfter, o.RetryAfterFor = 503, true, time.Duration(g.next(50))*time.Second
	case 7:
		o.Status, o.Load, o.HasLoad = 200, float64(g.next(12))/10, true
	case 8:
		o.Status, o.Overloaded = 200, true
	case 9:
		o.Status, o.RetryAfter = 429, g.next(2) == 0
	case 10:
		o.Status, o.Tunnel = 101, true
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
	return o
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// FuzzTwins plays a byte string to a pool, exports it in the middle into another
// one, plays the rest to both and expects that nobody can tell them apart.
func FuzzTwins(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomPlay(seed, 700))
	}
	f.Fuzz(func(t *testing.T, data []byte) { twins(t, data, 0) })
}

// TestTwins is FuzzTwins on fixed seeds. The other pool's clock shows another time
// in every second play.
func TestTwins(t *testing.T) {
	for seed := range uint64(40) {
		data := randomPlay(seed+1000, 800)
		// A multiple of everything by which time is cut into parts: what the retry
		// budget and the estimates of latencies round, they round alike.
		twins(t, data, time.Duration(seed%2*seed)*2048*time.Second)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func twins(t *testing.T, data []byte, ahead time.Duration) {
	a := newGame(t, data)
	a.learn()
	a.settle()
	half := len(a.data) / 2
	for len(a.data) > half && !t.Failed() {
		a.move()
		a.settle()
	}
	a.quiet()
	b := a.twin(ahead)
	for !t.Failed() {
		x, y := a.saved(), b.saved()
		if x != y {
			t.Fatalf("%v: exported from the one\n%s\nfrom the other\n%s", time.Duration(a.now), x, y)
		}
		b.check()
		if len(a.data) == 0 {
			break
		}
		b.data, b.rnd = a.data, a.rnd
		for _, g := range []*game{a, b} {
			// When something was published last is not exported, so let it be long ago.
			g.now = g.now.Add(publishEvery)
			g.settle()
			g.twinMove()
			g.settle()
		}
	}
	a.end()
	b.end()
}

// learn gives the pool a policy that learns.
func (g *game) learn() {
	cfg := g.p.Config()
	cfg.Policy = balance.NewPeakEWMA(balance.EWMAConfig{})
	g.p.Reconfigure(cfg)
}

// quiet ends all that is under way.
func (g *game) quiet() {
	for _, w := range g.waiting {
		g.p.abandon(w)
	}
	g.settle()
	for len(g.held) > 0 {
		g.finish(0)
	}
	g.settle()
	for range 100 {
		if len(g.probes) == 0 {
			g.now++ // an age of zero would be one of a nanosecond from then on
			return
		}
		for b, done := range g.probes {
			delete(g.probes, b)
			done(health.ProbeResult{Sent: g.now, At: g.now, OnTrafficPort: true})
		}
		g.settle()
		g.now = g.now.Add(time.Millisecond)
	}
	g.t.Fatal("probes do not end")
}

// twin returns a game with another pool, which knows what this one's exported.
func (g *game) twin(ahead time.Duration) *game {
	b := &game{
		t: g.t, now: g.now.Add(ahead), rnd: g.rnd, ids: g.ids, zones: g.zones, still: g.still, calm: g.calm,
		attached: map[*balance.Backend]int{}, probes: map[*balance.Backend]func(health.ProbeResult){},
	}
	cfg := g.p.Config()
	cfg.Policy = balance.NewPeakEWMA(balance.EWMAConfig{})
	b.p = New(cfg, b, func() balance.Instant { return b.now })
	b.p.Update(g.specs)
	var s Saved
	if err := json.Unmarshal([]byte(g.saved()), &s); err != nil {
		g.t.Fatal(err)
	}
	r := b.p.Restore(s, 0)
	if len(r.Refused) > 0 || r.Unknown > 0 || r.Backends != len(g.p.core.order) || r.Overrides != len(s.Overrides) {
		g.t.Errorf("restored %+v of %d backends", r, len(g.p.core.order))
	}
	b.settle()
	return b
}

// saved is what the pool exports, as text.
func (g *game) saved() string {
	s := g.p.Export()
	out, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		g.t.Fatal(err)
	}
	return string(out)
}

// twinMove is move without what depends on the dice of a policy.
func (g *game) twinMove() {
	switch g.next(12) {
	case 10, 11:
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
	case 4, 5, 6:
		g.answer()
	case 7, 8:
		if n := len(g.p.core.order); n > 0 && g.p.cfg.Limits.PoolRequests == 0 {
			if m := g.p.core.order[g.next(n)]; m.b.Reserve() {
				l := &Lease{}
				l.take(g.p, m, m.b, g.now)
				g.p.BeginRequest(g.now)
				g.held = append(g.held, l)
			}
		}
	case 9:
		g.finish(g.next(len(g.held) + 1))
	}
}

// reborn is for scripts.
func (s *script) reborn(args []string) {
	text, err := json.Marshal(s.p.Export())
	if err != nil {
		s.t.Fatal(err)
	}
	var saved Saved
	if err := json.Unmarshal(text, &saved); err != nil {
		s.t.Fatal(err)
	}
	var specs []Spec
	for _, m := range s.p.core.order {
		if len(args) < 2 || slices.Contains(strings.Split(args[1], ","), m.b.ID()) {
			specs = append(specs, m.core.spec)
		}
	}
	cfg := s.p.Config()
	cfg.First = true
	trace := s.trace.String()
	s.p.Close()
	s.trace.Reset() // what the old pool says of its end
	s.trace.WriteString(trace)
	clear(s.probes)
	s.leases = map[string]*Lease{}
	s.now = s.now.Add(s.duration(args[0]))
	s.p = nil
	s.p = New(cfg, s, func() balance.Instant { return s.now })
	s.p.Update(specs)
	r := s.p.Restore(saved, s.duration(args[0]))
	s.printf("reborn: %d backends, %d overrides, %d unknown, refused %q", r.Backends, r.Overrides, r.Unknown, r.Refused)
}

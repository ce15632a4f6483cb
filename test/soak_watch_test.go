// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// soakWatch looks at what weir says of itself again and again.
type soakWatch struct {
	s     *soak
	n     int
	flips map[string]uint64
	calm  map[string]*soakCalm // by pool
	bad   map[string]time.Time // since when something is as it should not stay
}

// soakCalm is a time in which nothing happens to a pool.
type soakCalm struct {
	since time.Time
	first map[string]int64 // requests that backends had got then
	last  map[string]int64
}

func newSoakWatch(s *soak) *soakWatch {
	return &soakWatch{s: s, flips: map[string]uint64{}, calm: map[string]*soakCalm{}, bad: map[string]time.Time{}}
}

// ask calls the API, once more if the first call fails: while a process takes
// over, a kept connection to the one before may end.
func (w *soakWatch) ask() (pools []admin.Pool, err error) {
	for range 2 {
		ctx, cancel := context.WithTimeout(w.s.ctx, 10*time.Second)
		pools, err = w.s.api.Pools(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	return pools, err
}

func (w *soakWatch) look() {
	s := w.s
	pools, err := w.ask()
	switch {
	case s.ctx.Err() != nil:
		return
	case err != nil && s.starved(20*time.Second):
		return
	case err != nil:
		s.violate("the API does not answer", "%v", err)
		s.stuck()
		return
	}
	w.n++
	for i := range pools {
		p := &pools[i]
		for j := range p.Members {
			w.backend(p, &p.Members[j])
		}
		w.quiet(p)
	}
	if w.n%10 == 0 {
		w.metrics()
	}
}

// stuck has the process tell what all its goroutines do, and ends the soak:
// SIGQUIT is the last that it hears.
func (s *soak) stuck() {
	for _, pid := range s.live.processes() {
		_ = syscall.Kill(pid, syscall.SIGQUIT)
	}
	time.Sleep(time.Second) // for it to say so
	s.quit()
}

func (w *soakWatch) metrics() {
	text, err := w.s.live.get("/metrics")
	if err != nil {
		if text, err = w.s.live.get("/metrics"); err != nil && w.s.starved(20*time.Second) {
			return
		} else if err != nil {
			w.s.violate("the API does not answer", "/metrics: %v", err)
			return
		}
	}
	for _, name := range []string{"weir_bug_total", "weir_log_dropped_total"} {
		if n := sumOf(text, name); n != 0 {
			w.s.violate("a counter of weir that must stay zero", "%s %v", name, n)
		}
	}
}

// backend holds what weir says of one backend against itself and against what
// is wrong with it.
func (w *soakWatch) backend(p *admin.Pool, b *admin.Backend) {
	s := w.s
	x := s.named(b.ID)
	if x == nil || b.Removed {
		return
	}
	say := func(what string) { s.violate(what, "%s in %s: %+v", b.ID, p.Name, *b) }
	key := p.Name + "/" + b.ID
	slip := uint64(0)
	if s.twoProcesses() { // what happens between the state and the takeover is seen by one alone
		slip = 2
	}
	if x.n < soakBackends && p.Name == x.pool.name && b.Flips+slip < w.flips[key] {
		say("flips of a backend were forgotten")
	}
	w.flips[key] = b.Flips
	switch {
	case b.Share < 0 || b.Share > 1 || b.InFlight < 0:
		say("a share or a count that cannot be")
	case b.Health == "healthy" && b.Reason == "" && b.Share != 1:
		say("a share is bound by nothing")
	case b.Health == "not_ready" && b.Share > 0 && !p.Panic && b.Reason != "panic":
		say("a backend that is not ready has a share")
	}
	// What must be so after a time.
	from := time.Now().Add(-s.tolerance())
	settled := time.Since(s.started) > s.tolerance() && !s.starved(s.tolerance())
	w.lasting(key+" recovered", settled && p.Name == x.pool.name && x.n < soakBackends && (b.Health != "healthy" || b.Share != 1) && !x.hard.meet(from, time.Now()) && !x.soft.meet(from, time.Now()) && !x.away.meet(from, time.Now()), func() {
		say("a backend is not back long after its fault")
	})
	a, _ := x.now()
	out := b.Share == 0 || p.Panic || b.Reason == "floor" || b.Reason == "panic"
	w.lasting(key+" out", !out && x.hard.since() > 4*time.Second && (a.kind == "down" || a.kind == "silent" || a.kind == "refuses") ||
		!out && x.soft.since() > 4*time.Second && a.kind == "not_ready", func() { say("a backend is not out long after it fell") })
}

// lasting tells of what is as it should not be twice in a row, a second apart,
// while this process gets its processor.
func (w *soakWatch) lasting(key string, is bool, tell func()) {
	since, was := w.bad[key]
	switch {
	case !is || w.s.stalls.meet(time.Now().Add(-10*time.Second), time.Now()):
		delete(w.bad, key)
	case !was:
		w.bad[key] = time.Now()
	case time.Since(since) > time.Second:
		tell()
		delete(w.bad, key)
	}
}

// tolerance is how long after a fault a backend may still suffer from it: the
// longest ejection, probation or overload, and the slow start.
func (s *soak) tolerance() time.Duration { return 40 * time.Second }

// quiet measures shares while nothing happens to a pool.
func (w *soakWatch) quiet(p *admin.Pool) {
	s := w.s
	var pool *soakPool
	for _, x := range s.pools {
		if x.name == p.Name {
			pool = x
		}
	}
	if pool == nil {
		return
	}
	counts, weights, calm := map[string]int64{}, map[string]float64{}, !s.twoProcesses() && !s.stalls.meet(time.Now().Add(-5*time.Second), time.Now())
	for _, b := range p.Members {
		x := s.named(b.ID)
		if x == nil || b.Share != 1 || b.Admin != "enabled" || b.Health != "healthy" || b.Override != nil || x.n >= soakBackends || x.soft.meet(time.Now().Add(-5*time.Second), time.Now()) {
			calm = false
			continue
		}
		counts[b.ID], weights[b.ID] = x.executed.Load(), float64(b.Weight)
	}
	c := w.calm[p.Name]
	switch {
	case !calm:
		if c != nil {
			delete(w.calm, p.Name)
			w.shares(pool, c, weights)
		}
	case c == nil:
		w.calm[p.Name] = &soakCalm{since: time.Now(), first: counts, last: counts}
	default:
		c.last = counts
		if time.Since(c.since) > 20*time.Second {
			delete(w.calm, p.Name)
			w.shares(pool, c, weights)
		}
	}
}

// shares holds a calm time's shares against the weights, with four standard
// deviations of chance and the slack that the policy has.
func (w *soakWatch) shares(p *soakPool, c *soakCalm, _ map[string]float64) {
	var total, sum float64
	for id := range c.first {
		total += float64(c.last[id] - c.first[id])
		sum += float64(p.weights[w.s.named(id).n])
	}
	if total < 400 {
		return
	}
	text, bad := "", false
	for id := range c.first {
		want := total * float64(p.weights[w.s.named(id).n]) / sum
		got := float64(c.last[id] - c.first[id])
		limit := 4*math.Sqrt(want*(1-want/total)) + want*p.slack
		text += fmt.Sprintf(" %s %.0f (of %.0f +- %.0f)", id, got, want, limit)
		bad = bad || math.Abs(got-want) > limit
	}
	w.s.happened("shares of %s in %s of calm: %s", p.name, time.Since(c.since).Round(time.Millisecond), text)
	if bad {
		w.s.violate("shares in calm are wrong", "%s from %s on: %s", p.name, clockTime(c.since), text)
	}
}

// budgets holds further executions of requests against the retry budget: 20 % of
// the requests, at least one a second, and one more for each connection that was
// dead. Over a window longer than the budget's, both its ends included.
func (s *soak) budgets() {
	for _, p := range s.pools {
		again, began := p.again.last(30), p.began.last(42)
		if limit := float64(began)*.2 + 42 + 10; float64(again) > limit {
			s.violate("more retries than the budget has", "%s: %d of %d requests within 30 s, at most %.0f", p.name, again, began, limit)
		}
	}
}

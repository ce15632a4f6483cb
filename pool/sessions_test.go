// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// sessionsPool is a pool of a, b and c, established, with a clock to be set.
func sessionsPool(t *testing.T, keep bool) (p *Pool, now *balance.Instant) {
	now = new(balance.Instant)
	*now = 1
	p = New(Config{First: true, KeepSessions: keep, DrainDeadline: 30 * time.Second, DrainSpread: 5 * time.Second}, quiet{}, func() balance.Instant { return *now })
	t.Cleanup(p.Close)
	p.Update([]Spec{{ID: "a", URL: "u", Weight: 1}, {ID: "b", URL: "u", Weight: 1}, {ID: "c", URL: "u", Weight: 1}})
	p.Advance()
	return p, now
}

// lands says where a request of a session on a goes, many times the same.
func lands(t *testing.T, p *Pool, now balance.Instant) string {
	t.Helper()
	on := ""
	for k := range 50 {
		var l Lease
		r := balance.Request{Rand: mix(uint64(k)), Now: now, Prefer: balance.IDOf("a")}
		if got := p.Pick(&l, &r); got != Granted {
			return got.String()
		}
		id := l.Backend().ID()
		l.Return(now)
		switch {
		case id != "a":
			id = "elsewhere"
		case on == "elsewhere":
			t.Fatal("sometimes here, sometimes there")
		}
		on = id
	}
	return on
}

func word(a balance.Admin, deadline time.Duration) Override {
	return Override{Admin: &a, Deadline: deadline}
}

// TestSessionsDrain: without KeepSessions a drain moves sessions at once; with it
// they stay, from the first moment on and without a gap, until the last DrainSpread
// of the deadline, and nothing new comes meanwhile.
func TestSessionsDrain(t *testing.T) {
	for _, keep := range []bool{false, true} {
		p, now := sessionsPool(t, keep)
		if got := lands(t, p, *now); got != "a" {
			t.Fatalf("keep %v: before the drain: %s", keep, got)
		}
		if err := p.Override("a", word(balance.Draining, 0)); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "elsewhere", true: "a"}[keep]
		if got := lands(t, p, *now); got != want {
			t.Errorf("keep %v: at once: %s, want %s", keep, got, want)
		}
		for range 2000 {
			var l Lease
			*now += balance.Instant(time.Millisecond)
			p.Advance()
			if got := p.Pick(&l, &balance.Request{Rand: mix(uint64(*now)), Now: *now}); got != Granted || l.Backend().ID() == "a" {
				t.Fatal("new work on a backend that drains")
			}
			l.Return(*now)
		}
		*now = balance.Instant(24 * time.Second)
		p.Advance()
		if got := lands(t, p, *now); got != want {
			t.Errorf("keep %v: after 24 s: %s, want %s", keep, got, want)
		}
		if s := p.Snapshot().Backends[0]; s.Sessions != keep {
			t.Errorf("keep %v: the snapshot says %v", keep, s.Sessions)
		}
		*now = balance.Instant(26 * time.Second)
		p.Advance()
		if got := lands(t, p, *now); got != "elsewhere" {
			t.Errorf("keep %v: 5 s before the deadline: %s", keep, got)
		}
		if s := p.Snapshot().Backends[0]; s.Sessions {
			t.Error("sessions go on in the last 5 s")
		}
		if err := p.Override("a", word(balance.Enabled, 0)); err != nil {
			t.Fatal(err)
		}
		*now += balance.Instant(time.Second)
		p.Advance()
		if got := lands(t, p, *now); got != "a" {
			t.Errorf("keep %v: enabled again: %s", keep, got)
		}
	}
}

// TestSessionsEnd: what ends the time in which a drained backend keeps sessions,
// besides its deadline.
func TestSessionsEnd(t *testing.T) {
	for name, end := range map[string]func(p *Pool){
		"disable":          func(p *Pool) { _ = p.Override("a", word(balance.Disabled, 0)) },
		"removal":          func(p *Pool) { p.Update([]Spec{{ID: "b", URL: "u", Weight: 1}, {ID: "c", URL: "u", Weight: 1}}) },
		"a short deadline": func(p *Pool) { _ = p.Override("a", word(balance.Draining, time.Second)) },
		"settings": func(p *Pool) {
			cfg := p.Config()
			cfg.KeepSessions = false
			p.Reconfigure(cfg)
		},
		"a fact":     func(p *Pool) { p.core.order[0].b.SetUnreachable(true) },
		"bad health": func(p *Pool) { p.core.order[0].b.SetShare(0) },
		"a limit": func(p *Pool) {
			p.core.order[0].b.SetLimit(1)
			p.core.order[0].b.Reserve()
		},
	} {
		p, now := sessionsPool(t, true)
		_ = p.Override("a", word(balance.Draining, 0))
		p.Advance()
		if got := lands(t, p, *now); got != "a" {
			t.Fatalf("%s: before: %s", name, got)
		}
		end(p)
		p.Advance()
		if got := lands(t, p, *now); got != "elsewhere" {
			t.Errorf("%s: %s", name, got)
		}
		p.core.order[0].b.SetLimit(0)
	}
}

// TestSessionsWithoutWeight: weight 0 is no new work, and sessions stay where they
// are kept; with everybody drained they are all that is served.
func TestSessionsWithoutWeight(t *testing.T) {
	p, now := sessionsPool(t, true)
	none := uint32(0)
	_ = p.Override("a", Override{Weight: &none})
	*now += balance.Instant(time.Second)
	p.Advance()
	if got := lands(t, p, *now); got != "a" {
		t.Error(got)
	}
	for _, id := range []string{"a", "b", "c"} {
		_ = p.Override(id, word(balance.Draining, 0))
	}
	*now += balance.Instant(time.Second)
	p.Advance()
	if got := lands(t, p, *now); got != "a" {
		t.Error(got)
	}
	var l Lease
	if got := p.Pick(&l, &balance.Request{Now: *now}); got != NoBackend {
		t.Errorf("new work: %v", got)
	}
}

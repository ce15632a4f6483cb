// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
)

// storms are events that strike every backend of a pool at once: the answer of the
// i-th backend to its k-th request.
var storms = map[string]func(i, k int) Outcome{
	"all overloaded": func(_, k int) Outcome {
		return Outcome{Status: 503, RetryAfter: true, FirstByte: time.Millisecond, Client: uint64(k%2) + 1}
	},
	"one poisonous url": func(_, k int) Outcome {
		o := Outcome{Status: 200, FirstByte: time.Millisecond, Client: uint64(k%2) + 1}
		if k%4 < 2 {
			o.Status = 500
		}
		return o
	},
}

func strike(n int, answer func(i, k int) Outcome) (*Pool, *balance.Instant) {
	now := new(balance.Instant)
	p := benchPool(n, func(c *Config) { c.Overload = allSigns })
	p.now = func() balance.Instant { return *now }
	for k := range 40 {
		for i, m := range p.core.order {
			o := answer(i, k)
			m.observe(p, *now, &o)
		}
	}
	return p, now
}

// What strikes all backends at once costs the core as much as there are of them,
// not its square: at ten thousand that was half a second for 5xx and 48 s for
// overload, in which no probe was answered and no membership changed.
func TestStormsCostByTheMember(t *testing.T) {
	for name, answer := range storms {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // whose CPU time is what counts, whatever else the machine does
			defer runtime.UnlockOSThread()
			cost := func(n int) time.Duration {
				least := time.Duration(1 << 62)
				for range 5 {
					p, now := strike(n, answer)
					begin := threadTime(t)
					p.Advance()
					*now = now.Add(statsEvery)
					p.Advance()
					least = min(least, threadTime(t)-begin)
					p.Close()
				}
				return least
			}
			few, many := cost(250), cost(2000)
			if ratio := float64(many) / float64(few); ratio > 40 { // it was 64 and more
				t.Errorf("2000 backends cost %.0f times what 250 do (%v, %v), want about 8", ratio, many, few)
			}
		})
	}
}

// threadTime is the CPU time that the calling thread has used.
func threadTime(t *testing.T) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// What is put off then is published soon all the same.
func TestStormIsPublished(t *testing.T) {
	p, now := strike(1000, storms["all overloaded"])
	defer p.Close()
	p.Advance()
	for range 6 { // from 1 to the floor of 0.1 are seven steps
		*now = now.Add(statsEvery)
		for _, m := range p.core.order {
			for k := range 20 {
				o := storms["all overloaded"](0, k)
				m.observe(p, *now, &o)
			}
		}
		p.Advance()
	}
	out := p.core.order[7]
	for range 5 { // and amid it one fails
		out.observe(p, *now, &Outcome{Now: *now, Status: 502, Client: 3})
	}
	begin := *now
	for p.Advance(); ; p.Advance() {
		if next, _ := p.Advance(); next > *now {
			*now = next
		}
		if g := p.last.tiers[0].groups[0]; len(g.takers) == 999 {
			break
		}
		if now.Sub(begin) > 2*publishEvery {
			t.Fatalf("not published %v after the ejection", now.Sub(begin))
		}
	}
	if got := out.b.Share(); got != 0 {
		t.Errorf("the ejected one has share %v", got)
	}
}

// A floor of many keeps in the last that were excluded, those first who do not say
// themselves that they are not ready.
func TestFloorOfMany(t *testing.T) {
	now := balance.Instant(0)
	p := benchPool(40, func(c *Config) {
		c.Panic = Panic{Threshold: 0.01, Floor: 10}
		c.Passive.MaxEjected = 1
	})
	defer p.Close()
	p.now = func() balance.Instant { return now }
	for i, m := range p.core.order[:36] {
		now = balance.Instant(i) * balance.Instant(time.Millisecond)
		for range 5 {
			m.observe(p, now, &Outcome{Now: now, Status: 502, Client: 1})
		}
		p.Advance()
	}
	for i, m := range p.core.order {
		want := i >= 30 // six of those excluded, the latest, and four that serve
		if got := m.b.Share() > 0; got != want {
			t.Errorf("member %d takes work: %v, want %v", i, got, want)
		}
	}
}

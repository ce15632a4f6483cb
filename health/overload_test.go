// SPDX-License-Identifier: Apache-2.0

package health

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

func TestOverloadDue(t *testing.T) {
	for _, c := range []struct {
		signs, answers uint64
		two, poolTwo   bool
		want           bool
	}{
		{2, 20, true, true, true},
		{2, 19, true, true, false},
		{2, 21, true, true, false},
		{19, 19, true, true, false},
		{20, 200, true, true, true},
		{19, 200, true, true, false},
		{200, 200, false, true, false},
		{200, 200, false, false, true},
		{0, 0, true, true, false},
	} {
		if got := OverloadDue(c.signs, c.answers, c.two, c.poolTwo); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestPressureExample is the example of Pressure's documentation.
func TestPressureExample(t *testing.T) {
	o := Overload{Enabled: true}
	var p Pressure
	at := func(s float64) balance.Instant { return balance.Instant(s * 1e9) }
	want := func(s, share float64) {
		t.Helper()
		p.Recover(at(s))
		if math.Abs(p.Share()-share) > 1e-9 {
			t.Errorf("at %v s: %v, want %v", s, p.Share(), share)
		}
	}
	want(0, 1)
	p.Decrease(at(0), &o, 0, 0)
	want(0, 0.7)
	if p.Ready(at(0.999), 0) || !p.Ready(at(1), 40*time.Millisecond) || p.Ready(at(5), 3*time.Second) || !p.Ready(at(6), 3*time.Second) {
		t.Error("a second, or twice the latency")
	}
	want(1, 0.72)
	p.Decrease(at(1), &o, 0, 0)
	want(1, 0.504)
	want(11, 0.704)
	want(25.8, 1)
	want(100, 1)
}

// TestRetryAfterHolds: so long as was asked for, at most 30 s, and up to a quarter
// longer, the share does not grow; a shorter wish does not shorten a longer one.
func TestRetryAfterHolds(t *testing.T) {
	o := Overload{Enabled: true}
	rnd := rand.New(rand.NewPCG(5, 5))
	seen := map[time.Duration]bool{}
	for range 1000 {
		asked := time.Duration(rnd.Int64N(int64(60 * time.Second)))
		var p Pressure
		p.Decrease(0, &o, asked, rnd.Uint64())
		p.Decrease(0, &o, asked/2, rnd.Uint64())
		share := p.Share()
		held := time.Duration(0)
		for ; p.Share() == share; held += 100 * time.Millisecond {
			p.Recover(balance.Instant(held))
		}
		least := min(asked, 24*time.Second)
		if slack := 200 * time.Millisecond; held < least || held > min(least*5/4, RetryAfterMax)+slack {
			t.Fatalf("asked for %v, held for %v", asked, held)
		}
		seen[held] = true
	}
	if len(seen) < 100 {
		t.Errorf("only %d different times: no jitter", len(seen))
	}
}

// TestPressureProperties plays decreases, holds and time at random: the share
// stays between the floor and 1, falls only by a decrease and by no more than its
// factor, grows no faster than a fiftieth a second, and is 1 after 50 s and the
// longest hold without another one.
func TestPressureProperties(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 9))
	for range 300 {
		o := Overload{Enabled: true, Floor: []float64{0, 0.02, 0.1, 0.5, 1, 2}[rnd.IntN(6)]}
		var p Pressure
		var now balance.Instant
		for range 200 {
			passed := time.Duration(rnd.Int64N(int64(3 * time.Second)))
			now = now.Add(passed)
			before := p.Share()
			switch rnd.IntN(4) {
			case 0:
				p.Decrease(now, &o, time.Duration(rnd.Int64N(int64(20*time.Second))), rnd.Uint64())
				if low := max(before*OverloadFactor, o.LeastShare()); p.Share() < low-1e-9 {
					t.Fatalf("a step from %v to %v, floor %v", before, p.Share(), o.LeastShare())
				}
			case 1:
				p.Hold(now)
				if p.Share() != before {
					t.Fatal("a hold moves the share")
				}
			default:
				p.Recover(now)
				if p.Share() < before {
					t.Fatalf("it fell from %v to %v on its own", before, p.Share())
				}
			}
			if s := p.Share(); s > 1 || s < o.LeastShare()-1e-12 {
				t.Fatalf("share %v, floor %v", s, o.LeastShare())
			}
		}
		p.Recover(now.Add(81 * time.Second))
		if p.Share() != 1 {
			t.Fatalf("%v after 81 s", p.Share())
		}
	}
}

// TestBalancersConverge is the reason for additive increase and multiplicative
// decrease (Chiu and Jain 1989): two balancers that began with different shares of
// one backend, which signals overload to both whenever the sum exceeds what it
// bears, end with the same.
func TestBalancersConverge(t *testing.T) {
	o := Overload{Enabled: true}
	var a, b Pressure
	for range 6 {
		a.Decrease(0, &o, 0, 0)
	}
	sum, n := 0.0, 0
	for s := range 600 {
		now := balance.Instant(s) * balance.Instant(time.Second)
		if a.Share()+b.Share() > 1.2 {
			a.Decrease(now, &o, 0, 0)
			b.Decrease(now, &o, 0, 0)
		} else {
			a.Recover(now)
			b.Recover(now)
		}
		if s >= 300 {
			sum, n = sum+a.Share()+b.Share(), n+1
		}
	}
	if d := math.Abs(a.Share() - b.Share()); d > 0.01 {
		t.Errorf("%v apart: %v and %v", d, a.Share(), b.Share())
	}
	if mean := sum / float64(n); mean < 0.8*1.2 || mean > 1.2 {
		t.Errorf("the backend is used at %v of 1.2", mean)
	}
}

// TestMachineOverload is how the headroom goes together with the other sides: the
// share is the least, the reason what binds, and neither a step nor the state it
// makes is news about failures.
func TestMachineOverload(t *testing.T) {
	second := balance.Instant(time.Second)
	var m Machine
	m.Init(0, &Active{Enabled: true, Fall: 1, Rise: 1}, &Passive{Enabled: true, Eject: 30 * time.Second, MaxEject: time.Minute}, true)
	is := func(state State, base, share float64, r Reason) {
		t.Helper()
		if m.State() != state || m.BaseShare() != base || math.Abs(m.Share()-share) > 1e-9 || m.Reason() != r {
			t.Errorf("%v %v %v %v, want %v %v %v %v", m.State(), m.BaseShare(), m.Share(), m.Reason(), state, base, share, r)
		}
	}
	m.SetOverload(second, 0.7, "busy")
	is(StateUnproven, 1, 0.7, ReasonOverloaded)
	m.Probe(2*second, ProbeResult{Sent: 2 * second}, 0)
	is(StateOverloaded, 1, 0.7, ReasonOverloaded)
	since, flips, changes := m.Since(), m.Flips(), len(m.History())
	if m.SetOverload(3*second, 0.5, "busier") || m.Since() != since || m.Flips() != flips || len(m.History()) != changes {
		t.Error("a step within the state is a change")
	}
	if m.Why() != "busier" {
		t.Errorf("the last step's reason is %q", m.Why())
	}
	m.Eject(4*second, "bad")
	is(StateBroken, 0, 0, ReasonEjected)
	m.Tick(40 * second)
	is(StateOverloaded, ProbationShare, ProbationShare, ReasonProbation)
	m.SetOverload(41*second, 0.05, "busy")
	is(StateOverloaded, ProbationShare, 0.05, ReasonOverloaded)
	m.SetOverload(42*second, 0.6, "")
	m.Prove(43 * second)
	is(StateOverloaded, 1, 0.6, ReasonOverloaded)
	m.Probe(44*second, ProbeResult{Outcome: NotReady, Sent: 44 * second}, 0)
	is(StateNotReady, 0, 0, ReasonNotReady)
	m.Probe(45*second, ProbeResult{Sent: 45 * second}, 0)
	is(StateOverloaded, 1, 0.6, ReasonOverloaded)
	m.SetOverload(46*second, 1, "over")
	is(StateHealthy, 1, 1, None)
	if m.Why() != "over" {
		t.Errorf("why it is healthy: %q", m.Why())
	}
	m.Probe(47*second, ProbeResult{Outcome: Overloaded, Sent: 47 * second}, 0)
	is(StateOverloaded, 1, 1, ReasonOverloaded) // its own word, though nobody makes a share of it
}

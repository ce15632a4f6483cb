// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

func TestDetection(t *testing.T) {
	second := time.Second
	tests := []struct {
		a    Active
		want time.Duration
	}{
		{Active{}, 0},
		{Active{Enabled: true, Interval: 5 * second, FastInterval: second, Timeout: 2 * second, Jitter: 0.1, Fall: 3}, 11500 * time.Millisecond},
		{Active{Enabled: true, Interval: 5 * second, FastInterval: 3 * second, Timeout: second, Fall: 2}, 9 * second},
		{Active{Enabled: true, Interval: 10 * second, FastInterval: second, Timeout: second, Jitter: 0.5, Fall: 1}, 16 * second},
	}
	for _, tt := range tests {
		if got := tt.a.Detection(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.a, got, tt.want)
		}
	}
}

func TestJitterStaysInBounds(t *testing.T) {
	a := Active{Interval: 5 * time.Second, Jitter: 0.1}
	short, long := time.Hour, time.Duration(0)
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		d := a.Jittered(rnd.Uint64())
		short, long = min(short, d), max(long, d)
	}
	short, long = min(short, a.Jittered(0)), max(long, a.Jittered(1<<64-1))
	if short < 4500*time.Millisecond || short > 4510*time.Millisecond || long > 5500*time.Millisecond || long < 5490*time.Millisecond {
		t.Errorf("intervals from %v to %v", short, long)
	}
}

func TestJudge(t *testing.T) {
	for status := 100; status < 600; status++ {
		for _, retryAfter := range []bool{false, true} {
			want := Good
			switch {
			case status == 503 && retryAfter:
				want = Neutral
			case status == 502 || status == 503 || status == 504:
				want = Bad
			case status >= 500:
				want = ServerError
			}
			if got := Judge(status, retryAfter); got != want {
				t.Errorf("%d, Retry-After %v: %d, want %d", status, retryAfter, got, want)
			}
		}
	}
}

func TestShareEjects(t *testing.T) {
	tests := []struct {
		bad, answers, otherBad, otherAnswers uint64
		two, poolTwo, want                   bool
	}{
		{4, 20, 0, 100, true, true, true},
		{4, 19, 0, 100, true, true, false},   // too few answers
		{3, 20, 0, 100, true, true, false},   // below 20 %
		{8, 20, 20, 100, true, true, true},   // exactly twice
		{8, 20, 21, 100, true, true, false},  // less than twice
		{20, 20, 0, 100, false, true, false}, // one client, the pool saw two
		{20, 20, 0, 100, false, false, true}, // one client is all there is
		{20, 20, 60, 100, true, true, false}, // everyone fails
		{20, 20, 50, 100, true, true, true},
	}
	for _, tt := range tests {
		if got := ShareEjects(tt.bad, tt.answers, tt.otherBad, tt.otherAnswers, tt.two, tt.poolTwo); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestEjectionGrowsUpToMax(t *testing.T) {
	p := Passive{Eject: 30 * time.Second, MaxEject: 300 * time.Second}
	for n := 1; n < 30; n++ {
		want := min(time.Duration(n)*30*time.Second, 300*time.Second)
		if got := p.ejection(n); got != want {
			t.Errorf("ejection %d lasts %v, want %v", n, got, want)
		}
	}
	if got := p.ejection(1 << 62); got != 300*time.Second {
		t.Errorf("overflow: %v", got)
	}
}

func TestMayEjectRoundsDown(t *testing.T) {
	for _, tt := range []struct {
		share   float64
		n, want int
	}{{0.5, 1, 0}, {0.5, 2, 1}, {0.5, 3, 1}, {0.5, 4, 2}, {1, 3, 3}, {0, 9, 0}, {0.1, 10, 1}, {0.7, 10, 7}, {0.29, 100, 29}} {
		if got := (Passive{MaxEjected: tt.share}).MayEject(tt.n); got != tt.want {
			t.Errorf("%v of %d: %d, want %d", tt.share, tt.n, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	if fmt.Sprint(StateUnproven, StateHealthy, StateOverloaded, StateNotReady, StateBroken) != "unproven healthy overloaded not_ready broken" {
		t.Error("states")
	}
	if fmt.Sprint(Pass, NotReady, Overloaded, NoAnswer) != "pass not_ready overloaded no_answer" {
		t.Error("outcomes")
	}
	if State(99).String() != "unknown" || Cause(99).String() != "unknown" || Reason(99).String() != "unknown" {
		t.Error("out of range")
	}
}

// oracle is S1 for a machine without traffic, the slow way: it keeps every
// result and looks at the whole past each time.
type oracle struct {
	fall, rise int
	full       bool
	results    []ProbeResult
	good       []balance.Instant // lastGood at each result
}

func (o *oracle) state() State {
	state, from := StateUnproven, 0
	for i := range o.results {
		next := state
		switch run := o.results[from : i+1]; state {
		case StateUnproven:
			switch last := run[len(run)-1]; {
			case last.Outcome == Pass:
				next = StateHealthy
			case o.full && o.counts(i, i):
				next = verdict(last)
			}
		case StateHealthy:
			n := 0
			for k := i; k >= from && o.results[k].Outcome != Pass; k-- {
				if o.counts(k, i) {
					n++
				}
			}
			if n >= o.fall && o.results[i].Outcome != Pass {
				next = verdict(o.results[i])
			}
		default:
			passes := 0
			for k := i; k >= from && o.results[k].Outcome == Pass; k-- {
				passes++
			}
			other := 0
			for k := i; k >= max(from-1, 0) && o.results[k].Outcome != Pass && verdict(o.results[k]) == verdict(o.results[i]); k-- {
				other++
			}
			switch {
			case passes >= o.rise:
				next = StateHealthy
			case o.results[i].Outcome != Pass && verdict(o.results[i]) != state && other >= o.fall:
				next = verdict(o.results[i])
			}
		}
		if next != state {
			state, from = next, i+1
		}
	}
	return state
}

// counts reports whether failure k still counts at the time of result i.
func (o *oracle) counts(k, i int) bool {
	r := o.results[k]
	if r.Outcome == NotReady || r.OnTrafficPort && r.Cause == CauseRefused {
		return true
	}
	for j := k; j <= i; j++ { // outvoted once is outvoted for good
		if r.Sent < o.good[j] {
			return false
		}
	}
	return true
}

func verdict(r ProbeResult) State {
	if r.Outcome == NotReady {
		return StateNotReady
	}
	return StateBroken
}

func TestMachineAgainstOracle(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		a := Active{Enabled: true, Fall: 1 + rnd.IntN(4), Rise: 1 + rnd.IntN(3)}
		first := rnd.IntN(2) == 0
		var m Machine
		m.Init(0, &a, &Passive{}, first)
		o := &oracle{fall: a.Fall, rise: a.Rise, full: first}
		good, changes := balance.Instant(-1), 0
		for i := range 40 {
			now := balance.Instant(10 * (i + 1))
			if rnd.IntN(3) == 0 {
				good = max(good, now-balance.Instant(rnd.IntN(25)))
			}
			r := ProbeResult{Sent: now - 5, At: now, OnTrafficPort: rnd.IntN(2) == 0}
			switch rnd.IntN(6) {
			case 0, 1:
				r.Outcome, r.Cause = NoAnswer, CauseTimeout
			case 2:
				r.Outcome, r.Cause = NoAnswer, CauseRefused
			case 3:
				r.Outcome, r.Cause = NotReady, CauseStatus
			}
			before, flips := m.State(), m.Flips()
			changed := m.Probe(now, r, good)
			o.results, o.good = append(o.results, r), append(o.good, good)
			if want := o.state(); m.State() != want {
				t.Fatalf("seed %d, result %d (%+v): %v, want %v; fall %d rise %d", seed, i, r, m.State(), want, a.Fall, a.Rise)
			}
			if m.State() != before {
				changes++
			}
			proved := before == StateUnproven && m.State() == StateHealthy
			if (m.State() != before && !proved) != (m.Flips() == flips+1) || m.State() != before && (!changed || m.Since() != now) {
				t.Fatalf("seed %d: flips, since or changed are wrong", seed)
			}
			if full := m.State() == StateHealthy || m.State() == StateUnproven && first; full != (m.Share() == 1) || m.Share() != 0 && m.Share() != 1 {
				t.Fatalf("seed %d: %v has share %v", seed, m.State(), m.Share())
			}
		}
		if n := len(m.History()); n > historyMax || n != min(changes, historyMax) {
			t.Fatalf("seed %d: %d entries of history for %d changes", seed, n, changes)
		}
	}
}

// TestEjectionAndProbesCombine: the share is the smaller of what either side
// grants, and the reason names the one that binds.
func TestEjectionAndProbesCombine(t *testing.T) {
	a := Active{Enabled: true, Fall: 1, Rise: 1}
	p := Passive{Enabled: true, Eject: 30, MaxEject: 300}
	var m Machine
	m.Init(0, &a, &p, true)
	expect := func(what string, state State, share float64, reason Reason) {
		t.Helper()
		if m.State() != state || m.Share() != share || m.Reason() != reason {
			t.Errorf("%s: %v %v %v, want %v %v %v", what, m.State(), m.Share(), m.Reason(), state, share, reason)
		}
	}
	fail := ProbeResult{Outcome: NotReady, Cause: CauseStatus}
	expect("at first", StateUnproven, 1, ReasonUnproven)
	m.Probe(0, ProbeResult{Outcome: Overloaded}, -1)
	expect("overloaded is alive", StateOverloaded, 1, ReasonOverloaded)
	m.Probe(0, ProbeResult{}, -1)
	expect("passed", StateHealthy, 1, None)
	if d := m.Eject(0, "bad"); d != 30 {
		t.Errorf("ejected for %v", d)
	}
	expect("ejected", StateBroken, 0, ReasonEjected)
	m.Probe(1, ProbeResult{}, -1)
	expect("a pass does not end it", StateBroken, 0, ReasonEjected)
	m.Probe(2, fail, -1)
	expect("not ready as well", StateNotReady, 0, ReasonNotReady)
	m.Tick(30)
	expect("the ejection is over, the word stands", StateNotReady, 0, ReasonNotReady)
	m.Probe(31, ProbeResult{}, -1)
	expect("ready, on probation", StateHealthy, ProbationShare, ReasonProbation)
	m.Probe(32, fail, -1)
	expect("not ready again", StateNotReady, 0, ReasonNotReady)
	m.Probe(33, ProbeResult{}, -1)
	m.Prove(34)
	expect("proven", StateHealthy, 1, None)
	m.Break(35, CauseRefused, "refused")
	expect("broken by facts", StateBroken, 0, ReasonConnectRefused)
	m.Probe(36, ProbeResult{Sent: 34}, -1)
	expect("a probe from before says nothing", StateBroken, 0, ReasonConnectRefused)
	m.Probe(37, ProbeResult{Sent: 36}, -1)
	expect("back", StateHealthy, 1, None)
	m.SetSuspect(38, true, CauseRefused)
	expect("suspect", StateHealthy, 1, ReasonSuspect)
	m.SetSuspect(39, false, CauseNone)
	expect("cleared", StateHealthy, 1, None)
}

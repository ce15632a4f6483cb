// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const testDecay = 10e9 / (1 << estimateTick)

func levelOf(d time.Duration) float64 { return math.Log2(float64(d)) }

func latencyOf(e estimate) time.Duration { return time.Duration(math.Exp2(e.level())) }

// The examples of learn's comment.
func TestEstimateExamples(t *testing.T) {
	start := packEstimate(levelOf(50*time.Millisecond), 1, 0)
	for _, c := range []struct{ answer, want, then time.Duration }{
		{25e6, 48.6e6, 47.3e6}, {100e6, 69e6, 82.3e6}, {5e9, 69e6, 96e6}, {50e6, 50e6, 50e6},
	} {
		now := Instant(0).Add(100 * time.Millisecond)
		one := start.learn(levelOf(c.answer), now, testDecay)
		two := one.learn(levelOf(c.answer), now.Add(100*time.Millisecond), testDecay)
		for what, pair := range map[string][2]time.Duration{"one": {latencyOf(one), c.want}, "two": {latencyOf(two), c.then}} {
			if diff := float64(pair[0]-pair[1]) / float64(pair[1]); math.Abs(diff) > 0.01 {
				t.Errorf("after %s of %v: %v, want %v", what, c.answer, pair[0], pair[1])
			}
		}
	}
	if e := estimate(0).learn(30, 5, testDecay); e.level() != 30 || math.Abs(e.evidence()-firstEvidence) > 1e-4 {
		t.Errorf("a first answer makes level %g, evidence %g", e.level(), e.evidence())
	}
}

func TestEstimateAge(t *testing.T) {
	const second = Instant(1e9)
	const around = Instant(ageMask+1) << estimateTick
	for _, c := range []struct {
		made, now Instant
		want      time.Duration
	}{
		{0, 10 * second, 10 * time.Second},
		{-5 * second, 5 * second, 10 * time.Second},
		{1 << 62, 1<<62 + 3*second, 3 * time.Second},
		{second, 0, 0}, // another goroutine was ahead
		{0, 70 * 3600 * second, 70 * time.Hour},
		{5 * second, 5*second + around, 0},
		{5 * second, 8*second + around, 3 * time.Second},
		{10 * second, 7 * second, time.Duration(around - 3*second)}, // too far ahead to be meant
	} {
		e := packEstimate(20, 1, c.made)
		got := time.Duration(e.age(uint64(c.now)>>estimateTick)) << estimateTick
		if diff := got - c.want; diff < -2e6 || diff > 2e6 {
			t.Errorf("made at %d, at %d it is %v old, want %v", c.made, c.now, got, c.want)
		}
	}
}

// What holds after any answers: no answer moves the level away from itself or
// beyond itself, none raises it by more than a doubling unless the estimate was
// mostly forgotten, and evidence stays a part of 1.
func TestEstimateLearn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		decay := math.Exp2(rapid.Float64Range(-1, 22).Draw(t, "log2 of decay in ticks"))
		now := Instant(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "start"))
		var e estimate
		for range rapid.IntRange(1, 30).Draw(t, "answers") {
			level := rapid.Float64Range(0, 62.9).Draw(t, "level")
			gap := math.Exp2(rapid.Float64Range(10, 40).Draw(t, "log2 of gap"))
			was := e
			now += Instant(gap)
			e = e.learn(level, now, decay)
			if e == 0 {
				t.Fatal("an answer leaves nothing known")
			}
			if ev := e.evidence(); ev <= 0 || ev > 1 {
				t.Fatalf("evidence %g", ev)
			}
			if was == 0 || e == was {
				continue
			}
			const rounding = 1.0 / levelOne
			low, high := min(was.level(), level)-rounding, max(was.level(), level)+rounding
			if e.level() < low || e.level() > high {
				t.Fatalf("level %g and an answer of %g make %g", was.level(), level, e.level())
			}
			old := was.evidence() * math.Exp(-4*float64(was.age(uint64(now)>>estimateTick))/decay)
			if old > 0.5 && e.level() > was.level()+1+rounding {
				t.Fatalf("with evidence %g one answer moves level %g to %g", old, was.level(), e.level())
			}
		}
	})
}

// Whatever the decay and the pace of answers, the way back takes a decay: fast
// answers to frequent for the word's resolution do not hold it up.
func TestEstimateWayBack(t *testing.T) {
	for _, decay := range []time.Duration{time.Millisecond, 10 * time.Second, time.Hour} {
		for _, per := range []int{10, 1000, 50_000} { // answers in a decay
			ticks := float64(decay) / (1 << estimateTick)
			e := packEstimate(levelOf(5*time.Second), 1, 0)
			for k := range per {
				// The word's own resolution is added: it counts for the shortest.
				e = e.learn(levelOf(50*time.Millisecond), Instant(decay+2<<estimateTick)*Instant(k+1)/Instant(per), ticks)
			}
			if excess := (e.level() - levelOf(50*time.Millisecond)) * e.evidence(); excess < 0 || excess > 0.25 {
				t.Errorf("decay %v, %d answers: an excess of 6.64 doublings is %.3f after it, want 0.12", decay, per, excess)
			}
		}
	}
}

func outlookAt(now Instant, mean float64) outlook {
	return outlook{perTick: 4 * math.Log2E / testDecay, unit: 1, mean: mean, tick: uint64(now) >> estimateTick}
}

// The figures of NewPeakEWMA's comment.
func TestFactorExamples(t *testing.T) {
	mean := levelOf(50 * time.Millisecond)
	for _, c := range []struct {
		latency  time.Duration
		evidence float64
		age      time.Duration
		low, top float64
	}{
		{100e6, 1, 0, 1.7, 1.9},           // one slow answer
		{74e6, 1, 0, 1, 1},                // within the band
		{34e6, 1, 0, 1, 1},                //
		{500e6, 1, 0, 9.9, 10.1},          // the whole beyond it
		{5e6, 1, 0, 0.099, 0.101},         //
		{5e6, firstEvidence, 0, 1, 1},     // one fast answer is none
		{5e9, firstEvidence, 0, 3.1, 3.4}, // one failure
		{5e9, 1, 3 * time.Second, 3.8, 4}, // forgetting
		{5e9, 1, 5900e6, 1.001, 1.2},      //
		{5e9, 1, 6200e6, 1, 1},            //
		{60e9, 1, 7300e6, 1, 1},           //
		{time.Hour, 1, 10 * time.Second, 1, 1},
	} {
		o := outlookAt(Instant(c.age), mean)
		if got := o.factor(packEstimate(levelOf(c.latency), c.evidence, 0)); got < c.low || got > c.top {
			t.Errorf("%v with evidence %g, %v old, mean 50 ms: factor %.3f, want %g to %g", c.latency, c.evidence, c.age, got, c.low, c.top)
		}
	}
	o := outlookAt(0, mean)
	if got := o.factor(0); got != 1 {
		t.Errorf("without an estimate the factor is %g", got)
	}
}

// More latency is never a smaller factor, and more age never a more extreme one.
func TestFactorMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mean := rapid.Float64Range(10, 40).Draw(t, "mean")
		a, c := rapid.Float64Range(0, 60).Draw(t, "level"), rapid.Float64Range(0, 60).Draw(t, "level")
		evidence := rapid.Float64Range(0, 1).Draw(t, "evidence")
		age := Instant(rapid.Int64Range(0, 2e10).Draw(t, "age"))
		of := func(level float64, now Instant) float64 {
			o := outlookAt(now, mean)
			return o.factor(packEstimate(level, evidence, 0))
		}
		if fast, slow := of(min(a, c), age), of(max(a, c), age); fast > slow {
			t.Fatalf("levels %g and %g have factors %g and %g", min(a, c), max(a, c), fast, slow)
		}
		young, old := math.Abs(math.Log(of(a, age))), math.Abs(math.Log(of(a, age+1e9)))
		if old > young {
			t.Fatalf("level %g, mean %g: a second later the factor is further from 1", a, mean)
		}
	})
}

func TestExp2(t *testing.T) {
	for x := -1100.0; x < 1000; x += 0.37 {
		got, want := exp2(x), math.Exp2(max(x, -1000))
		if got < want*0.996 || got > want*1.004 {
			t.Fatalf("exp2(%g) = %g, want %g", x, got, want)
		}
	}
	for x := range 60 {
		if exp2(float64(x)) != math.Exp2(float64(x)) {
			t.Errorf("exp2(%d) = %g", x, exp2(float64(x)))
		}
	}
}

// What peak_ewma's scan finds is the minimum of factor and load, ties included,
// though it leaves out most of the factors.
func TestScanRatedExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 5), 1, 100).Draw(t, "weights")
		s := setOf(weights...)
		p := NewPeakEWMA(EWMAConfig{}).Build(s).(*leastRequest)
		const now = Instant(20e9)
		for _, m := range s.Members() {
			m.Backend.inFlight.Store(rapid.Int64Range(0, 6).Draw(t, "in flight"))
			if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
				m.Backend.estimate.Store(uint64(packEstimate(
					rapid.Float64Range(20, 32).Draw(t, "level"), rapid.Float64Range(0, 1).Draw(t, "evidence"),
					now-Instant(rapid.Int64Range(0, 2e10).Draw(t, "age")))))
			}
			switch rapid.IntRange(0, 9).Draw(t, "state") {
			case 0:
				m.Backend.SetShare(0.5)
			case 1:
				m.Backend.Charge(now, 1e9, 0)
			}
		}
		c := contest{roster: p.roster, r: &Request{Now: now}, load: 1, rated: true, outlook: p.rates.at(p.roster, nil, now)}
		var odd bitmap
		anyOdd := c.scanRated(&odd)
		least := math.Inf(1)
		for i := range p.slots {
			if p.slots[i].backend.ready() {
				least = min(least, c.loadOf(i)/float64(p.weights[i]))
			} else if !odd.has(i) || !anyOdd {
				t.Fatalf("member %d is not plain", i)
			}
		}
		for i := range p.slots {
			mine := c.loadOf(i) / float64(p.weights[i])
			if leads := c.leaders.has(i); !p.slots[i].backend.ready() && leads || leads && mine > least*(1+1e-12) {
				t.Fatalf("member %d leads with %g, the least is %g", i, mine, least)
			} else if !leads && p.slots[i].backend.ready() && c.loadOf(i)*c.weight <= c.load*float64(p.weights[i]) {
				t.Fatalf("member %d does not lead with %g, the leaders have %g", i, mine, least)
			}
		}
	})
}

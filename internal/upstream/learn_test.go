// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

func TestLearner(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		ages  []time.Duration
		apart time.Duration
		want  time.Duration
	}{
		"five alike":              {[]time.Duration{5 * s, 5*s + 10e6, 5*s + 400e6, 5*s + 20e6, 5*s + 5e6}, s, 5 * s},
		"four alike":              {[]time.Duration{5 * s, 5 * s, 5 * s, 5 * s}, s, 0},
		"spread":                  {[]time.Duration{1 * s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s}, s, 0},
		"just too wide":           {[]time.Duration{10 * s, 10 * s, 10 * s, 10 * s, 11*s + 1e6}, s, 0},
		"just within":             {[]time.Duration{10 * s, 10 * s, 10 * s, 10 * s, 11 * s}, s, 10 * s},
		"alike among others":      {[]time.Duration{1 * s, 5 * s, 9 * s, 5 * s, 5 * s, 30 * s, 5 * s, 2 * s, 5 * s}, s, 5 * s},
		"a restart closes all":    {slices.Repeat([]time.Duration{20 * s}, 40), time.Millisecond, 0},
		"the shorter of two":      {append(slices.Repeat([]time.Duration{60 * s}, 5), slices.Repeat([]time.Duration{5 * s}, 5)...), s, 5 * s},
		"forgotten when long ago": {append(slices.Repeat([]time.Duration{5 * s}, 4), slices.Repeat([]time.Duration{1 * s, 3 * s, 9 * s, 27 * s}, 4)...), s, 0},
	} {
		var l learner
		now := balance.Instant(1)
		for _, a := range c.ages {
			l.observe(now, a)
			now = now.Add(c.apart)
		}
		if got := l.timeout(now); got != c.want && !(name == "forgotten when long ago" && got == 0) {
			t.Errorf("%s: learned %v, want %v", name, got, c.want)
		}
		if l.timeout(now.Add(learnFor+s)) != 0 {
			t.Errorf("%s: the lesson never ends", name)
		}
	}
}

// TestLearnerOracle: whatever is observed, a lesson is the least of five of the
// last sixteen ages within ten percent of it, and when there are none nothing
// is learned.
func TestLearnerOracle(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var l learner
		var ages []time.Duration
		now := balance.Instant(0)
		for range rnd.IntN(30) {
			a := time.Duration(1+rnd.IntN(40)) * 100 * time.Millisecond
			ages = append(ages, a)
			l.learned = 0 // judge this observation alone
			l.observe(now, a)
			now = now.Add(time.Second)
			last := ages[max(len(ages)-learnOf, 0):]
			var want time.Duration
			for _, low := range last {
				alike := 0
				for _, x := range last {
					if x >= low && x-low <= low/100*learnSpread {
						alike++
					}
				}
				if alike >= learnFrom && (want == 0 || low < want) {
					want = low
				}
			}
			if l.learned != want {
				t.Fatalf("seed %d: after %v learned %v, want %v", seed, last, l.learned, want)
			}
		}
	}
}

// TestNews: a lesson is told once, and again only when it is another one.
func TestNews(t *testing.T) {
	s := balance.Instant(0)
	var l learner
	var told []time.Duration
	closes := func(age time.Duration, n int) {
		for range n {
			s = s.Add(time.Second)
			l.observe(s, age)
			if d := l.news(); d > 0 {
				told = append(told, d)
			}
		}
	}
	closes(5*time.Second, 20)
	closes(5*time.Second+100*time.Millisecond, 20)
	s = s.Add(2 * learnFor)
	if l.timeout(s) != 0 {
		t.Error("a lesson does not grow old")
	}
	closes(5*time.Second, 20)
	closes(20*time.Second, 20)
	if want := []time.Duration{5 * time.Second, 20 * time.Second}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// TestTeach: what another process has learned is used, unless it is too old or
// this one knows better.
func TestTeach(t *testing.T) {
	for _, c := range []struct{ idle, age, knows, want time.Duration }{
		{5 * time.Second, 0, 0, 5 * time.Second},
		{5 * time.Second, learnFor, 0, 0},
		{5 * time.Second, -1, 0, 0},
		{-1, 0, 0, 0},
		{5 * time.Second, time.Minute, 9 * time.Second, 9 * time.Second},
	} {
		target := NewTarget(Options{Address: "127.0.0.1:1"})
		if c.knows > 0 {
			target.learner.learned, target.learner.at = c.knows, clock.Now()
		}
		target.Teach(c.idle, c.age)
		if got := target.Stats(); got.LearnedIdle != c.want || c.want == c.idle && (got.LearnedAge < c.age || got.LearnedAge > c.age+time.Minute) {
			t.Errorf("%+v: %v, %v ago", c, got.LearnedIdle, got.LearnedAge)
		}
		target.Close()
	}
}

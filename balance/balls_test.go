// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/balance"
)

// throw places balls on n backends that keep what they get, and returns the
// most that one has.
func throw(p balance.Policy, n, balls int, seed uint64) int64 {
	members := make([]balance.Member, n)
	for i := range members {
		id := fmt.Sprint("bin-", i)
		members[i] = balance.Member{Backend: balance.NewBackend(id, id), Weight: 1}
	}
	picker := p.Build(balance.NewSet(members, 1, false))
	rnd := rand.New(rand.NewPCG(seed, 1))
	most := int64(0)
	for range balls {
		b, _ := picker.Pick(balance.Request{Rand: rnd.Uint64()})
		b.Reserve()
		most = max(most, b.InFlight())
	}
	return most
}

// meanMost is the mean of throw over ten seeds.
func meanMost(p balance.Policy, n, balls int) float64 {
	sum := 0.0
	for seed := range uint64(10) {
		sum += float64(throw(p, n, balls, seed))
	}
	return sum / 10
}

// Balls into bins (Azar, Broder, Karlin, Upfal, "Balanced allocations", SIAM
// Journal on Computing 29(1), 1999): with n balls the fullest of n bins has about
// log n / log log n of them at random, and log log n / log 2 + O(1) with two
// choices. Measured here: n = 64 3.8 and 2.4, n = 16,384 6.7 and 3.0.
func TestBallsIntoBins(t *testing.T) {
	alone(t)
	random, p2c := balance.NewRandom(), balance.NewP2C(2)
	// Over 50 servers, 200 requests each: by how much the fullest exceeds the mean.
	if r, p := meanMost(random, 50, 10_000)-200, meanMost(p2c, 50, 10_000)-200; r < 5*p {
		t.Errorf("of 10,000 on 50 the fullest has %.1f above the mean at random and %.1f with two choices: not several times", r, p)
	}
	atRandom := func(n float64) float64 { return math.Log(n) / math.Log(math.Log(n)) }
	twoChoices := func(n float64) float64 { return math.Log(math.Log(n)) / math.Ln2 }
	const few, many = 64, 16_384
	r0, r1 := meanMost(random, few, few), meanMost(random, many, many)
	p0, p1 := meanMost(p2c, few, few), meanMost(p2c, many, many)
	t.Logf("n = %d: %.1f and %.1f; n = %d: %.1f and %.1f", few, r0, p0, many, r1, p1)
	// The formulas hold up to a constant factor for random (growth is compared as
	// a ratio) and up to a constant for two choices (as a difference; whole numbers
	// hide part of so small a one).
	if got, want := r1/r0, atRandom(many)/atRandom(few); math.Abs(got-want) > 0.25*want {
		t.Errorf("the fullest bin grew %.2f times at random, want about %.2f", got, want)
	}
	if got, want := p1-p0, twoChoices(many)-twoChoices(few); got <= 0 || got > want+0.3 {
		t.Errorf("the fullest bin grew by %.2f with two choices, want more than nothing and at most about %.2f", got, want)
	}
}

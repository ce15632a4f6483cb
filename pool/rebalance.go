// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"

	"github.com/weirlb/weir/balance"
)

// Rebalance says when what is held for long (tunnels) is ended for the sake of
// balance: it stays where it was placed, so that new backends, which get their
// part of new requests at once, get nothing of it. The zero value is off.
type Rebalance struct {
	// Above is by how much of its part a backend may hold more, such as 0.2.
	Above float64
	// PerMinute bounds what is ended: this part of all that is held, at least one.
	PerMinute float64
}

// Holding is what one backend holds and what it is due.
type Holding struct {
	Held   int
	Weight uint32  // in force
	Share  float64 // what health grants it now, a slow start included
	// Out says that it is draining, disabled or removed. Then, as with a share or a
	// weight of 0, it is left alone: whoever took it out decides about what it has.
	Out bool
}

// due is the weight by which the whole is divided; 0: it takes no part.
func (h *Holding) due() float64 {
	if h.Out {
		return 0
	}
	return float64(h.Weight) * h.Share
}

// Rebalancer decides how much a pool's backends are to give up. It has no clock:
// each Step is told the time. The zero value is ready; it is not safe for
// concurrent use.
type Rebalancer struct {
	allowed float64 // may be ended now
	last    balance.Instant
	ran     bool
}

// rebalanceBurst is how much of a minute's allowance may gather.
const rebalanceBurst = 1.0 / 12

// Step returns how many of what each backend holds are to be ended now.
//
// A backend has a surplus when it holds more than its part, by Above and by
// two standard deviations of what chance alone would give it (the root of its
// part, as for a Poisson distribution; Mitzenmacher and Upfal, Probability and
// Computing, chapter 5): with small numbers a spread is no sign of anything.
// Whoever has most in relation to its part gives first.
//
// Worked example: three backends hold 100 each and three newcomers nothing. The
// part of each is 50, and with Above 0.2 up to max(50 x 1.2, 50 + 2 x 7.1) = 64
// may stay. At 10 % per minute 30 are ended in a minute, ten from each of the
// three, until each is down to 64: after about four minutes, as what is ended
// comes back where there is least.
func (r *Rebalancer) Step(now balance.Instant, rules *Rebalance, on []Holding) []int {
	out := make([]int, len(on))
	held, due, takers := 0, 0.0, 0
	for i := range on {
		if d := on[i].due(); d > 0 {
			held, due, takers = held+on[i].Held, due+d, takers+1
		}
	}
	r.refill(now, rules, held)
	if takers < 2 {
		return out
	}
	part := make([]float64, len(on))
	for i := range on {
		part[i] = float64(held) * on[i].due() / due
	}
	for r.allowed >= 1 {
		most, at := 0.0, -1
		for i := range on {
			if left := on[i].Held - out[i]; part[i] > 0 && left > stays(part[i], rules.Above) {
				if x := float64(left) / part[i]; x > most {
					most, at = x, i
				}
			}
		}
		if at < 0 {
			break
		}
		out[at]++
		r.allowed--
	}
	return out
}

// stays is how much a backend with a part may hold.
func stays(part, above float64) int {
	return int(max(part*(1+above), part+2*math.Sqrt(part)))
}

// refill adds what the time since the last step allows.
func (r *Rebalancer) refill(now balance.Instant, rules *Rebalance, held int) {
	perMinute := 0.0
	if rules.PerMinute > 0 {
		perMinute = max(rules.PerMinute*float64(held), 1)
	}
	if r.ran && now > r.last {
		r.allowed += perMinute * now.Sub(r.last).Minutes()
	}
	r.last, r.ran = now, true
	r.allowed = min(r.allowed, max(perMinute*rebalanceBurst, 1))
	if perMinute == 0 {
		r.allowed = 0
	}
}

// SPDX-License-Identifier: Apache-2.0

package health

import (
	"math"
	"time"

	"github.com/weirlb/weir/balance"
)

// Overload says what counts as a sign of overload, and how far the share of an
// overloaded backend may sink. The zero value is off.
type Overload struct {
	Enabled       bool
	RetryAfter503 bool    // an answer of 503 with Retry-After
	TooMany429    bool    // an answer of 429; usually that is per client, and neutral
	ORCA          bool    // a load report above LoadLimit, in answers and probes
	GRPCExhausted bool    // gRPC RESOURCE_EXHAUSTED; the data plane reads it
	QueueFull     bool    // requests refused because the backend was at its limit
	Floor         float64 // the least share, above 0 and at most 1; 0: 0.1
}

const (
	// OverloadAnswers and OverloadPart: one answer in ten of at least twenty in
	// the window has to be a sign of overload before the share sinks.
	OverloadAnswers = 20
	OverloadPart    = 0.1

	// LoadLimit is the utilization above which a load report is a sign of
	// overload. In M/M/1 a request waits u/(1-u) times its own service: four
	// times at 0.8, nine times at 0.9 and nineteen times at 0.95, so here the
	// queue begins to be what clients feel.
	LoadLimit = 0.9

	// OverloadFactor is what is left of a share after a decrease: CUBIC's 0.7
	// (RFC 9438, section 4.6) rather than Reno's half. Overload by a fifth, the
	// usual size, asks for 0.83: 0.7 answers that in one step and leaves the
	// others little to carry; half would swing between 0.5 and 1. A backend that
	// has failed altogether is at the floor of 0.1 after seven steps.
	OverloadFactor = 0.7

	// OverloadRecovery is what a share regains a second: a fiftieth, so that a
	// step takes 15 s to be undone, long beside the second in which the next one
	// may follow. That is what makes the sum of many balancers, each with its own
	// share for a backend, converge (Chiu and Jain, 1989: additive increase,
	// multiplicative decrease).
	OverloadRecovery = 0.02

	// OverloadPace is the least time between two decreases; twice the observed
	// latency if that is longer, so that a step's effect is seen before the next.
	OverloadPace = time.Second

	// RetryAfterMax is the longest that a Retry-After keeps a share from growing.
	RetryAfterMax = 30 * time.Second

	overloadFloor = 0.1
)

// LeastShare returns the share below which overload takes nobody.
func (o *Overload) LeastShare() float64 {
	if !(o.Floor > 0) {
		return overloadFloor
	}
	return min(o.Floor, 1)
}

// Exceeds reports whether a load report is a sign of overload.
func (o *Overload) Exceeds(load float64) bool { return o.Enabled && o.ORCA && load > LoadLimit }

// OverloadDue applies the rule for answers: signs among answers, one in ten of at
// least twenty; from two client addresses if the pool saw two, so that one
// client's budget is not taken for the backend's.
func OverloadDue(signs, answers uint64, twoClients, poolTwoClients bool) bool {
	return answers >= OverloadAnswers && float64(signs) >= OverloadPart*float64(answers) && (twoClients || !poolTwoClients)
}

// A Pressure is the share that overload leaves one backend: multiplicative
// decrease, additive increase (AIMD). The zero value has lost nothing. Not safe
// for concurrent use.
//
// Example: signs at 0 s, 1 s and never again, latency 40 ms: 0.7, 0.49, and from
// then on 0.02 more each second, full at 26.5 s.
type Pressure struct {
	lost  float64         // 1 - share
	cut   balance.Instant // the last decrease
	cuts  uint64          // so far; tells jitters apart
	moved balance.Instant // share is of then
	hold  balance.Instant // it does not grow before
}

// Share returns the share, between the floor and 1.
func (p *Pressure) Share() float64 { return 1 - p.lost }

// Decreases returns how often it was decreased since the beginning: a number for
// the jitter of the next one.
func (p *Pressure) Decreases() uint64 { return p.cuts }

// Last returns when it was decreased last; 0 if never.
func (p *Pressure) Last() balance.Instant { return p.cut }

// Ready reports whether a decrease may follow the last one, for a backend of this
// latency.
func (p *Pressure) Ready(now balance.Instant, latency time.Duration) bool {
	return p.cuts == 0 || now.Sub(p.cut) >= max(OverloadPace, 2*min(latency, math.MaxInt64/2))
}

// Decrease takes a step down, whatever Ready says. retryAfter is how long the
// backend asked to be spared (0: it did not): so long, at most 30 s, the share
// does not grow. jitter, any 64 evenly spread bits, lengthens that by up to a
// quarter, so that not all balancers return at once.
func (p *Pressure) Decrease(now balance.Instant, o *Overload, retryAfter time.Duration, jitter uint64) {
	p.Recover(now)
	share := max(p.Share()*OverloadFactor, o.LeastShare())
	p.lost, p.cut, p.moved = 1-share, now, now
	p.cuts++
	if retryAfter > 0 {
		asked := min(retryAfter, RetryAfterMax*4/5)
		asked += time.Duration(float64(asked) / 4 * (float64(jitter>>11) / (1 << 53)))
		p.hold = max(p.hold, now.Add(asked))
	}
}

// Hold keeps the share as it is until an instant: nothing it regains before
// counts.
func (p *Pressure) Hold(now balance.Instant) { p.moved = max(p.moved, now) }

// Recover gives back what time has earned.
func (p *Pressure) Recover(now balance.Instant) {
	from := max(p.moved, p.hold)
	if p.lost == 0 || now <= from {
		return
	}
	p.lost = max(0, p.lost-OverloadRecovery*now.Sub(from).Seconds())
	if p.lost < 1e-9 {
		p.lost = 0
	}
	p.moved = now
}

// Forget ends it: the backend went out, and what returns is another process.
func (p *Pressure) Forget() { p.lost, p.hold = 0, 0 }

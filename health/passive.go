// SPDX-License-Identifier: Apache-2.0

package health

import "time"

// Passive configures what real traffic may do to a backend. The zero value is
// disabled.
type Passive struct {
	Enabled            bool
	Consecutive        int           // bad answers in a row that eject
	ConsecutiveConnect int           // failed connection attempts in a row that break
	Eject              time.Duration // first ejection; the second lasts twice as long, the third three times
	MaxEject           time.Duration // longest ejection
	MaxEjected         float64       // part of the pool that opinions may eject, rounded down to backends
	SuccessRate        SuccessRate   // outliers among the pool's backends by failures
	Latency            Latency       // and by latency
}

// The rule for 5xx answers that are the application's own (500, 501, 505...).
const (
	ShareAnswers = 20  // answers in the window before the share means anything
	ShareBad     = 0.2 // part of them that are 5xx
	ShareFactor  = 2   // times the share of the pool's other backends
)

// ProbationShare is the share of a backend whose ejection has ended.
const ProbationShare = 0.1

// FactTime is how long a failed connection attempt counts as the fact that
// the backend cannot be reached.
const FactTime = 10 * time.Second

// Verdict is what one answer says about its backend.
type Verdict uint8

// The verdicts on an answer.
const (
	Good        Verdict = iota // below 500
	Neutral                    // 503 with Retry-After: backpressure, never a failure
	Bad                        // 502, 503 without Retry-After, 504: counts in a row
	ServerError                // other 5xx: may be one poisonous URL, counts as a share only
)

// Judge returns what an answer's status says about its backend.
func Judge(status int, retryAfter bool) Verdict {
	switch {
	case status < 500:
		return Good
	case status == 503 && retryAfter:
		return Neutral
	case status >= 502 && status <= 504:
		return Bad
	default:
		return ServerError
	}
}

// ShareEjects applies the rule for the application's own 5xx: over at least
// 20 answers, 20 % of them 5xx and twice the share of the pool's other
// backends; from two client addresses if the pool saw two.
func ShareEjects(bad, answers, otherBad, otherAnswers uint64, twoClients, poolTwoClients bool) bool {
	if answers < ShareAnswers || poolTwoClients && !twoClients {
		return false
	}
	share := float64(bad) / float64(answers)
	others := 0.0
	if otherAnswers > 0 {
		others = float64(otherBad) / float64(otherAnswers)
	}
	return share >= ShareBad && share >= ShareFactor*others
}

// ejection returns how long the nth ejection in a row lasts, n counted from 1.
func (p Passive) ejection(n int) time.Duration {
	if p.Eject <= 0 {
		return p.MaxEject
	}
	if limit := p.MaxEject; limit > 0 && (n > int(limit/p.Eject) || time.Duration(n)*p.Eject > limit) {
		return limit
	}
	return time.Duration(n) * p.Eject
}

// MayEject returns how many of n backends opinions may eject at once.
func (p Passive) MayEject(n int) int { return int(p.MaxEjected*float64(n) + 1e-9) }

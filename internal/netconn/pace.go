// SPDX-License-Identifier: Apache-2.0

package netconn

import "time"

// PaceTick is how often Pace.Next is asked.
const PaceTick = 50 * time.Millisecond

// Pace spreads what is to be done to many connections evenly over a time, however many
// come and go meanwhile. Make it with NewPace; it belongs to one goroutine.
//
// Worked example: 100 connections over a second are 20 ticks. The first takes 100/20 =
// 5, the next 95/19 = 5, and so on; with 7 connections the ticks take 0.35 each, which
// is 1 in every third.
type Pace struct {
	ticks int     // that are left, the next one included
	due   float64 // fractions carried from tick to tick
}

// NewPace returns a Pace over a duration; less than two ticks is at once.
func NewPace(over time.Duration) Pace { return Pace{ticks: max(int(over/PaceTick), 1)} }

// Next returns how many of the n that are left are due now, and whether that is all
// from now on.
func (p *Pace) Next(n int) (due int, last bool) {
	if p.ticks <= 1 {
		return n, true
	}
	p.due += float64(n) / float64(p.ticks)
	p.ticks--
	due = min(int(p.due), n)
	p.due -= float64(due)
	return due, false
}

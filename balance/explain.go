// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// An Explainer is a Picker that can say how it comes to its choice. All pickers
// of this package are.
type Explainer interface {
	Picker
	// Explain says what Pick would weigh for a request now. It changes nothing
	// that a later pick could notice, and may be called concurrently with picks.
	// Chance and Choice are left to the function Explain, which throws the dice.
	Explain(Request) Explanation
	// Still returns a picker whose Pick answers as this one's would now and
	// moves nothing: where Pick takes a turn, each Pick of the result starts from
	// the turn that was next when Still was called. It is the picker itself where
	// Pick changes nothing. It is for one goroutine.
	Still() Picker
}

// Explanation is one pick, taken apart.
type Explanation struct {
	// Members are all members with a weight above 0, in the set's order.
	Members []Reasoning
	// Order is the key's own order as far as it was followed, for policies that
	// divide by keys and requests that have one; nil otherwise.
	Order []Step
	// Words is the policy's reasoning, one sentence each.
	Words []string
	// Choice is the backend that Pick returns; nil when there is none, or when
	// chance decides (see Reasoning.Chance).
	Choice *Backend
	// Draws is how many picks the chances were counted over; 1 says that chance
	// has no part in it.
	Draws int
}

// Reasoning is what counts about one member.
type Reasoning struct {
	Backend *Backend
	Weight  uint32
	// Candidate says that Pick may return it: of those who may take work it is in
	// the foremost line (see Picker).
	Candidate bool
	// Why says in a word what stands against it: draining, disabled, no_share,
	// tried, unreachable, full or suspect; empty when nothing does.
	Why      string
	Share    float64 // in force
	Relative float64 // with which probability its share admits it: share / largest share in the set; 1 in panic
	Load     float64 // requests in flight, and what failed attempts still count
	// Latency is what a policy that learns knows, and Factor how many times as
	// slow as the mean that counts; 0 where the policy does not ask.
	Latency time.Duration
	Factor  float64
	// Chance is the part of picks that would return it, counted over
	// Explanation.Draws of them.
	Chance float64
}

// Step is one place where a key looks for a backend.
type Step struct {
	Backend *Backend
	Place   string // what led there: slot 17 of 65537, position 0.25, bid 1
	// Verdict is taken, compared (spill: the least loaded of those takes it), or
	// why the key goes on: what Reasoning.Why says, bounded, not_admitted.
	Verdict string
	Why     string // the figures behind bounded and not_admitted
}

// drawsFew and drawsMany are how often Explain picks, in large and small sets.
const (
	drawsFew  = 1024
	drawsMany = 4096
	drawsLog  = 12 // log2 of drawsMany
)

// Explain explains what a picker would do with a request: it runs Pick with many
// different dice (Throw) on the picker as it is, and counts. With a picker that
// is no Explainer Members are those who were picked. Nothing is changed. It takes
// milliseconds.
func Explain(p Picker, r Request) Explanation {
	var e Explanation
	x, ok := p.(Explainer)
	if ok {
		e = x.Explain(r)
	}
	n := drawsMany
	if len(e.Members) > scanMax {
		n = drawsFew
	}
	counts := map[*Backend]int{}
	for k := range n {
		q, at := Throw(r, k), p
		if ok {
			at = x.Still()
		}
		if b, found := at.Pick(q); found {
			counts[b]++
		}
	}
	e.count(counts, n)
	return e
}

// Throw returns the request with the k-th of many dice: 4096 in a row cover the
// first draw of a pick evenly, the 0-th is the request's own.
func Throw(r Request, k int) Request {
	if k > 0 {
		const low = 1<<(64-drawsLog) - 1
		r.Rand = uint64(k)<<(64-drawsLog) + r.Rand&^low | splitmix64(r.Rand+uint64(k))&low
	}
	return r
}

// count puts what was drawn into the members.
func (e *Explanation) count(counts map[*Backend]int, n int) {
	for i := range e.Members {
		m := &e.Members[i]
		if c := counts[m.Backend]; c > 0 {
			m.Chance, m.Candidate = float64(c)/float64(n), true
			if c == n {
				e.Choice = m.Backend
			}
		}
		delete(counts, m.Backend)
	}
	for b, c := range counts { // of a picker that does not say who its members are
		e.Members = append(e.Members, Reasoning{
			Backend: b, Candidate: true, Share: b.Share(), Relative: 1, Load: float64(b.InFlight()), Chance: float64(c) / float64(n),
		})
		if c == n {
			e.Choice = b
		}
	}
	if e.Draws = n; e.Choice != nil {
		e.Draws = 1
	}
}

// members weighs everyone, by the rules of candidate.go.
func (ro *roster) members(r *Request) []Reasoning {
	out := make([]Reasoning, len(ro.slots))
	best := excluded
	lines := make([]standing, len(ro.slots))
	for i := range ro.slots {
		b := ro.slots[i].backend
		lines[i] = ro.standing(b, r)
		best = min(best, lines[i])
		out[i] = Reasoning{
			Backend: b, Weight: ro.weights[i], Why: ro.against(b, lines[i]),
			Share: b.ShareAt(r.Now), Load: b.Load(r.Now),
		}
		if lines[i] != excluded {
			out[i].Relative = ro.relativeShare(b, r.Now)
		}
	}
	for i := range out {
		out[i].Candidate = lines[i] == best && best != excluded
	}
	return out
}

// against says what stands against a member of that standing, the weightiest.
func (ro *roster) against(b *Backend, s standing) string {
	switch {
	case s >= excluded && b.Admin() != Enabled:
		return b.Admin().String()
	case s >= excluded:
		return "no_share"
	case s&tried != 0:
		return "tried"
	case s&unreachable != 0:
		return "unreachable"
	case s&full != 0:
		return "full"
	case s&suspect != 0:
		return "suspect"
	}
	return ""
}

// Still implements Explainer: a draw changes nothing.
func (p *random) Still() Picker { return p }

// Explain implements Explainer.
func (p *random) Explain(r Request) Explanation {
	return Explanation{Members: p.members(&r), Words: p.sticky(&r, "one is drawn by weight, whatever the load")}
}

// Still implements Explainer.
func (p *p2c) Still() Picker { return p }

// Explain implements Explainer.
func (p *p2c) Explain(r Request) Explanation {
	n := strconv.Itoa(p.choices)
	if p.choices == 2 {
		n = "two"
	}
	words := n + " different ones are drawn by weight; the one with less load for its weight takes the request, the first drawn when they are equal"
	if len(p.slots) < 2 {
		words = "there is nothing to choose from but one"
	}
	return Explanation{Members: p.members(&r), Words: p.sticky(&r, words)}
}

// Still implements Explainer: the result has a cursor of its own.
func (p *roundRobin) Still() Picker {
	c := *p
	at := new(turnCursor)
	at.Store(p.cursor.Load())
	c.cursor = &at.Uint64
	return &c
}

// Explain implements Explainer.
func (p *roundRobin) Explain(r Request) Explanation {
	e := Explanation{Members: p.members(&r)}
	if len(p.turns) == 0 {
		return e
	}
	at := p.cursor.Load() % uint64(len(p.turns))
	b := p.slots[p.turns[at]].backend
	words := fmt.Sprintf("the next turn, %d of %d, is %s's", at+1, len(p.turns), b.ID())
	if why := p.against(b, p.standing(b, &r)); why != "" {
		words += ", which loses it (" + why + "): the next after it that may be chosen takes the request"
	} else if s := p.relativeShare(b, r.Now); s < 1 {
		words += fmt.Sprintf(", which takes it with probability %.2f, its share; otherwise the next after it does", s)
	}
	e.Words = p.sticky(&r, words)
	return e
}

// Still implements Explainer.
func (p *leastRequest) Still() Picker { return p }

// Explain implements Explainer.
func (p *leastRequest) Explain(r Request) Explanation {
	e := Explanation{Members: p.members(&r)}
	what := "the least load for its weight"
	if p.rates != nil {
		what = "the least of latency factor x (load + one more) for its weight"
		e.rate(p, r.Now)
	}
	if n := len(p.slots); n > scanMax {
		e.Words = p.sticky(&r, fmt.Sprintf("of %d drawn by weight, as looking at all %d would take long, %s takes the request", sampleSize, n, what))
		return e
	}
	var lead []string
	least := math.Inf(1)
	for i := range e.Members {
		m := &e.Members[i]
		if !m.Candidate || m.Relative < 1 {
			continue
		}
		load := m.Load
		if p.rates != nil {
			load = m.Factor * (m.Load + p.rates.unit*float64(m.Weight))
		}
		switch q := load / float64(m.Weight); {
		case q < least*justBelow:
			least, lead = q, []string{m.Backend.ID()}
		case q <= least*justAbove:
			lead = append(lead, m.Backend.ID())
		}
	}
	words := what + " takes the request"
	if len(lead) > 0 {
		words += fmt.Sprintf(": it is %.3g, %s", least, someOf(lead))
	}
	if len(lead) > 1 {
		words += "; ties are broken at random, by weight"
	}
	e.Words = p.sticky(&r, words)
	for i := range e.Members {
		if m := &e.Members[i]; m.Candidate && m.Relative < 1 {
			e.Words = append(e.Words, "a backend below full share that would win is admitted with a probability that keeps it to about its share of what is fair")
			break
		}
	}
	return e
}

// rate fills in what peak_ewma knows.
func (e *Explanation) rate(p *leastRequest, now Instant) {
	look := p.rates.still(p.roster, now)
	for i := range e.Members {
		m := &e.Members[i]
		m.Latency = m.Backend.Latency(now)
		m.Factor = look.factor(estimate(m.Backend.estimate.Load()))
	}
	if look.mean != 32 {
		e.Words = append(e.Words, "the mean latency of the set is "+time.Duration(math.Exp2(look.mean)).Round(10*time.Microsecond).String()+"; between two thirds of it and half as much again counts as equal")
	}
}

// still is at for all members without keeping the mean for others.
func (t *rates) still(ro *roster, now Instant) outlook {
	all := make([]uint32, len(ro.slots))
	for i := range all {
		all[i] = uint32(i)
	}
	return t.at(ro, all, now)
}

// sticky prepends what is said of a sticky backend.
func (ro *roster) sticky(r *Request, words ...string) []string {
	if r.Prefer == 0 {
		return words
	}
	if b := ro.preferred(r); b != nil {
		return append([]string{"the sticky backend " + b.ID() + " may take work and takes the request"}, words...)
	}
	return append([]string{"the sticky backend is not here or may not take work"}, words...)
}

// someOf lists names, not all of them when there are many.
func someOf(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

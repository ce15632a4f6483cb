// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math"

	"github.com/weirlb/weir/balance"
)

// explainDraws is how many picks chances are counted over.
const explainDraws = 4096

// keyedDraws is how many are enough where a key decides and dice do not.
const keyedDraws = 64

// Explanation is one pick, taken apart: who would get a request, who would not,
// and why. Everything is of one instant, but requests go on meanwhile.
type Explanation struct {
	Snapshot Snapshot // the pool, its backends in the order of Candidates
	Keyed    bool     // the policy divides requests with a key by it
	// Tiers are those with members that may take work, in the order in which they
	// are asked.
	Tiers      []TierChoice
	Candidates []Candidate
	// Refused is the part of picks that are refused, by refusal; empty when none is.
	Refused []RefusedPart
	// Choice is the backend that Pick returns; nil when there is none or when
	// chance decides.
	Choice *balance.Backend
	// Draws is how many picks the chances were counted over; 1 says that chance
	// has no part in it.
	Draws int
	// After is the backend whose failure Next is about: Choice, or the likeliest;
	// nil when there is none. Next says who a further attempt would go to.
	After *balance.Backend
	Next  []Chance
}

// TierChoice is a tier as requests see it.
type TierChoice struct {
	Name     string  // as TierSnapshot.Name
	Chance   float64 // that it is asked first; 1 or 0 for a request with a key under a policy that divides by keys
	Panicked bool    // opinions about its members are set aside
	Groups   []GroupChoice
}

// GroupChoice is what one picker says: of a tier, or of a zone of one.
type GroupChoice struct {
	Zone   string  // meaningful when the tier has several groups
	Chance float64 // that it is asked first, of the requests whose tier it is
	Picker balance.Explanation
}

// Candidate is one backend of the pool.
type Candidate struct {
	// Candidate says that Pick may return it.
	Candidate bool
	// Why says in a word what keeps it from being one, or stands against it:
	// weight_0, removed, draining, disabled, what binds its share (not_ready,
	// ejected, probe_failing ...), no_share, tried, unreachable, full, suspect, or
	// tier: others are asked first and have room. Empty when nothing does.
	Why string
	// Reasoning is the picker's; the zero value when no picker knows the backend.
	balance.Reasoning
	// Chance is the part of all picks, those refused included, that return it.
	Chance float64
}

// Chance is a backend and the part of picks that return it.
type Chance struct {
	Backend *balance.Backend
	Chance  float64
}

// RefusedPart is the part of picks that are refused so.
type RefusedPart struct {
	Refusal Refusal
	Part    float64
}

// Explain says what Pick would do with a request now, by running the code that
// picks with many different dice. It reserves nothing, counts nothing and moves
// nothing, and takes some milliseconds; it takes the core's lock for a moment, as
// Snapshot does.
func (p *Pool) Explain(r *balance.Request) Explanation {
	v := p.view.Load()
	e := Explanation{Snapshot: p.Snapshot(), Keyed: v.keyed}
	e.tiers(v, r)
	counts := e.draw(p, v, r)
	e.members(counts)
	if e.Choice == nil {
		likeliest := 0.0
		for i := range e.Candidates {
			if c := &e.Candidates[i]; c.Chance > likeliest {
				likeliest, e.After = c.Chance, c.Backend
			}
		}
	} else {
		e.After = e.Choice
	}
	if e.After != nil {
		e.next(p, v, r)
	}
	return e
}

// draw picks many times and returns how often whom.
func (e *Explanation) draw(p *Pool, v *view, r *balance.Request) map[*balance.Backend]int {
	counts := map[*balance.Backend]int{}
	refused := [Aborted + 1]int{}
	step := 1
	if v.keyed && r.HasKey && v.admit >= 1 {
		step = explainDraws / keyedDraws
	}
	for k := 0; k < explainDraws; k += step {
		q := balance.Throw(*r, k)
		if b, why := p.would(v, &q); b != nil {
			counts[b] += step
		} else {
			refused[why] += step
		}
	}
	e.Draws = explainDraws
	for why, n := range refused {
		if n == explainDraws {
			e.Draws = 1
		}
		if n > 0 {
			e.Refused = append(e.Refused, RefusedPart{Refusal(why), float64(n) / explainDraws})
		}
	}
	for b, n := range counts {
		if n == explainDraws {
			e.Choice, e.Draws = b, 1
		}
	}
	return counts
}

// next says who a request would go to that has failed on e.After.
func (e *Explanation) next(p *Pool, v *view, r *balance.Request) {
	again := *r
	again.Tried.Add(e.After.Hash())
	again.Prefer = 0
	counts := map[*balance.Backend]int{}
	const draws = explainDraws / 4
	for k := range draws {
		q := balance.Throw(again, 4*k)
		if b, _ := p.would(v, &q); b != nil {
			counts[b]++
		}
	}
	for i := range e.Candidates {
		if b := e.Snapshot.Backends[i].Backend; counts[b] > 0 {
			e.Next = append(e.Next, Chance{b, float64(counts[b]) / draws})
		}
	}
}

// would is what Pick would answer, without reserving. Full means that a request
// waits for a slot.
func (p *Pool) would(v *view, r *balance.Request) (*balance.Backend, Refusal) {
	if p.set.Load().limited {
		if p.queue.length.Load() != 0 {
			return nil, Full
		}
		if a := p.set.Load().adaptive; a != nil && !a.would(r.Priority) {
			return nil, Shed
		}
		if most := p.set.Load().Limits.PoolRequests; most > 0 && p.inFlight.Load() >= most {
			return nil, Full
		}
	}
	if v.admit < 1 && unit(r.Rand) >= v.admitted(r.Now) {
		return nil, Shed
	}
	v = v.still()
	b, ok := v.pick(r)
	switch {
	case !ok && v.idle:
		return nil, NoBackend
	case !ok:
		return nil, AllBroken
	case b.Full():
		again := *r
		again.Tried.Add(b.Hash())
		if o, ok := v.pick(&again); ok && !o.Full() && !o.Unreachable() && !again.Tried.Has(o.Hash()) && o.Admin() == balance.Enabled {
			return o, Granted
		}
		return nil, Full
	case b.Admin() != balance.Enabled && v.by[r.Prefer] != b:
		return nil, Full // drained at this very moment
	}
	return b, Granted
}

// still returns the view over pickers that stand still.
func (v *view) still() *view {
	c := *v
	if v.only != nil {
		c.only = stillOf(v.only)
		return &c
	}
	c.tiers = stillChoices(v.tiers)
	return &c
}

func stillChoices(list []choice) []choice {
	if list == nil {
		return nil
	}
	out := make([]choice, len(list))
	for i, c := range list {
		c.zones = stillChoices(c.zones)
		if c.picker != nil {
			c.picker = stillOf(c.picker)
		}
		out[i] = c
	}
	return out
}

func stillOf(p balance.Picker) balance.Picker {
	if x, ok := p.(balance.Explainer); ok {
		return x.Still()
	}
	return p
}

// tiers explains the tiers and zones, and what the picker of each says.
func (e *Explanation) tiers(v *view, r *balance.Request) {
	list := v.tiers
	if len(list) == 0 {
		return
	}
	seed, divided := r.Key, v.keyed && r.HasKey
	for i := range list {
		c := &list[i]
		t := TierChoice{Chance: chanceOf(list, i, seed^saltTier, divided)}
		zones := c.zones
		if zones == nil {
			zones = []choice{{picker: c.picker, upTo: 1}}
		}
		for k := range zones {
			g := GroupChoice{Chance: chanceOf(zones, k, seed^saltZone, divided)}
			if x, ok := zones[k].picker.(balance.Explainer); ok {
				g.Picker = x.Explain(*r) // chances are counted over the whole pool
			} else {
				g.Picker = balance.Explain(zones[k].picker, *r)
			}
			if at, of := v.plan.find(zones[k].picker); at != nil {
				t.Name, t.Panicked = (&tier{level: at.level}).name(), at.panicked
				g.Zone = of.zone
			}
			t.Groups = append(t.Groups, g)
		}
		e.Tiers = append(e.Tiers, t)
	}
}

// chanceOf is how probable it is that find returns i: certain one way or the
// other where the request's key is what it is asked with.
func chanceOf(list []choice, i int, seed uint64, divided bool) float64 {
	if divided {
		return float64(btoi(find(list, fraction(seed)) == i))
	}
	from := 0.0
	if i > 0 {
		from = list[i-1].upTo
	}
	return math.Max(list[i].upTo-from, 0)
}

// find returns the tier and the group that a picker is of.
func (p *publication) find(picker balance.Picker) (*tierPlan, *group) {
	for i := range p.tiers {
		for k := range p.tiers[i].groups {
			if g := &p.tiers[i].groups[k]; g.picker == picker {
				return &p.tiers[i], g
			}
		}
	}
	return nil, nil
}

// members puts together what is known about every backend.
func (e *Explanation) members(counts map[*balance.Backend]int) {
	type known struct {
		balance.Reasoning
		asked bool
	}
	by := map[*balance.Backend]known{}
	elsewhere := e.goesOn()
	for i := range e.Tiers {
		t := &e.Tiers[i]
		for k := range t.Groups {
			g := &t.Groups[k]
			for _, m := range g.Picker.Members {
				by[m.Backend] = known{m, elsewhere || t.Chance*g.Chance > 0}
			}
		}
	}
	e.Candidates = make([]Candidate, len(e.Snapshot.Backends))
	for i := range e.Snapshot.Backends {
		s, c := &e.Snapshot.Backends[i], &e.Candidates[i]
		m, in := by[s.Backend]
		c.Reasoning, c.Why = m.Reasoning, m.Why
		c.Backend, c.Weight = s.Backend, s.Weight
		c.Chance = float64(counts[s.Backend]) / explainDraws
		c.Candidate = c.Chance > 0 || in && m.Candidate && m.asked
		switch {
		case !in || c.Why == "no_share":
			c.Why = whyOut(s)
		case c.Why == "" && m.Candidate && !c.Candidate:
			c.Why = "tier"
		}
	}
}

// goesOn reports whether tiers and zones beyond the first may be asked: where
// what is asked first has nobody, or nobody without a flaw.
func (e *Explanation) goesOn() bool {
	for i := range e.Tiers {
		for k := range e.Tiers[i].Groups {
			g := &e.Tiers[i].Groups[k]
			if e.Tiers[i].Chance*g.Chance <= 0 {
				continue
			}
			good := false
			for _, m := range g.Picker.Members {
				good = good || m.Candidate && (m.Why == "" || m.Why == "suspect")
			}
			if !good {
				return true
			}
		}
	}
	return false
}

// whyOut says why a backend is in no picker, or has no share.
func whyOut(s *BackendSnapshot) string {
	switch {
	case s.Removed:
		return "removed"
	case s.Admin != balance.Enabled:
		return s.Admin.String()
	case s.Weight == 0:
		return "weight_0"
	case s.Reason.String() != "":
		return s.Reason.String()
	case s.Unreachable:
		return "unreachable"
	default:
		return "no_share"
	}
}

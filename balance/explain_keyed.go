// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"math"
	"math/bits"
)

// stillKeyed is a hash picker whose fallback stands still; the rest of it
// changes nothing that a later pick could notice.
type stillKeyed struct {
	Picker
	fallback Picker
}

// Pick implements Picker.
func (s stillKeyed) Pick(r Request) (*Backend, bool) {
	if !r.HasKey {
		return s.fallback.Pick(r)
	}
	return s.Picker.Pick(r)
}

func stillWith(p, fallback Picker) Picker {
	if x, ok := fallback.(Explainer); ok {
		return stillKeyed{p, x.Still()}
	}
	return p
}

// Still implements Explainer.
func (p *maglev) Still() Picker { return stillWith(p, p.fallback) }

// Still implements Explainer.
func (p *ringHash) Still() Picker { return stillWith(p, p.fallback) }

// Still implements Explainer.
func (p *rendezvous) Still() Picker { return stillWith(p, p.fallback) }

// Explain implements Explainer.
func (p *maglev) Explain(r Request) Explanation {
	if !r.HasKey || len(p.table) == 0 {
		return p.withoutKey(&r)
	}
	t := p.newTale(&r)
	for n := range probes * rounds {
		at := t.search.probe(n)
		slot, _ := bits.Mul64(at, uint64(len(p.table)))
		if t.offer(p.at(at), fmt.Sprintf("slot %d of %d", slot, len(p.table))) {
			break
		}
	}
	return t.end()
}

// Explain implements Explainer.
func (p *rendezvous) Explain(r Request) Explanation {
	if !r.HasKey || len(p.slots) == 0 {
		return p.withoutKey(&r)
	}
	t := p.newTale(&r)
	var first [probes]uint32
	for n, i := range p.first(t.search.key, &first) {
		if t.offer(int(i), fmt.Sprintf("bid %d of %d", n+1, len(p.slots))) {
			break
		}
	}
	return t.end()
}

// Explain implements Explainer.
func (p *ringHash) Explain(r Request) Explanation {
	if !r.HasKey || len(p.points) == 0 {
		return p.withoutKey(&r)
	}
	t := p.newTale(&r)
	for n := range probes * rounds {
		position := uint32(t.search.probe(n) >> 32)
		found := p.follow(&t.search, position)
		// Those passed on the way are told; follow has decided about them.
		at, last := p.seek(position), -1
		for range min(maxSteps, len(p.points)) {
			i := p.owner(at)
			if i == found {
				break
			}
			if i != last {
				t.pass(i, place(p.points[at]))
			}
			last = i
			if at++; at == len(p.points) {
				at = 0
			}
		}
		if found >= 0 && t.offer(found, place(p.points[at])) {
			break
		}
	}
	return t.end()
}

// place says where on the circle, 0 to 1, a point is.
func place(point uint64) string { return fmt.Sprintf("position %.6f", float64(point>>32)/(1<<32)) }

// withoutKey explains the fallback.
func (k *keyed) withoutKey(r *Request) Explanation {
	var e Explanation
	if x, ok := k.fallback.(Explainer); ok {
		e = x.Explain(*r)
	}
	if !r.HasKey {
		e.Words = append([]string{"the request has no key, so the fallback chooses"}, e.Words...)
	}
	return e
}

// tale is a search that is told while it runs.
type tale struct {
	k      *keyed
	search search
	e      Explanation
	told   map[int]bool
}

func (k *keyed) newTale(r *Request) *tale {
	t := &tale{k: k, search: k.newSearch(r), told: map[int]bool{}, e: Explanation{Members: k.members(r)}}
	if k.bound.factor != 0 && !math.IsInf(t.search.allowance, 1) { // infinite: nobody may take work
		_, inFlight := k.average(r.Now)
		t.e.Words = append(t.e.Words, fmt.Sprintf(
			"loads are bounded to %g times the average: with %d in flight a backend may hold %.0f for each unit of weight",
			k.bound.factor, inFlight, math.Ceil(t.search.allowance)))
	}
	return t
}

// offer lets consider decide about the next in the key's order, and puts down
// what it decided.
func (t *tale) offer(i int, at string) (over bool) {
	before := t.search.hand.n
	over = t.k.consider(&t.search, i)
	switch {
	case t.told[i]:
	case t.search.hand.n > before && t.search.saturated && t.k.spill > 1:
		t.step(i, at, "compared", "")
	case t.search.hand.n > before:
		t.step(i, at, "taken", "")
	default:
		t.pass(i, at)
	}
	return over
}

// pass puts down why a key goes on to the next.
func (t *tale) pass(i int, at string) {
	if t.told[i] {
		return
	}
	k, r := t.k, t.search.r
	b := k.slots[i].backend
	st := k.standing(b, r)
	switch {
	case st != clean && st != full:
		t.step(i, at, k.against(b, st), "")
	case !k.admitsKey(t.search.key, b, r.Now):
		t.step(i, at, "not_admitted", fmt.Sprintf("its share admits %.0f %% of keys, this one is at %.0f %%", 100*k.relativeShare(b, r.Now), 100*coin(t.search.key, b)))
	case st == full:
		t.step(i, at, "full", fmt.Sprintf("%d in flight are its limit", b.InFlight()))
	default:
		t.step(i, at, "bounded", fmt.Sprintf("%d in flight are what the bound allows it", b.wholeLoad(r.Now)))
	}
}

func (t *tale) step(i int, at, verdict, why string) {
	t.told[i] = true
	t.e.Order = append(t.e.Order, Step{Backend: t.k.slots[i].backend, Place: at, Verdict: verdict, Why: why})
}

// end says who takes the request.
func (t *tale) end() Explanation {
	k, s := t.k, &t.search
	if len(t.e.Order) > 0 {
		t.e.Words = append(t.e.Words, fmt.Sprintf("the key leads to %s (%s)", t.e.Order[0].Backend.ID(), t.e.Order[0].Place))
	}
	switch b, ok := k.result(s); {
	case !ok:
		t.e.Words = append(t.e.Words, "nobody may take work")
	case s.hand.n == 0:
		t.e.Words = append(t.e.Words, "nobody in the key's own order takes it, so everyone is looked at: of the best standing, who is within the bound and admits the key, first in rendezvous order, is "+b.ID())
	case s.hand.n > 1:
		t.e.Words = append(t.e.Words, fmt.Sprintf("it is saturated, and of the next %d the least loaded, %s, takes the request", s.hand.n, b.ID()))
	}
	t.e.Words = k.sticky(s.r, t.e.Words...)
	return t.e
}

// SPDX-License-Identifier: Apache-2.0

package observe

// HedgeOutcome says what became of a hedge that was due.
type HedgeOutcome uint8

// The outcomes of weir_hedges_total.
const (
	HedgeWon     HedgeOutcome = iota // its answer was passed on
	HedgeLost                        // the first attempt was answered before, or the client left: it was cut
	HedgeFailed                      // it ended by itself, without an answer that could be passed on
	HedgeRefused                     // not made: no budget, attempt, time or other backend was left for it
	hedgeOutcomes
)

var hedgeOutcomeNames = [hedgeOutcomes]string{"won", "lost", "failed", "refused"}

var descHedges = desc("weir_hedges_total", "Second attempts beside one without an answer, by what became of them; refused are those that were due and not made.", "pool", "outcome")

// Hedge counts a hedge that was due.
func (p *PoolSeries) Hedge(o HedgeOutcome) {
	if o < hedgeOutcomes {
		p.hedges[o].Add(1)
	}
}

func (s sink) hedges(p *PoolSeries) {
	for o := range p.hedges {
		if n := p.hedges[o].Load(); n > 0 {
			s.counter(descHedges, n, p.name, hedgeOutcomeNames[o])
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance

const (
	scanMax    = 256 // up to here everyone is compared
	sampleSize = 16  // above, this many are drawn and compared
)

// NewLeastRequest returns the policy "least_request": the member with the least
// load for its weight, ties broken at random by weight.
//
// Up to 256 members it looks at all of them and the minimum is exact. Above, it
// is the best of 16 draws by weight, because a scan costs about 2 ns a member.
//
// An idle newcomer wins whenever it is admitted, so its share s does not bound
// its rate. A member below full share that would win alone is therefore admitted
// with
//
//	min(1, s/(1-s) x weight / sum of weights)
//
// which gives it s/(1-s) of what is fair. One that would tie with members who
// have, with it, the weight T wins with weight/T only, and is admitted with
//
//	min(s, s/(1-s) x T / sum of weights)
//
// Example: ten members of weight 1, nine of them busy, an idle newcomer at 0.1:
// admitted with 0.111 x 1/10, so it gets 1.1 % of the requests where 10 % are
// fair. With all ten idle it ties with T = 10: admitted with 0.1, chosen with
// 0.1, it gets 1 %.
//
// Like everything that looks for the minimum it herds when counts are stale:
// many balancers that do not see each other's requests send them to the same
// member. p2c does so much less.
func NewLeastRequest() Policy { return leastRequestPolicy{} }

type leastRequestPolicy struct{}

func (leastRequestPolicy) Name() string { return "least_request" }

func (leastRequestPolicy) Build(s *Set) Picker { return newLeast(newRoster(s), nil) }

// leastRequest is the picker of all policies that look for a minimum.
type leastRequest struct {
	*roster
	rates *rates // peak_ewma's; nil: requests in flight alone are compared

	parts []float64 // 1/weight, to compare by; nil: all are equal, or not compared so
}

func newLeast(ro *roster, r *rates) *leastRequest {
	p := &leastRequest{roster: ro, rates: r}
	if !ro.equal && r == nil && len(ro.slots) <= scanMax {
		p.parts = make([]float64, len(ro.weights))
		for i, w := range ro.weights {
			p.parts[i] = 1 / float64(w)
		}
	}
	return p
}

func (p *leastRequest) Pick(r Request) (*Backend, bool) {
	if len(p.slots) == 0 {
		return nil, false
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	var i int
	if len(p.slots) <= scanMax {
		i = p.compareAll(&r)
	} else {
		var drawn [sampleSize]uint32
		d := newDice(r.Rand)
		list := p.sample(&d, &r, drawn[:0])
		i = p.compareDrawn(list, d, &r)
	}
	if i < 0 {
		return nil, false
	}
	return p.slots[i].backend, true
}

// sample draws up to sampleSize distinct clean members into list; when there
// are hardly any, the one best standing member that survey finds.
func (p *leastRequest) sample(d *dice, r *Request, list []uint32) []uint32 {
	for range sampleSize + p.patience {
		i := p.draw(d.next())
		if p.standing(p.slots[i].backend, r) != clean || contains(list, i) {
			continue
		}
		if list = append(list, uint32(i)); len(list) == sampleSize {
			return list
		}
	}
	if len(list) == 0 {
		if i, s := p.survey(d, r, nil, true); s != excluded {
			list = append(list, uint32(i))
		}
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package balance

// NewRandom returns the policy "random": each pick is one draw by weight from an
// alias table, whatever the load. Its own order, when a draw may not be chosen,
// is the next draw.
func NewRandom() Policy { return randomPolicy{} }

type randomPolicy struct{}

func (randomPolicy) Name() string { return "random" }

func (randomPolicy) Build(s *Set) Picker { return &random{newRoster(s)} }

type random struct{ *roster }

func (p *random) Pick(r Request) (*Backend, bool) {
	if len(p.slots) == 0 {
		return nil, false
	}
	if r.Prefer == 0 && r.Tried.n == 0 {
		if b := p.slots[p.draw(r.Rand)].backend; b.ready() {
			return b, true
		}
	}
	if b := p.preferred(&r); b != nil {
		return b, true
	}
	d := newDice(r.Rand)
	return p.spin(&d, &r)
}

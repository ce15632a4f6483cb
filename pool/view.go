// SPDX-License-Identifier: Apache-2.0

package pool

import "github.com/weirlb/weir/balance"

// view is what every request reads: immutable, published by one pointer.
type view struct {
	first    balance.Picker      // asked first
	second   balance.Picker      // asked when first has nobody (left), or nil
	members  []*member           // all configured, in order, those of weight 0 included
	takers   [2][]balance.Member // what first and second were built over
	admit    float64             // part of the requests admitted; below 1 only while shedding
	idle     bool                // no member may take work, whatever its health
	panicked bool
}

// pick asks the policies. It does not reserve.
func (v *view) pick(r *balance.Request) (*balance.Backend, bool) {
	b, ok := v.first.Pick(*r)
	if v.second == nil || ok && (r.Tried.Len() == 0 || !r.Tried.Has(b.Hash())) {
		return b, ok
	}
	// Nobody, or nobody new: the other tier is better than the same again.
	if c, found := v.second.Pick(*r); found && (!ok || !r.Tried.Has(c.Hash())) {
		return c, true
	}
	return b, ok
}

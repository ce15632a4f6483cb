// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirlb/weir/balance"
)

// Of however many, in whatever order, those are kept that a sort puts first.
func TestIdlest(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		x := Idlest{Most: n % 9, Before: 18}
		var all []balance.Instant
		for range n {
			at := balance.Instant(dice.IntN(20))
			if at < x.Before {
				all = append(all, at)
			}
			x.Offer(Idle{Since: at})
		}
		slices.Sort(all)
		var got []balance.Instant
		for _, i := range x.List() {
			got = append(got, i.Since)
		}
		if want := all[:min(len(all), x.Most)]; !slices.Equal(got, want) {
			t.Errorf("%d of %d: %v, want %v", x.Most, n, got, want)
		}
	}
}

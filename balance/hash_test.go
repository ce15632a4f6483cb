// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/balance/balancetest"
)

// hashed are the hash policies; the ring has enough points for the suite's
// shares.
var hashed = map[string]func(balance.HashConfig) balance.Policy{
	"ring_hash": func(c balance.HashConfig) balance.Policy {
		c.VirtualNodes = 1 << 11
		return balance.NewRingHash(c)
	},
	"rendezvous": balance.NewRendezvous,
	"maglev":     balance.NewMaglev,
}

func TestHashConformance(t *testing.T) {
	for name, policy := range hashed {
		for what, cfg := range map[string]balance.HashConfig{
			"":         {},
			" bounded": {BoundedLoad: 1.25},
			" spill":   {BoundedLoad: 1.25, Spill: 3},
		} {
			t.Run(name+what, func(t *testing.T) {
				balancetest.Policy(t, func() balance.Policy { return policy(cfg) })
			})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/balance/balancetest"
)

// hashed are the hash policies, with tables that are built soon: tests build many.
var hashed = map[string]func(balance.HashConfig) balance.Policy{
	"ring_hash": func(c balance.HashConfig) balance.Policy {
		c.VirtualNodes = 512
		return balance.NewRingHash(c)
	},
	"rendezvous": balance.NewRendezvous,
	"maglev": func(c balance.HashConfig) balance.Policy {
		c.TableSize = 8191
		return balance.NewMaglev(c)
	},
}

// slackOf is how far the shares of a policy may be off: a ring is as even as
// chance makes it, and maglev moves keys between others.
func slackOf(name string) balancetest.Option {
	switch name {
	case "ring_hash":
		return balancetest.Slack(0.35)
	case "maglev":
		return balancetest.Collateral(0.02)
	}
	return balancetest.Slack(0.05)
}

func TestHashConformance(t *testing.T) {
	for name, policy := range hashed {
		for what, cfg := range map[string]balance.HashConfig{
			"bounded": {BoundedLoad: 1.25},
			"spill":   {BoundedLoad: 1.25, Spill: 3},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				balancetest.Policy(t, func() balance.Policy { return policy(cfg) }, slackOf(name))
			})
		}
	}
}

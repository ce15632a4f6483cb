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

// Without a bound TestConformance asks them.
func TestHashConformance(t *testing.T) {
	for name, policy := range hashed {
		t.Run(name, func(t *testing.T) {
			build := func() balance.Policy { return policy(balance.HashConfig{BoundedLoad: 1.25}) }
			conform(t, build, slackOf(name))
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/balance/balancetest"
)

// conform is the whole suite; under the race detector, which makes one goroutine
// ten times slower for nothing, the part that has several.
func conform(t *testing.T, build func() balance.Policy, options ...balancetest.Option) {
	if raceEnabled {
		balancetest.Concurrent(t, build, options...)
		return
	}
	balancetest.Policy(t, build, options...)
}

func TestConformance(t *testing.T) {
	eachPolicy(func(name string, build func() balance.Policy) {
		if name == "maglev" && raceEnabled { // which makes the default table slow to build
			build = func() balance.Policy { return hashed[name](balance.HashConfig{}) }
		}
		t.Run(name, func(t *testing.T) { conform(t, build, slackOf(name)) })
	})
	for name, choices := range map[string]int{"p2c of 3": 3, "p2c of all": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			conform(t, func() balance.Policy { return balance.NewP2C(choices) })
		})
	}
}

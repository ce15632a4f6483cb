// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/weirlb/weir/balance"
)

// keyed are the policies that place equal keys on equal backends.
var keyed = []string{"ring_hash", "rendezvous", "maglev"}

var ringGrowth = &Scenario{
	Name:  "ring-growth",
	Title: "keys that change owner when a backend comes, and when one leaves",
	Doc: []string{
		"Shows how evenly each hash policy spreads keys, and how many of them change owner when a pool grows by one backend or loses one. Modulo hashing (key mod n) stands beside them as what people write by hand.",
		"Look at 'moved': the least possible is 1/(n+1), the newcomer's own share. What moves beyond that ('innocent') changes hands between backends that both stay: each such key is a cold cache for nothing.",
		"What to learn: rendezvous and ring_hash move only what they must; maglev moves a few keys more, up to one in a hundred with hundreds of backends, and is as even as rendezvous; ring_hash is the least even, and more virtual nodes make it better. Modulo moves nearly everything.",
	},
	Defaults: Options{Policies: keyed, Requests: 100_000, Backends: 10},
	counts:   "keys", perBackend: 10_000,
	columns: []Column{
		{Name: "max_mean", Title: "max/mean", Unit: Factor},
		{Name: "left", Title: "moved, one leaves", Unit: Part},
		{Name: "innocent", Title: "innocent", Unit: Part},
		{Name: "moved", Title: "moved, one more", Unit: Part, Chart: true},
	},
	variants: ringVariants,
	notes: func(o *Options) []string {
		return []string{fmt.Sprintf("The least that can move when one is added is %s, when one leaves %s, both on average: who comes or goes may have a little more or less. "+
			"'innocent' is the part of the keys that one more backend moves between two old ones. "+
			"The max/mean of 'modulo' is what chance alone makes of so many keys: what lies above it is the policy's own.",
			Show(1/float64(o.Backends+1), Part), Show(1/float64(o.Backends), Part))}
	},
}

func ringVariants(o *Options) []variant {
	out := []variant{{"modulo", func(seed uint64) sample {
		return ringSample(o, seed, func(n, without int) func(uint64) int {
			var left []int
			for i := range n {
				if i != without {
					left = append(left, i)
				}
			}
			return func(key uint64) int { return left[key%uint64(len(left))] }
		})
	}}}
	for _, name := range o.Policies {
		out = append(out, variant{name, func(seed uint64) sample {
			return ringSample(o, seed, func(n, without int) func(uint64) int { return owners(name, n, without) })
		}})
	}
	return out
}

// owners returns who the policy gives a key among n idle backends less one
// (none when negative), as the backend's number.
func owners(policy string, n, without int) func(uint64) int {
	p, err := balance.New(policy, balance.Options{})
	if err != nil {
		panic(err) // Check knows the names
	}
	at := map[*balance.Backend]int{}
	var members []balance.Member
	for i := range n {
		if i != without {
			id := fmt.Sprintf("s%d", i+1)
			b := balance.NewBackend(id, id)
			at[b] = i
			members = append(members, balance.Member{Backend: b, Weight: 1})
		}
	}
	picker := p.Build(balance.NewSet(members, 1, false))
	return func(key uint64) int {
		b, ok := picker.Pick(balance.Request{Key: key, HasKey: true, Rand: key ^ 0x9e3779b97f4a7c15})
		if !ok {
			return -1
		}
		return at[b]
	}
}

// ringSample counts where keys are before and after.
func ringSample(o *Options, seed uint64, build func(n, without int) func(uint64) int) sample {
	before, grown, shrunk := build(o.Backends, -1), build(o.Backends+1, -1), build(o.Backends, o.Backends/2)
	counts := make([]int, o.Backends)
	moved, innocent, left := 0, 0, 0
	// How even shares are shows late, what moves shows early.
	followed := min(o.Requests, 1_000_000)
	for i := range o.Requests {
		key := mix(seed<<32 ^ uint64(i)) //nolint:gosec // i is not negative
		was := before(key)
		counts[was]++
		if i >= followed {
			continue
		}
		if is := grown(key); was != is {
			if moved++; is != o.Backends {
				innocent++
			}
		}
		if was != shrunk(key) {
			left++
		}
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	part := func(n int) float64 { return float64(n) / float64(followed) }
	return sample{figures: []float64{
		float64(most) * float64(o.Backends) / float64(o.Requests), part(left), part(innocent), part(moved),
	}}
}

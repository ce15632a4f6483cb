// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/balance"
)

// TestTableAgainstMap plays arbitrary adds, removals and touches against a map and a
// list. Hashes come from few values, so that probes run over each other and round
// the end of the table.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		known := map[flowKey]*Flow{}
		var q queue
		var order []*Flow
		spread := rapid.SampledFrom([]uint64{0, 1, 3, 63, 1 << 20}).Draw(t, "spread")
		keys := rapid.IntRange(1, 400).Draw(t, "keys")
		hash := func(k *flowKey) uint64 { return ^uint64(0) - k.rest&spread } // the last places first
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			k := flowKey{rest: uint64(rapid.IntRange(0, keys).Draw(t, "key"))}
			k.client[1] = k.rest
			f := tab.find(&k, hash(&k))
			if f != known[k] {
				t.Fatalf("found %p, want %p", f, known[k])
			}
			switch {
			case f == nil:
				f = &Flow{key: k, hash: hash(&k)}
				tab.add(f)
				q.push(f)
				known[k], order = f, append(order, f)
			case rapid.Bool().Draw(t, "touch"):
				f.touch(balance.Instant(1))
				order = append(slices.DeleteFunc(order, func(o *Flow) bool { return o == f }), f)
			default:
				tab.remove(f)
				f.drop()
				delete(known, k)
				order = slices.DeleteFunc(order, func(o *Flow) bool { return o == f })
			}
			if tab.n != len(known) {
				t.Fatalf("%d in the table, want %d", tab.n, len(known))
			}
			if 4*tab.n > 3*len(tab.entries) {
				t.Fatalf("%d of %d places are taken", tab.n, len(tab.entries))
			}
		}
		for k, f := range known {
			if tab.find(&k, hash(&k)) != f {
				t.Fatalf("%v is lost", k)
			}
		}
		i := 0
		for f := q.first; f != nil; f = f.after {
			if i == len(order) || f != order[i] || (i > 0) != (f.before != nil) {
				t.Fatalf("place %d of the queue is another's", i)
			}
			i++
		}
		if i != len(order) {
			t.Fatalf("%d in the queue, want %d", i, len(order))
		}
	})
}

// TestTableShrinks: what a flood has grown is given back.
func TestTableShrinks(t *testing.T) {
	var tab table
	tab.seed = seed{1, 2, 3}
	var all []*Flow
	for i := range 10000 {
		f := &Flow{key: flowKey{rest: uint64(i)}}
		f.hash = tab.seed.hash(&f.key)
		tab.add(f)
		all = append(all, f)
	}
	for _, f := range all {
		tab.remove(f)
	}
	if len(tab.entries) > 64 {
		t.Errorf("%d places for no flow", len(tab.entries))
	}
}

// TestHashSpreads: clients that differ in one bit, and sequences of addresses and
// ports as floods have them, fall over all places alike.
func TestHashSpreads(t *testing.T) {
	s := seed{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb}
	for name, key := range map[string]func(i int) flowKey{
		"ports":     func(i int) flowKey { return flowKey{client: [2]uint64{0, 0xffff7f000001}, rest: uint64(i)} },
		"addresses": func(i int) flowKey { return flowKey{client: [2]uint64{0, 0xffff0a000000 + uint64(i)}, rest: 53} },
		"networks":  func(i int) flowKey { return flowKey{client: [2]uint64{uint64(i) << 16, 1}, rest: 53} },
		"local":     func(i int) flowKey { return flowKey{client: [2]uint64{1, 1}, local: [2]uint64{0, uint64(i)}} },
	} {
		var n [256]int
		const keys = 256 * 256
		for i := range keys {
			k := key(i)
			n[s.hash(&k)&255]++
		}
		for i, v := range n {
			if v < 160 || v > 360 { // 256 expected, six standard deviations of 16 either way
				t.Errorf("%s: %d keys in place %d, want about 256", name, v, i)
				break
			}
		}
	}
}

func TestKeyAddress(t *testing.T) {
	for _, a := range []string{"192.0.2.1:53", "[2001:db8::1]:443", "[::1]:1"} {
		ap := netip.MustParseAddrPort(a)
		k := flowKey{client: words(ap.Addr()), rest: uint64(ap.Port())}
		if k.from() != ap {
			t.Errorf("%v comes back as %v", ap, k.from())
		}
	}
}

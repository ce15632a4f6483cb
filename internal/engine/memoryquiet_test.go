// SPDX-License-Identifier: Apache-2.0

package engine

import "testing"

// TestQuiet plays allocations, second by second, and where it collects.
func TestQuiet(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		held uint64
		each []uint64 // allocated in each second
		want []int    // seconds in which it collects
	}{
		"a burst":         {30 * mib, []uint64{60 * mib, 0, 0, 0, 0, 0, 0, 0, 0}, []int{5}},
		"two bursts":      {30 * mib, []uint64{60 * mib, 0, 0, 0, 0, 0, 60 * mib, 0, 0, 0, 0, 0}, []int{5, 11}},
		"always busy":     {30 * mib, []uint64{2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib, 2 * mib}, nil},
		"not worth it":    {30 * mib, []uint64{10 * mib, 0, 0, 0, 0, 0, 0, 0}, nil},
		"a large heap":    {4000 * mib, []uint64{60 * mib, 0, 0, 0, 0, 0, 0, 0}, nil},
		"never quite off": {30 * mib, []uint64{60 * mib, 0, 0, 0, 2 * mib, 0, 0, 0, 0, 0, 0}, []int{9}},
	} {
		t.Run(name, func(t *testing.T) {
			var q quiet
			var got []int
			all := uint64(0)
			for i, n := range c.each {
				all += n
				if q.step(all, c.held) {
					got = append(got, i)
				}
			}
			if len(got) != len(c.want) || len(got) > 0 && got[len(got)-1] != c.want[len(got)-1] {
				t.Errorf("collects at %v, want %v", got, c.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"testing"
	"time"
)

// TestPace: whatever the number and the time, all are done at the end, and at no time
// more than one away from the even share.
func TestPace(t *testing.T) {
	for _, n := range []int{0, 1, 3, 7, 100, 10_001} {
		for _, over := range []time.Duration{0, PaceTick, 2 * PaceTick, time.Second, 10 * time.Second} {
			p := NewPace(over)
			ticks := max(int(over/PaceTick), 1)
			left := n
			for i := 1; ; i++ {
				k, last := p.Next(left)
				left -= k
				if even := float64(n) * float64(i) / float64(ticks); float64(n-left) > even+1 || float64(n-left) < even-1 {
					t.Errorf("%d over %v: %d after tick %d of %d", n, over, n-left, i, ticks)
				}
				if last != (i == ticks) {
					t.Errorf("%d over %v: last %v at tick %d of %d", n, over, last, i, ticks)
				}
				if last {
					break
				}
			}
			if left != 0 {
				t.Errorf("%d over %v: %d are left", n, over, left)
			}
			if k, last := p.Next(5); k != 5 || !last {
				t.Error("what comes later is not due at once")
			}
		}
	}
}

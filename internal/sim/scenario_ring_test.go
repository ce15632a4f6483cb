// SPDX-License-Identifier: Apache-2.0

package sim

import "testing"

// What is known of the algorithms must come out: modulo moves n/(n+1), the hash
// policies about 1/(n+1), of which rendezvous and ring_hash nothing in vain.
// The bounds hold for 20,000 keys: three standard deviations of 1/11 are 0.006.
func TestRingGrowth(t *testing.T) {
	r := ringGrowth.Run(Options{Seeds: max(1, 5/slower), Requests: 20_000})
	for _, c := range []struct {
		row, column string
		low, high   float64
	}{
		{"modulo", "moved", 0.90, 0.92},
		{"rendezvous", "moved", 1.0/11 - 0.006, 1.0/11 + 0.006},
		{"rendezvous", "innocent", 0, 0},
		{"rendezvous", "left", 0.1 - 0.006, 0.1 + 0.006},
		{"ring_hash", "innocent", 0, 0},
		{"ring_hash", "max_mean", 1, 1.35},
		{"maglev", "innocent", 0, 0.02},
		{"maglev", "max_mean", 1, 1.07},
		{"maglev", "moved", 1.0/11 - 0.006, 1.0/11 + 0.026},
	} {
		if got := r.Cell(c.row, c.column); !(got.Low >= c.low && got.High <= c.high) {
			t.Errorf("%s %s: %+v, want %v to %v", c.row, c.column, got, c.low, c.high)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"time"
)

// The charge of failed attempts is packed into one word so that it can be
// updated by compare-and-swap: the upper half holds a float32 (attempts still
// charged), the middle the instant of the last update and the mean it decays
// with. See Charge.
func (b *Backend) charge(now Instant, mean, elapsed time.Duration) {}

func (b *Backend) ghostAt(g uint64, now Instant) float64 {
	return float64(math.Float32frombits(uint32(g >> 32)))
}

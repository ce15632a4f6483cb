// SPDX-License-Identifier: Apache-2.0

package health

import "time"

// SuccessRate ejects backends whose answers fail far more often than those of
// the pool's others. The zero value is on with the defaults.
type SuccessRate struct {
	Off         bool
	Factor      float64 // standard deviations below the mean; 0: 1.9
	MinRequests int     // requests in the window that a backend must have had to be judged; 0: 100
	// MinBackends is how many such backends the mean needs; with fewer, down to
	// two, a backend is compared with the pooled rate of the others. 0: 5.
	MinBackends int
}

// Latency ejects backends that are dead slow beside the pool's others. The zero
// value is on with the defaults.
type Latency struct {
	Off         bool
	Factor      float64       // the backend's median over the median of the others' medians; 0: 10
	Above       time.Duration // and at least so much above it; 0: 100ms
	MinRequests int           // answers in the window that a backend must have given to be judged; 0: 100
}

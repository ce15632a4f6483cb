// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

// slower divides what the tests run while the race detector watches: it costs
// ten times the time and has nothing to find in a package without goroutines.
// Statistical tests then have fewer seeds and wider tolerances.
const slower = 10

// SPDX-License-Identifier: Apache-2.0

// Package balancetest is the conformance suite for balance.Policy
// implementations, weir's own and anyone else's:
//
//	func TestMyPolicy(t *testing.T) {
//		balancetest.Policy(t, func() balance.Policy { return mypolicy.New() })
//	}
//
// It checks what every policy promises, whatever its idea of a good choice:
// work follows the weights, idle and loaded; who may not be chosen is not;
// share admits as much as it says; nothing is allocated; membership may change
// and everything may happen at once. Run it under the race detector too.
//
// Policies that choose by a key get a fresh random key with every request, so
// that over many requests they owe the same shares as the others.
//
// Every random choice comes from one seed, which is logged and can be given
// again with Seed; without it the seed is fixed, so a failure repeats.
package balancetest

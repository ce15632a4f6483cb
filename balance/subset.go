// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math/bits"
	"slices"
)

// Subset returns which size of a fleet's backends one balancer should use, as
// positions in ids in ascending order, so that many balancers do not each hold
// connections to every backend. All of them are returned when size is not below
// their number, none when size is 0 or less. ids must be distinct; their order
// does not matter. It costs O(n log n), at a change of membership.
//
// With count > 0, index (0 <= index < count; others wrap around) is this
// balancer's place among count balancers, all of which are given the same ids
// and size. The backends stand in a ring by the order of their ids, which are
// hashes, and balancer i takes the size of them that follow position
// floor(i x n / count). That spreads the beginnings as evenly as integers allow,
// and hence
//
//   - coverage: any two backends are used by numbers of balancers that differ by
//     at most 1, and these are count x size / n rounded down or up;
//   - churn: one backend more or less changes at most 2 members of any subset:
//     one for the newcomer or for what takes the place of the one lost, one
//     because the beginnings move by one position; mostly it is none or one;
//   - another count moves beginnings by up to n / count positions.
//
// (Deterministic subsetting as in Beyer et al., "Site Reliability Engineering",
// O'Reilly 2016, chapter 20, covers as evenly when numbers divide, but shuffles
// with n, so that one backend more gives every balancer another subset.)
//
// What is even is the number of balancers, not the load: with few per backend, 2
// instead of 1 is twice the load. count x size / n should be 10 or more.
//
// With count 0 or less nothing is known of the others, and the subset is the size
// backends with the highest hash of (instance, id): rendezvous hashing (Thaler and
// Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
// Transactions on Networking 6(1), 1998). A backend more or less changes at most
// one member of a subset. How many balancers use a backend is then binomial: with
// 100 balancers of 20 among 100 backends, 20 on average with a standard deviation
// of 4, so some have 10 and some 30.
//
// Example: 10 backends, 5 balancers of 4. They begin at 0, 2, 4, 6 and 8, and
// each backend is in exactly 2 subsets.
func Subset(ids []BackendID, size, index, count int, instance uint64) []int {
	n := len(ids)
	size = min(max(size, 0), n)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	if size == n {
		return order
	}
	if count > 0 {
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(ids[a], ids[b]) })
		index = (index%count + count) % count
		high, low := bits.Mul64(uint64(index), uint64(n))
		begin, _ := bits.Div64(high, low, uint64(count))
		chosen := make([]int, size)
		for i := range chosen {
			chosen[i] = order[(int(begin)+i)%n]
		}
		slices.Sort(chosen)
		return chosen
	}
	seed := splitmix64(instance)
	rank := make([]uint64, n)
	for i, id := range ids {
		rank[i] = splitmix64(seed ^ uint64(id))
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rank[b], rank[a]), cmp.Compare(ids[a], ids[b]))
	})
	chosen := order[:size:size]
	slices.Sort(chosen)
	return chosen
}

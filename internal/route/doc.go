// SPDX-License-Identifier: Apache-2.0

// Package route chooses the route of a request. Stage 2 of 5; receives the
// head of a request from the codec; hands the number of the chosen rule, and
// the path to forward, to l7.
//
// # Order
//
// Rules are ordered by host (exact, then wildcards with the longest first, then
// rules without a host), then by path (exact, then prefixes with the longest
// first), then as they were given. The first whose conditions all hold wins:
// when the rules of an exact host do not match, those of its wildcards are
// looked at, and those without a host last.
//
// # Paths
//
// A path is compared, and forwarded, in its normal form (NormalizePath), so
// that weir and the backend cannot read it differently. The query is never
// touched. Paths that have no normal form are answered with 400.
//
// A rule with Raw is compared with the original bytes instead, and they are
// forwarded. Raw and other rules share the one order above: each is compared
// with its own reading of the path, and the first that matches wins. A path
// without a normal form can therefore only go to a raw rule, and only if it
// could not have been meant for a rule before that: it is read once more as the
// most careless backend would (encoded slashes and backslashes are separators),
// and when a rule that is not raw and comes first matches this reading, the
// answer is 400. So a raw catch-all is no way around a rule for `/admin`.
package route

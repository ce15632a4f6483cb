// SPDX-License-Identifier: Apache-2.0

// Package balancetest is the conformance suite for balance.Policy
// implementations, weir's own and anyone else's.
package balancetest

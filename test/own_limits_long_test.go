// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

// ownLong has all cases of weir running short of something, not one of each kind.
const ownLong = true

// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

// Sizes of `make test-long`.
const (
	raceTrials = 2000
	postCount  = 20000
)

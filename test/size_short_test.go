// SPDX-License-Identifier: Apache-2.0

//go:build !long

package test

// Sizes of `make test`: one short case of each promise.
const (
	raceTrials = 100
	postCount  = 2000
)

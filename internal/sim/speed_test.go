// SPDX-License-Identifier: Apache-2.0

//go:build !race

package sim

// slower divides what the tests run, see speed_race_test.go.
const slower = 1

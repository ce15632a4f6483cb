// SPDX-License-Identifier: Apache-2.0

//go:build race

package balance_test

// raceEnabled: timings mean nothing under the race detector.
const raceEnabled = true

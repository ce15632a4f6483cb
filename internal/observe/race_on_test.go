// SPDX-License-Identifier: Apache-2.0

//go:build race

package observe

// raceEnabled: the detector makes sync.Pool drop items at random.
const raceEnabled = true

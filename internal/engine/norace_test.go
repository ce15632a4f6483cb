// SPDX-License-Identifier: Apache-2.0

//go:build !race

package engine

// raceEnabled: what takes long takes ten times as long under the race detector.
const raceEnabled = false

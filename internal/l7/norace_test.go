// SPDX-License-Identifier: Apache-2.0

//go:build !race

package l7

const raceEnabled = false

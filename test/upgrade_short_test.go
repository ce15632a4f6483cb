// SPDX-License-Identifier: Apache-2.0

//go:build !long

package test

const (
	upgradeTimes   = 3
	upgradeStreams = 50
)

// A successor that hangs takes a minute to be given up.
var hangingUpgrades []brokenUpgrade

// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

const (
	upgradeTimes   = 20
	upgradeStreams = 50
)

var hangingUpgrades = []brokenUpgrade{
	{name: "hangs", script: "#!/bin/sh\nsleep 600\n", say: "it was not built within 1m0"},
	{name: "hangs at the end", script: "#!/bin/sh\n${WEIR} check -c \"$3\" >&2\nexec sleep 600\n", say: "it was not built within 1m0"},
}

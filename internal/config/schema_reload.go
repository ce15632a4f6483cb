// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"time"
)

// Reload says when the configuration is read again without being asked.
type Reload struct {
	Watch time.Duration // how often its files are looked at; 0: never
}

// watchOn is what `watch: on` means.
const watchOn = time.Second

var reloadFields = []field[Reload]{
	key("watch", "off", duration(100*time.Millisecond, time.Hour), func(r *Reload) *time.Duration { return &r.Watch },
		"reload when the file was written; `on`, or how often it is looked at: on is every second").off("off", 0).word("on", watchOn),
}

// socketName checks the NAME of systemd:NAME: what FileDescriptorName= of a
// .socket unit may be (systemd.socket(5)).
func socketName(s string) (what, fix string) {
	const example = "write FileDescriptorName= of the .socket unit, such as systemd:web; without one it is the unit's name, systemd:weir.socket"
	switch {
	case s == "":
		return "systemd: has no name behind it", example
	case len(s) > 255:
		return "the name of a socket has at most 255 characters", example
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }):
		return quote(s) + " is not the name of a socket", example
	}
	return "", ""
}

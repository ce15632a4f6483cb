// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"strings"
)

// optionPattern matches a URL with options behind it, as nginx and HAProxy have
// them: weight=3, backup, max_fails=2.
var optionPattern = regexp.MustCompile(`^(\S+?),?((?:\s+(?:[a-z_]+=\S+|backup|down|check)[,;]?)+)$`)

// optionsFix is what to write instead of such a line.
func optionsFix(s string) string {
	m := optionPattern.FindStringSubmatch(s)
	out, elsewhere := `write {url: "`+m[1]+`"`, ""
	for _, o := range strings.Fields(m[2]) {
		name, value, _ := strings.Cut(strings.TrimRight(o, ",;"), "=")
		switch name {
		case "weight", "zone", "id", "priority":
			out += ", " + name + ": " + value
		case "backup":
			out += ", backup: true"
		default:
			elsewhere = "; what else is said there has keys of the pool"
		}
	}
	return out + "}" + elsewhere
}

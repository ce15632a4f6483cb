// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

// stateField names the file that outlives the process.
var stateField = key("state_file", "none", text("file", stateName), func(p *Plan) *string { return &p.StateFile },
	"file that keeps the operator's word, health and what was learned over a restart; its folder must be writable").off("none", "")

// stateName checks the name of a file that is replaced as a whole.
func stateName(s string) (what, fix string) {
	if strings.HasSuffix(s, "/") {
		return quote(s) + " is a folder", "name a file in it, such as " + s + "state.json"
	}
	return "", ""
}

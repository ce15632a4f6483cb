// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// A line that is shown with a fault holds whatever else stands in it, and often
// before it is known what that is: a text that is no YAML has no keys yet. So its
// secrets are found by their looks, rather too many than too few.

// lineSecrets match a secret in a line; the last group of each is hidden.
var lineSecrets = []*regexp.Regexp{
	// A password in a URL.
	regexp.MustCompile(`(?i)[a-z][a-z0-9+.-]*://[^/@\s"':]*:([^/@\s"']+)@`),
	// Credentials behind their scheme, as in secretValue.
	regexp.MustCompile(`(?i)\b(?:bearer|basic|digest|negotiate|token|apikey|aws4-hmac-sha256) +([^\s"',}\]]+)`),
	regexp.MustCompile(`\b(eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]*)`),
	// The value of a key that is called like a secret.
	regexp.MustCompile(`(?i)([a-z0-9_-]*(?:` + strings.Join(secretWords, "|") + `)[a-z0-9_-]*)["']?\s*:\s+` +
		`("(?:[^"\\]|\\.)*"?|'[^']*'?|\[[^\]]*\]?|[^\s"'\[{,}\]#][^,}\]]*)`),
}

// openKey reports a key of a configuration that is called like a secret and names
// a file, a part of a request, or sticky's cookie; the field of that name holds
// pairs.
func openKey(name, value string) bool {
	lower := strings.ToLower(name)
	return lower == "key" || strings.HasSuffix(lower, "_file") || name == "cookie" && !strings.Contains(value, "=")
}

// hideLine replaces the secrets in a line by as many stars as they have
// characters, and returns them.
func hideLine(line string) (string, []string) {
	var found []string
	for i, re := range lineSecrets {
		var b strings.Builder
		at := 0
		for _, m := range re.FindAllStringSubmatchIndex(line, -1) {
			from, to := m[len(m)-2], m[len(m)-1]
			if i == len(lineSecrets)-1 && openKey(line[m[2]:m[3]], line[from:to]) {
				continue
			}
			for _, quote := range []byte(`"'`) {
				if line[from] == quote && to > from+1 && line[to-1] == quote {
					from, to = from+1, to-1
				}
			}
			value := line[from:to]
			if s := strings.TrimSpace(value); len(s) >= minSecret && strings.Trim(s, "*") != "" {
				found = append(found, s)
			}
			b.WriteString(line[at:from])
			b.WriteString(strings.Repeat("*", utf8.RuneCountInString(value)))
			at = to
		}
		if at > 0 {
			b.WriteString(line[at:])
			line = b.String()
		}
	}
	return line, found
}

// lineHider is hideLine that looks once at each line: many faults may lie in one
// that is long. The zero value is ready.
type lineHider struct {
	at    Position // file and line of what follows
	line  string
	found []string
}

func (h *lineHider) hide(p Position, line string) (string, []string) {
	if p.Col = 0; h.at != p || p.Line == 0 {
		h.at = p
		h.line, h.found = hideLine(line)
	}
	return h.line, h.found
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/logline"
)

// expand replaces ${NAME} and ${NAME:-default} in a scalar; `$${` stands for a
// literal `${`. As in the shell, the default also replaces an empty value.
// Nothing is expanded twice. what and fix are empty when all went well.
func expand(s string, env func(string) (string, bool)) (out, what, fix string) {
	if !strings.Contains(s, "${") {
		return s, "", ""
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			b.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${"):
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return "", "${ is not closed", "write ${NAME}, or $${ for a literal ${"
			}
			inner := s[i+2 : i+end]
			i += end + 1
			name, fallback, hasFallback := strings.Cut(inner, ":-")
			if !isEnvName(name) {
				return "", quote("${"+inner+"}") + " does not name an environment variable", "write ${NAME} or ${NAME:-default}, or $${ for a literal ${"
			}
			value, set := env(name)
			switch {
			case hasFallback && value == "":
				value = fallback
			case !set:
				fix := "set it, or give a default as in ${" + name + ":-default}"
				if slices.Contains(logline.Names(), name) || strings.HasPrefix(name, "http_") {
					fix += "; what an access log's line shows is $" + name + ", or $${" + name + "} where a letter follows"
				}
				return "", "the environment variable " + name + " is not set", fix
			}
			b.WriteString(value)
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return b.String(), "", ""
}

// protect is the inverse of expand for a text without variables.
func protect(s string) string { return strings.ReplaceAll(s, "${", "$${") }

func isEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

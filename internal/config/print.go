// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// YAML returns the plan as a configuration that parses to an equal plan. With
// minimal it has only what differs from the defaults; without, every key that
// has a value. The environment has been expanded, so it may hold what the
// environment held.
func (p *Plan) YAML(minimal bool) []byte {
	w := &writer{plan: p, full: !minimal}
	ref := defaultsOf(planFields)
	root := writeBlock(w, printOrder(), p, &ref)
	var b strings.Builder
	printPairs(&b, root, "")
	return []byte(b.String())
}

// printOrder is the order in which people write: listeners before pools.
func printOrder() []field[Plan] {
	n := len(planFields)
	out := append([]field[Plan](nil), planFields...)
	out[n-1], out[n-2] = out[n-2], out[n-1]
	return out
}

func printPairs(b *strings.Builder, n *node, indent string) {
	for _, p := range n.pairs {
		b.WriteString(indent)
		b.WriteString(printScalar(p.key))
		b.WriteByte(':')
		printValue(b, p.value, indent+"  ")
	}
}

// printValue prints what stands behind a key, and ends the line.
func printValue(b *strings.Builder, n *node, indent string) {
	if line, ok := inline(n); ok {
		b.WriteString(" " + line + "\n")
		return
	}
	b.WriteByte('\n')
	if n.kind == mapping {
		printPairs(b, n, indent)
		return
	}
	for _, item := range n.items {
		b.WriteString(indent + "-")
		if line, ok := inline(item); ok {
			b.WriteString(" " + line + "\n")
			continue
		}
		// The first key stands on the line of the dash.
		var inner strings.Builder
		printPairs(&inner, item, indent+"  ")
		b.WriteString(" " + strings.TrimPrefix(inner.String(), indent+"  "))
	}
}

// inlineWidth bounds what is written in one line.
const inlineWidth = 72

// inline returns a node in one line if that reads well: values, lists of
// values, and mappings of values.
func inline(n *node) (string, bool) {
	switch n.kind {
	case scalar:
		return printScalar(n), true
	case list:
		var parts []string
		for _, i := range n.items {
			if i.kind != scalar {
				return "", false
			}
			parts = append(parts, printFlow(i))
		}
		line := "[" + strings.Join(parts, ", ") + "]"
		return line, len(line) <= inlineWidth
	default:
		var parts []string
		for _, p := range n.pairs {
			switch {
			case p.value.kind == scalar:
				parts = append(parts, printScalar(p.key)+": "+printFlow(p.value))
			case len(p.value.items)+len(p.value.pairs) == 0:
				line, _ := inline(p.value)
				parts = append(parts, printScalar(p.key)+": "+line)
			default:
				return "", false
			}
		}
		line := "{" + strings.Join(parts, ", ") + "}"
		return line, len(line) <= inlineWidth
	}
}

// printFlow prints a scalar inside [ ] or { }, where more needs quotes.
func printFlow(n *node) string {
	if n.raw == "" && !n.quoted && strings.ContainsAny(n.text, ":{}[],") {
		return quoted(n.text)
	}
	return printScalar(n)
}

func printScalar(n *node) string {
	if n.raw != "" {
		return inQuotes(n.raw)
	}
	if n.quoted || n.text == "" || !plainValue(n.text) {
		return quoted(n.text)
	}
	return n.text
}

// plainValue reports whether a text that is no string (a number, a duration, a
// word) can stand without quotes.
func plainValue(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("./%_-:", c) >= 0:
		default:
			return false
		}
	}
	return strings.IndexByte("%-:.", s[0]) < 0 && s[len(s)-1] != ':'
}

// quoted returns the text in double quotes (YAML 1.2.2 section 7.3.1), with
// what would be taken for a variable protected.
func quoted(s string) string { return inQuotes(protect(s)) }

// inQuotes is quoted for a text in which ${NAME} is a variable.
func inQuotes(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f || r == 0x85 || r == 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == utf8.RuneError:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

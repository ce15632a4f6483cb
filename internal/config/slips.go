// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// syntax reports what the YAML parser refused, with a hint where the text shows
// one of the usual slips.
func (b *builder) syntax(err error) {
	message, pos := "", Position{File: b.src.name, Line: 1, Col: 1}
	var e yaml.Error
	if errors.As(err, &e) {
		message = e.GetMessage() // its Error would print the whole source, slowly
		pos = b.position(e.GetToken())
	} else {
		message = err.Error()
	}
	line := b.src.line(pos.Line)
	for _, slip := range slips {
		if m := slip.pattern.FindStringIndex(line); m != nil {
			pos.Col = utf8.RuneCountInString(line[:m[0]]) + 1
			b.add(pos, utf8.RuneCountInString(line[m[0]:m[1]]), slip.what, slip.fix(line[m[0]:m[1]]))
			return
		}
	}
	if n, what, fix := b.misshapen(&pos, message); what != "" {
		b.add(pos, n, what, fix)
		return
	}
	b.add(pos, 1, "this is not YAML ("+strings.TrimSpace(message)+")", "check the indentation, the colons and the brackets here")
}

// misshapen says in an operator's words what the parser found at a place, and
// how many characters it is about; it may move the place.
func (b *builder) misshapen(pos *Position, message string) (n int, what, fix string) {
	line := b.src.line(pos.Line)
	text := strings.TrimSpace(line)
	all := utf8.RuneCountInString(text)
	indent := utf8.RuneCountInString(line) - utf8.RuneCountInString(strings.TrimLeft(line, " "))
	switch {
	case strings.HasPrefix(text, "//") || strings.HasPrefix(text, "/*"):
		pos.Col = indent + 1
		return 2, quote(text[:2]) + " begins no comment in YAML", "begin comments with #"
	case strings.Contains(message, "end character of"):
		return 1, "the quote that begins here is never closed: " + quote(shortened(line, pos.Col)), "close it with the same quote on the same line"
	case strings.Contains(message, "unknown escape character"):
		return 1, "a backslash means something else in double quotes: " + quote(text), "use single quotes, in which it is only itself"
	case strings.Contains(message, "could not find flow"):
		return 1, "the bracket that begins here is never closed: " + quote(shortened(line, pos.Col)), "close every { with } and every [ with ]"
	case strings.Contains(message, "must be specified"):
		return 1, "a comma or a closing bracket is missing before this: " + quote(shortened(line, pos.Col)), "put a comma between items, and close every { with } and every [ with ]"
	case dashPattern.MatchString(text):
		pos.Col = indent + 1
		return all, quote(text) + " has no space behind its dash", "write - " + text[1:]
	case strings.Count(text, "}") > strings.Count(text, "{") || strings.Count(text, "]") > strings.Count(text, "["):
		return 1, "a bracket is closed here that was never opened: " + quote(text), "remove it"
	case strings.Contains(message, "non-map value") || strings.Contains(message, "unexpected key name"):
		pos.Col = indent + 1
		return all, quote(text) + " is neither a key with a value nor an item of a list", "write " + keyValue(text)
	case strings.Contains(message, "not allowed in this context"):
		return b.misindented(pos)
	}
	return 0, "", ""
}

var (
	dashPattern  = regexp.MustCompile(`^-[^ -]`)
	valuePattern = regexp.MustCompile(`^([a-z_0-9]+)(?: *[:=] *| +)(\S.*)$`)
)

// keyValue is what a line without a proper colon was probably meant to be.
func keyValue(text string) string {
	if m := valuePattern.FindStringSubmatch(text); m != nil {
		return m[1] + ": " + m[2]
	}
	return "key: value, with a colon and a space"
}

// misindented finds the line at or below a place that fits none above it.
func (b *builder) misindented(pos *Position) (n int, what, fix string) {
	// The parser names the line, or the value that the line below cannot belong to.
	for _, at := range []int{pos.Line, pos.Line + 1} {
		line := b.src.line(at)
		text := strings.TrimLeft(line, " ")
		if text == "" || text[0] == '#' {
			continue
		}
		indent := len(line) - len(text)
		levels, above := b.levels(at)
		if slices.Contains(levels, indent) || len(levels) == 0 || indent > levels[len(levels)-1] && strings.HasSuffix(above, ":") {
			continue
		}
		text = strings.TrimSpace(text)
		*pos = Position{File: pos.File, Line: at, Col: indent + 1}
		n = utf8.RuneCountInString(text)
		if indent > levels[len(levels)-1] {
			return n, quote(text) + " is indented below " + quote(above) + ", which has a value already",
				"begin both in the same column, or move the value away from the key above"
		}
		near := make([]string, 0, len(levels))
		for _, l := range levels {
			near = append(near, itoa(l+1))
		}
		return n, quote(text) + " begins in column " + itoa(indent+1) + ", where nothing above it begins",
			"begin it in the column of what it belongs beside: " + oneOf(near)
	}
	return 0, "", ""
}

// levels returns the indents that are open above a line, the outermost first,
// and the text of the last line above it.
func (b *builder) levels(at int) (levels []int, above string) {
	for i := 1; i < at; i++ {
		line := b.src.line(i)
		text := strings.TrimLeft(line, " ")
		if text == "" || text[0] == '#' || strings.HasPrefix(text, "---") {
			continue
		}
		above = strings.TrimSpace(text)
		indent := len(line) - len(text)
		for len(levels) > 0 && levels[len(levels)-1] >= indent {
			levels = levels[:len(levels)-1]
		}
		levels = append(levels, indent)
		for {
			rest, dash := strings.CutPrefix(text, "- ")
			if !dash {
				break
			}
			rest = strings.TrimLeft(rest, " ")
			indent += len(text) - len(rest)
			levels, text = append(levels, indent), rest
		}
	}
	return levels, above
}

// shortened returns what a line has from a column on.
func shortened(line string, col int) string { return strings.TrimSpace(skipRunes(line, col-1)) }

// oddIndent finds lines that begin with white space other than spaces, which
// looks like an indent and is none. Tabs the parser refuses in a better place.
func (b *builder) oddIndent() bool {
	for i, line := range b.src.lines {
		for col, r := range []rune(line) {
			if r == ' ' || r == '\t' {
				continue
			}
			if unicode.IsSpace(r) || r == '\u200b' || r == '\ufeff' {
				b.add(Position{File: b.src.name, Line: i + 1, Col: col + 1}, 1,
					"the line is indented with a space that is no plain one: "+quote(strings.TrimSpace(line)), "type the spaces anew; pasting from a web page often brings such ones")
				return true
			}
			break
		}
	}
	return false
}

var slips = []struct {
	pattern *regexp.Regexp
	what    string
	fix     func(match string) string
}{
	{regexp.MustCompile(`^ *\t[ \t]*`), "YAML is not indented with tabs", func(string) string { return "use spaces" }},
	{regexp.MustCompile(`(^|[^"'])\$\{[^}"']*\}`), "inside { } and [ ] YAML reads ${...} as its own", func(m string) string {
		return `write "` + m[strings.IndexByte(m, '$'):] + `" in quotes`
	}},
	{regexp.MustCompile(`\[[0-9a-fA-F:.]*\]:[0-9]+`), "YAML reads an unquoted [ as the start of a list", func(m string) string { return `write "` + m + `" in quotes` }},
	{regexp.MustCompile(`\*[ ,\]}]|\*$|\*\.[A-Za-z0-9.-]*`), "YAML reads an unquoted * as an alias", func(m string) string {
		return `write "` + strings.TrimRight(m, " ,]}") + `" in quotes`
	}},
	{regexp.MustCompile(`[\[,{:] *:[0-9]+`), "in [ ] and { } YAML reads an unquoted colon as its own", func(m string) string {
		return `write "` + strings.TrimLeft(m[1:], " ") + `" in quotes`
	}},
	{regexp.MustCompile("[@`][^ ,]*"), "YAML has no text that begins like this", func(m string) string { return `write "` + m + `" in quotes` }},
	{regexp.MustCompile(`%[^ ,]*`), "YAML has no text that begins like this", func(m string) string { return `write "` + m + `" in quotes` }},
}

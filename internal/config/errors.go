// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fault is one thing that keeps a configuration from running.
type Fault struct {
	Pos  Position
	What string // what is wrong
	Fix  string // how to settle it
	Line string // the line of the text, empty when there is none
	Len  int    // how many characters from Pos.Col on are meant, at least 1
}

// Errors is every fault of a configuration, in the order of the text.
type Errors struct {
	Faults []Fault
	More   int // faults beyond the first maxFaults, not kept
}

// maxFaults bounds what is kept: beyond it a file is not a configuration with
// mistakes but something else.
const maxFaults = 500

// Error returns one paragraph for each fault: `file:line:col: what: fix`, then
// the line with a mark under the place.
func (e *Errors) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.String())
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\nand %d more", e.More)
	}
	return b.String()
}

// String returns the fault as it is shown: one line, and the line of the text
// with a mark when there is one.
func (f Fault) String() string {
	return f.Pos.String() + f.What + ": " + f.Fix + excerpt(f.Line, f.Pos, f.Len)
}

// String returns the warning in the form of a Fault.
func (w Warning) String() string {
	return w.Pos.String() + "warning: " + w.Text + " [" + w.Name + "]" + excerpt(w.Line, w.Pos, 1)
}

// String returns "file:line:col: ", what is known of it, or nothing.
func (p Position) String() string {
	switch {
	case p.Line > 0:
		return fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Col)
	case p.File != "":
		return p.File + ": "
	default:
		return ""
	}
}

// excerptWidth bounds how much of a long line is shown.
const excerptWidth = 120

// excerpt shows the line with a mark under the place. Tabs become spaces, so
// that the mark is where it should be.
func excerpt(line string, pos Position, n int) string {
	if line == "" || pos.Line == 0 {
		return ""
	}
	// Only the part that is shown is looked at: a line may be very long.
	from, cut := 0, ""
	if pos.Col-1 > excerptWidth*2/3 {
		from, cut = pos.Col-1-excerptWidth/3, "..."
	}
	line = skipRunes(line, from)
	shown, tail := line, ""
	if rest := skipRunes(line, excerptWidth); rest != "" {
		shown, tail = line[:len(line)-len(rest)], "..."
	}
	shown = strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, shown)
	to := from + utf8.RuneCountInString(shown)
	at := min(max(pos.Col-1, from), to)
	n = min(max(n, 1), max(to-at, 1))
	gutter := fmt.Sprintf("%5d | ", pos.Line)
	return "\n" + gutter + cut + shown + tail +
		"\n" + strings.Repeat(" ", len(gutter)-2) + "| " + strings.Repeat(" ", len(cut)+at-from) + strings.Repeat("^", n)
}

// skipRunes returns what follows the first n characters.
func skipRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[i:]
		}
		n--
	}
	return ""
}

// source is the text that faults point into.
type source struct {
	name  string
	lines []string

	at    int    // the line that chars holds
	chars []rune // kept, because thousands of values may lie in one line
}

// runes returns the characters of line n. The slice is valid until the next call.
func (s *source) runes(n int) []rune {
	if s.at != n {
		s.at, s.chars = n, []rune(s.line(n))
	}
	return s.chars
}

func newSource(name, text string) *source {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return &source{name: name, lines: lines}
}

// line returns line n, counted from 1, or nothing.
func (s *source) line(n int) string {
	if s == nil || n < 1 || n > len(s.lines) {
		return ""
	}
	return s.lines[n-1]
}

// faults collects what is wrong.
type faults struct {
	src  *source   // the text that is read
	all  []*source // of several files, in the order of reading; else nil
	list []Fault
	more int

	secrets    []string // values that no message may show
	envSecrets []string // those of them that come from the environment
}

// line returns the line of a place.
func (f *faults) line(p Position) string {
	if i := f.file(p.File); i >= 0 {
		return f.all[i].line(p.Line)
	}
	return f.src.line(p.Line)
}

// file returns where in all a file is, or -1.
func (f *faults) file(name string) int {
	return slices.IndexFunc(f.all, func(s *source) bool { return s.name == name })
}

// compare orders places as they are read.
func (f *faults) compare(a, b Position) int {
	if a.File != b.File {
		if c := cmp.Compare(f.file(a.File), f.file(b.File)); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
}

// add records a fault at a place of n characters.
func (f *faults) add(pos Position, n int, what, fix string) {
	if len(f.list) >= maxFaults {
		f.more++
		return
	}
	f.list = append(f.list, Fault{Pos: pos, What: clean(what), Fix: clean(fix), Line: f.line(pos), Len: n})
}

// err returns the faults as an error, in the order of the text; nil when there
// are none.
func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	f.scrub()
	slices.SortStableFunc(f.list, func(a, b Fault) int {
		return f.compare(a.Pos, b.Pos)
	})
	f.list = slices.CompactFunc(f.list, func(a, b Fault) bool { return a.Pos == b.Pos && a.What == b.What })
	return &Errors{Faults: f.list, More: f.more}
}

// clean keeps a message on one line and free of control characters, whatever
// was quoted in it.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// quote returns a piece of the text for a message, shortened.
func quote(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "..."
	}
	return `"` + s + `"`
}

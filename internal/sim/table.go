// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// TextOptions say how a report is written for a person.
type TextOptions struct {
	Width   int  // columns of the terminal; 0 counts as 80, less than 40 as 40
	ASCII   bool // no character beyond ASCII
	Moments int  // at most so many lines of events are written, of the first row that has any; 0 counts as 15, below 0 all events of all rows are
}

// WriteText writes the report as a person reads it in a terminal: what was
// asked, the table with bars, lines over time, the events, the notes. No line
// is wider than Width unless a row's name and figures alone are. Errors are the
// writer's.
func (r *Report) WriteText(w io.Writer, opt TextOptions) error {
	if opt.Width == 0 {
		opt.Width = 80
	}
	opt.Width = max(opt.Width, 40)
	if opt.Moments == 0 {
		opt.Moments = 15
	}
	t := &textWriter{w: bufio.NewWriter(w), TextOptions: opt}
	t.head(r)
	t.table(r)
	t.series(r)
	t.moments(r)
	for i, n := range r.Notes {
		if i == 0 {
			t.line("")
		}
		t.wrapped("", n)
	}
	return t.w.Flush()
}

type textWriter struct {
	TextOptions
	w *bufio.Writer
}

// line writes one line without blanks at its end. The buffer keeps the first
// error for Flush.
func (t *textWriter) line(s string) {
	if t.ASCII {
		s = plainASCII(s)
	}
	_, _ = t.w.WriteString(strings.TrimRight(s, " ") + "\n")
}

// plainASCII replaces what is beyond ASCII: by its like where there is one.
func plainASCII(s string) string {
	s = strings.NewReplacer("…", "...", "×", "x", "–", "-", "µ", "u", "≥", ">=", "≤", "<=", "→", "->").Replace(s)
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf {
			return '?'
		}
		return r
	}, s)
}

// wrapped writes a paragraph; its further lines are indented like the first.
func (t *textWriter) wrapped(indent, s string) {
	at := indent
	for word := range strings.FieldsSeq(s) {
		if at != indent && width(at)+1+width(word) > t.Width {
			t.line(at)
			at = indent
		}
		if at != indent {
			at += " "
		}
		at += word
	}
	t.line(at)
}

func width(s string) int { return utf8.RuneCountInString(s) }

func (t *textWriter) head(r *Report) {
	t.wrapped("", r.Scenario+": "+r.Title)
	parts := make([]string, 0, len(r.Params)+1)
	for _, p := range r.Params {
		parts = append(parts, p.Name+"="+p.Value)
	}
	if r.Seeds > 1 {
		parts = append(parts, fmt.Sprintf("seeds=%d..%d (medians; band: 5-95 %%)", r.Seed, r.Seed+uint64(r.Seeds-1)))
	} else {
		parts = append(parts, fmt.Sprintf("seed=%d", r.Seed))
	}
	t.wrapped("", strings.Join(parts, " "))
}

// minBar is the least room in which a bar says something.
const minBar = 8

// table writes rows and columns, the names to the left, figures to the right,
// and the bar of the charted column with its band behind them.
func (t *textWriter) table(r *Report) {
	if len(r.Rows) == 0 {
		return
	}
	charted, most := -1, 0.0
	grid := make([][]string, 1, len(r.Rows)+1)
	grid[0] = []string{""}
	for j, c := range r.Columns {
		grid[0] = append(grid[0], c.Title)
		if c.Chart {
			charted = j
		}
	}
	if charted >= 0 && r.Seeds > 1 {
		grid[0] = append(grid[0], "band")
	}
	for i := range r.Rows {
		line := []string{r.Rows[i].Name}
		for j, cell := range r.Rows[i].Cells {
			line = append(line, Show(cell.Median, r.Columns[j].Unit))
		}
		if charted >= 0 {
			c := r.Rows[i].Cells[charted]
			if r.Seeds > 1 {
				line = append(line, band(c, r.Columns[charted].Unit))
			}
			if c.Median > most {
				most = c.Median
			}
		}
		grid = append(grid, line)
	}
	lines := align(grid)
	left := t.Width - width(lines[0]) - 2
	t.line("")
	for i, line := range lines {
		if charted < 0 || left < minBar {
			t.line(line)
			continue
		}
		if i == 0 {
			t.line(line + "  " + barTitle(r.Columns[charted]))
			continue
		}
		v, top := r.Rows[i-1].Cells[charted].Median, most
		if r.Columns[charted].Log {
			v, top = math.Log1p(v), math.Log1p(top)
		}
		t.line(line + "  " + bar(v, top, left, t.ASCII))
	}
}

// barTitle heads the bars. The column that they draw is named left of them already.
func barTitle(c Column) string {
	if c.Log {
		return "(log)"
	}
	return ""
}

func band(c Cell, u Unit) string {
	if math.IsNaN(c.Low) {
		return "-"
	}
	return Show(c.Low, u) + "-" + Show(c.High, u)
}

// align pads the cells: the first column to the left, the others to the right.
func align(grid [][]string) []string {
	var widths []int
	for _, line := range grid {
		for j, s := range line {
			if j == len(widths) {
				widths = append(widths, 0)
			}
			widths[j] = max(widths[j], width(s))
		}
	}
	out := make([]string, len(grid))
	for i, line := range grid {
		for j, s := range line {
			pad := strings.Repeat(" ", widths[j]-width(s))
			if j == 0 {
				out[i] = s + pad
			} else {
				out[i] += "  " + pad + s
			}
		}
	}
	return out
}

// series writes one line per series; those of one name share their scale, so
// that rows can be compared.
func (t *textWriter) series(r *Report) {
	title := ""
	for i := range r.Series {
		s := &r.Series[i]
		if s.Title != title {
			title = s.Title
			t.line("")
			t.line(fmt.Sprintf("%s, 0 to %s", title, showTime(time.Duration(len(s.Points))*s.Step)))
		}
		most, names, ends := 0.0, 0, 0
		for j := range r.Series {
			if o := &r.Series[j]; o.Title == title {
				most = max(most, largest(o.Points))
				names = max(names, width(o.Row))
				ends = max(ends, width(peak(o)))
			}
		}
		room := max(t.Width-names-ends-6, 10)
		line := spark(s.Points, most, room, t.ASCII)
		name := ""
		if names > 0 {
			name = s.Row + strings.Repeat(" ", names-width(s.Row)) + "  "
		}
		t.line("  " + name + line + "  " + peak(s))
	}
}

func peak(s *Series) string { return "max " + Show(largest(s.Points), s.Unit) }

// moments writes what happened: a table must not drown in the events of eight
// rows, so it is those of the first row that has any.
func (t *textWriter) moments(r *Report) {
	if len(r.Moments) == 0 {
		return
	}
	shown := r.Moments
	rows, who := 0, 0
	title := "events"
	if t.Moments >= 0 {
		first := shown[0].Row
		shown = slices.DeleteFunc(slices.Clone(shown), func(m Moment) bool { return m.Row != first })
		if first != "" {
			title += " of '" + first + "'"
		}
	}
	for _, m := range shown {
		if t.Moments < 0 {
			rows = max(rows, width(m.Row))
		}
		who = max(who, width(m.Who))
	}
	t.line("")
	t.line(title)
	lines := 0
	for i, m := range shown {
		head := fmt.Sprintf("%9s  ", showTime(m.At))
		if rows > 0 {
			head += m.Row + strings.Repeat(" ", rows-width(m.Row)) + "  "
		}
		if who > 0 {
			head += m.Who + strings.Repeat(" ", who-width(m.Who)) + "  "
		}
		text := t.hanging(head, m.What)
		if lines += len(text); t.Moments >= 0 && lines > t.Moments && i > 0 {
			shown = shown[:i]
			break
		}
		for _, line := range text {
			t.line(line)
		}
	}
	if n := len(r.Moments) - len(shown); n > 0 {
		t.line(fmt.Sprintf("  and %d more; --json has all of them", n))
	}
}

// hanging breaks a text behind a head into lines, the further ones below the text.
func (t *textWriter) hanging(head, s string) (out []string) {
	indent := min(width(head), t.Width-20)
	at, begun := head, false
	for word := range strings.FieldsSeq(s) {
		if begun && width(at)+1+width(word) > t.Width {
			out = append(out, at)
			at, begun = strings.Repeat(" ", indent), false
		}
		if begun {
			at += " "
		}
		at, begun = at+word, true
	}
	return append(out, at)
}

// showTime shows an instant of a run: 0.5s, 12.3s, 4m05.0s.
func showTime(d time.Duration) string {
	if d < time.Minute {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	d = d.Round(100 * time.Millisecond)
	return fmt.Sprintf("%dm%04.1fs", int(d.Minutes()), (d % time.Minute).Seconds())
}

// Show writes a figure as a table does: at most three significant digits below
// a thousand, with the unit where one is needed; "-" for NaN.
func Show(v float64, u Unit) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case u == Millis && v >= 10_000:
		return digits3(v/1000) + "s"
	case u == Millis:
		return digits3(v) + "ms"
	case u == Seconds:
		return digits3(v) + "s"
	case u == Part && v > 0 && v < 0.0005:
		return "<0.1%"
	case u == Part && v < 1 && v > 0.9995:
		return "99.9%"
	case u == Part:
		return decimals(v*100, 1) + "%"
	case u == Factor:
		return strconv.FormatFloat(v, 'f', 2, 64) + "x"
	case u == PerSec:
		return digits3(v) + "/s"
	default:
		return digits3(v)
	}
}

// digits3 is v with three significant digits, or all before the point.
func digits3(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return decimals(v, 0)
	case a >= 9.995:
		return decimals(v, 1)
	default:
		return decimals(v, 2)
	}
}

// decimals is v with at most n decimals, without zeros at the end.
func decimals(v float64, n int) string {
	s := strconv.FormatFloat(v, 'f', n, 64)
	if n > 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		return "0"
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// Report is what a run has to say, in a form that is the same for a person, a
// script and a page. The same parameters and seed give the same report, byte
// for byte, in every form. A Report is not safe for concurrent change.
type Report struct {
	Scenario string   `json:"scenario"`
	Title    string   `json:"title"`  // one line: what is compared
	Seed     uint64   `json:"seed"`   // of the first run
	Seeds    int      `json:"seeds"`  // how many runs with seeds counted up from Seed
	Params   []Param  `json:"params"` // in the order in which they are shown
	Columns  []Column `json:"columns"`
	Rows     []Row    `json:"rows"`   // one cell per column
	Series   []Series `json:"series"` // of the first seed
	Moments  []Moment `json:"events"` // of the first seed, in order of time
	Notes    []string `json:"notes"`  // what to look at, and what was assumed
}

// Param is one parameter in force, as it would be written on the command line.
type Param struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Unit says how a number is read and shown.
type Unit string

// The units.
const (
	Count   Unit = "count"   // whole things
	Millis  Unit = "ms"      // milliseconds
	Seconds Unit = "s"       // seconds
	Part    Unit = "part"    // 0 to 1, shown as a percentage
	Factor  Unit = "factor"  // shown as 1.20x
	PerSec  Unit = "per_sec" // a rate
)

// Column describes one figure of every row.
type Column struct {
	Name  string `json:"name"`  // stable: p99, errors, ...
	Title string `json:"title"` // head of the column; short
	Unit  Unit   `json:"unit"`
	Chart bool   `json:"chart"` // drawn as a bar; at most one column is
	Log   bool   `json:"log"`   // the bar's length goes with the logarithm
}

// Row is one variant of a comparison: a policy, a setting, a server.
type Row struct {
	Name  string `json:"name"`
	Cells []Cell `json:"cells"`
}

// Cell is one figure over all seeds: the median and the 5-95 % band. With one
// seed all three are equal. NaN, shown as "-" and null, says that there is no
// such figure.
type Cell struct {
	Median, Low, High float64
}

// MarshalJSON writes {"median":,"low":,"high":} with six significant digits.
func (c Cell) MarshalJSON() ([]byte, error) {
	out := append([]byte(`{"median":`), jsonNumber(c.Median)...)
	out = append(append(out, `,"low":`...), jsonNumber(c.Low)...)
	out = append(append(out, `,"high":`...), jsonNumber(c.High)...)
	return append(out, '}'), nil
}

// Series is a figure over time.
type Series struct {
	Row    string        `json:"row"` // which row it belongs to; empty: the whole report
	Name   string        `json:"name"`
	Title  string        `json:"title"`
	Unit   Unit          `json:"unit"`
	Step   time.Duration `json:"step_ns"`
	Points []float64     `json:"points"` // Points[i] is about [i x Step, (i+1) x Step)
}

// Moment is one thing that happened.
type Moment struct {
	At   time.Duration `json:"at_ns"`
	Row  string        `json:"row"`  // which row it belongs to
	Who  string        `json:"who"`  // backend, or the pool
	What string        `json:"what"` // ejected, panic began, ...
}

// Column returns the index of the column with the name, -1 if there is none.
func (r *Report) Column(name string) int {
	return slices.IndexFunc(r.Columns, func(c Column) bool { return c.Name == name })
}

// Cell returns the figure of a row in a column. Names that the report does not
// hold give NaN in all three places.
func (r *Report) Cell(row, column string) Cell {
	at := r.Column(column)
	for i := range r.Rows {
		if r.Rows[i].Name == row && at >= 0 && at < len(r.Rows[i].Cells) {
			return r.Rows[i].Cells[at]
		}
	}
	return noCell
}

var noCell = Cell{math.NaN(), math.NaN(), math.NaN()}

// dropColumns takes columns out of the table.
func (r *Report) dropColumns(names ...string) {
	for _, name := range names {
		at := r.Column(name)
		r.Columns = slices.Concat(r.Columns[:at], r.Columns[at+1:])
		for i := range r.Rows {
			r.Rows[i].Cells = slices.Concat(r.Rows[i].Cells[:at], r.Rows[i].Cells[at+1:])
		}
	}
}

// cellOf sums up the figures of several seeds. NaNs are left out; of none left
// it makes NaN. The median of an even number is the lower one, so that it is
// always a figure that was seen.
func cellOf(values []float64) Cell {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(v) == 0 {
		return noCell
	}
	slices.Sort(v)
	return Cell{Median: v[(len(v)-1)/2], Low: nearestRank(v, 0.05), High: nearestRank(v, 0.95)}
}

// nearestRank is the smallest of the sorted figures that at least the part q of
// them do not exceed. Of ten, 0.95 gives the tenth.
func nearestRank(sorted []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// jsonNumber writes a number with six significant digits, null for none.
func jsonNumber(v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null")
	}
	return strconv.AppendFloat(nil, roundDigits(v), 'f', -1, 64)
}

// roundDigits keeps six significant digits: more would differ between machines
// that fuse multiplications and additions and those that do not.
func roundDigits(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 5, 64), 64) // of its own making
	return out
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
)

// WriteJSON writes the reports as one JSON array, indented, with a line feed
// at the end. Every list is an array, never null. Errors are the writer's.
func WriteJSON(w io.Writer, reports []*Report) error {
	out := make([]Report, len(reports))
	for i, r := range reports {
		out[i] = *r
		out[i].Params, out[i].Columns, out[i].Rows = some(r.Params), some(r.Columns), some(r.Rows)
		out[i].Series, out[i].Moments, out[i].Notes = some(r.Series), some(r.Moments), some(r.Notes)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// some makes nil an empty list.
func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// MarshalJSON rounds the points to six significant digits.
func (s Series) MarshalJSON() ([]byte, error) {
	type plain Series // without this method
	out := struct {
		plain
		Points []json.RawMessage `json:"points"`
	}{plain: plain(s), Points: make([]json.RawMessage, len(s.Points))}
	for i, p := range s.Points {
		out.Points[i] = jsonNumber(p)
	}
	return json.Marshal(out)
}

// csvHead names the fields of every record: one form for all kinds, so that a
// spreadsheet or a data frame reads a file of many reports as one table.
var csvHead = []string{"scenario", "seed", "seeds", "kind", "row", "name", "unit", "at_s", "value", "low", "high", "text"}

// WriteCSV writes one record per figure (kind row), per point of a series
// (kind series) and per event (kind event), after a head line. Errors are the
// writer's.
func WriteCSV(w io.Writer, reports []*Report) error {
	c := csv.NewWriter(w)
	if err := c.Write(csvHead); err != nil {
		return err
	}
	for _, r := range reports {
		if err := r.writeRecords(c); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func (r *Report) writeRecords(c *csv.Writer) error {
	head := []string{r.Scenario, strconv.FormatUint(r.Seed, 10), strconv.Itoa(r.Seeds)}
	record := func(rest ...string) error { return c.Write(append(head[:3:3], rest...)) }
	for i := range r.Rows {
		for j, cell := range r.Rows[i].Cells {
			col := &r.Columns[j]
			if err := record("row", r.Rows[i].Name, col.Name, string(col.Unit), "", csvNumber(cell.Median), csvNumber(cell.Low), csvNumber(cell.High), ""); err != nil {
				return err
			}
		}
	}
	for i := range r.Series {
		s := &r.Series[i]
		for j, p := range s.Points {
			at := strconv.FormatFloat(float64(j)*s.Step.Seconds(), 'f', -1, 64)
			if err := record("series", s.Row, s.Name, string(s.Unit), at, csvNumber(p), "", "", ""); err != nil {
				return err
			}
		}
	}
	for _, m := range r.Moments {
		at := strconv.FormatFloat(m.At.Seconds(), 'f', -1, 64)
		if err := record("event", m.Row, m.Who, "", at, "", "", "", m.What); err != nil {
			return err
		}
	}
	return nil
}

// csvNumber is jsonNumber with nothing for none.
func csvNumber(v float64) string {
	if s := string(jsonNumber(v)); s != "null" {
		return s
	}
	return ""
}

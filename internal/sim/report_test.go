// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares with a file of testdata, or writes it with -rewrite.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-rewrite writes it anew):\n--- got\n%s--- want\n%s", path, got, want)
	}
}

func sampleReports() []*Report {
	one := func(v float64) Cell { return Cell{v, v, v} }
	return []*Report{{
		Scenario: "sample", Title: "six servers, of which one is slow; a title that is longer than a line of a terminal is wide",
		Seed: 1, Seeds: 1, Params: []Param{{"policy", "p2c,random"}, {"load", "70%"}},
		Columns: []Column{
			{Name: "p50", Title: "p50", Unit: Millis}, {Name: "errors", Title: "errors", Unit: Part},
			{Name: "amplification", Title: "sent", Unit: Factor}, {Name: "p99", Title: "p99", Unit: Millis, Chart: true},
		},
		Rows: []Row{
			{"p2c", []Cell{one(20.123), one(0), one(1), one(140)}},
			{"random", []Cell{one(23), one(0.0001), one(1.2), one(12345.6)}},
			{"nobody", []Cell{noCell, noCell, noCell, noCell}},
		},
		Series: []Series{
			{"p2c", "errors", "errors per second", PerSec, time.Second, []float64{0, 0, 1, 8, 4, 0}},
			{"random", "errors", "errors per second", PerSec, time.Second, []float64{0, 0, 16, math.NaN(), 4, 0}},
		},
		Moments: []Moment{
			{1500 * time.Millisecond, "p2c", "s1", "ejected for 30s: 5 of 5 answers were 502, and this goes on for longer than a line is wide"},
			{61500 * time.Millisecond, "random", "pool", "panic began"},
		},
		Notes: []string{"Look at the last column: what is there says more than the rest of the whole table together does.", "µ, × and … are not ASCII."},
	}, {
		Scenario: "bands", Title: "over seeds", Seed: 7, Seeds: 50,
		Columns: []Column{{Name: "p99", Title: "p99", Unit: Millis, Chart: true, Log: true}},
		Rows:    []Row{{"p2c", []Cell{{120, 110, 150}}}, {"random", []Cell{{1200, 900, 2000}}}},
	}}
}

func text(t *testing.T, reports []*Report, opt TextOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, r := range reports {
		if err := r.WriteText(&b, opt); err != nil {
			t.Fatal(err)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func TestReportForms(t *testing.T) {
	golden(t, "report.txt", text(t, sampleReports(), TextOptions{}))
	ascii := text(t, sampleReports(), TextOptions{ASCII: true, Width: 60, Moments: 1})
	golden(t, "report_ascii.txt", ascii)
	for i, c := range ascii {
		if c >= 0x80 {
			t.Fatalf("byte %d of the ASCII form is %#x", i, c)
		}
	}
	for line := range strings.Lines(string(text(t, sampleReports(), TextOptions{}))) {
		if width(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("wider than 80 columns: %q", line)
		}
	}
	var b bytes.Buffer
	if err := WriteJSON(&b, sampleReports()); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", b.Bytes())
	var back []map[string]any
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || len(back) != 2 {
		t.Errorf("no JSON of two reports: %v", err)
	}
	b.Reset()
	if err := WriteCSV(&b, sampleReports()); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.csv", b.Bytes())
	records, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(records) != 1+3*4+2*6+2+2 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// A writer that fails is the caller's to hear about.
func TestReportWriteErrors(t *testing.T) {
	broken := errors.New("full")
	w := writerFunc(func([]byte) (int, error) { return 0, broken })
	if err := sampleReports()[0].WriteText(w, TextOptions{}); !errors.Is(err, broken) {
		t.Errorf("text: %v", err)
	}
	if err := WriteJSON(w, sampleReports()); !errors.Is(err, broken) {
		t.Errorf("JSON: %v", err)
	}
	if err := WriteCSV(w, sampleReports()); !errors.Is(err, broken) {
		t.Errorf("CSV: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCellOf(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Cell
	}{
		{nil, noCell},
		{[]float64{math.NaN()}, noCell},
		{[]float64{5}, Cell{5, 5, 5}},
		{[]float64{4, 1, math.NaN(), 3, 2}, Cell{2, 1, 4}},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, Cell{10, 1, 19}},
	} {
		got := cellOf(c.values)
		if got != c.want && !(math.IsNaN(got.Median) && math.IsNaN(c.want.Median)) {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestShow(t *testing.T) {
	for _, c := range []struct {
		v    float64
		u    Unit
		want string
	}{
		{1.234, Millis, "1.23ms"}, {99.96, Millis, "100ms"}, {9.996, Millis, "10ms"}, {123456, Millis, "123s"},
		{0, Part, "0%"}, {0.0001, Part, "<0.1%"}, {0.9999, Part, "99.9%"}, {1, Part, "100%"}, {0.123, Part, "12.3%"},
		{1.2, Factor, "1.20x"}, {0.999, Factor, "1.00x"}, {1234.4, PerSec, "1234/s"}, {-0.001, Count, "0"}, {math.NaN(), Count, "-"},
	} {
		if got := Show(c.v, c.u); got != c.want {
			t.Errorf("%v %s: %s, want %s", c.v, c.u, got, c.want)
		}
	}
}

// Bars grow with what they show, never beyond their room, and nothing looks
// like nothing.
func TestBar(t *testing.T) {
	for _, ascii := range []bool{false, true} {
		last := ""
		for i := range 101 {
			b := bar(float64(i), 100, 20, ascii)
			if width(b) > 20 || (b == "") != (i == 0) || width(b) < width(last) {
				t.Fatalf("%d %%: %q after %q", i, b, last)
			}
			last = b
		}
		if width(last) != 20 {
			t.Errorf("full: %q", last)
		}
	}
	if bar(math.NaN(), 1, 10, false)+bar(1, 0, 10, false)+bar(1, 1, 0, false) != "" {
		t.Error("a bar of nothing")
	}
}

// However short a peak is, the line shows it.
func TestSparkKeepsPeaks(t *testing.T) {
	for at := range 1000 {
		points := make([]float64, 1000)
		points[at] = 5
		if s := spark(points, 5, 60, false); width(s) != 60 || !strings.Contains(s, "█") {
			t.Fatalf("the peak at %d is lost: %s", at, s)
		}
	}
	if s := spark([]float64{0, 1, math.NaN(), 2}, 2, 60, true); s != ".+ #" {
		t.Errorf("ASCII line %q", s)
	}
}

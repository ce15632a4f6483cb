// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is what is saved.
type report struct {
	Machine  string
	Load     string // average of the minute before the run began
	Short    bool   `json:",omitempty"`
	Versions map[string]string
	Seconds  float64
	Outcomes []*outcome

	began time.Time
}

func newReport(short bool) *report {
	r := &report{Short: short, Versions: map[string]string{}, began: time.Now(),
		Machine: fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), kernel())}
	text, _ := os.ReadFile("/proc/loadavg")
	r.Load, _, _ = strings.Cut(string(text), " ")
	for name := range configOf {
		r.Versions[name] = (&subject{name: name}).version()
	}
	return r
}

func (r *report) finish() { r.Seconds = time.Since(r.began).Round(time.Second).Seconds() }

func (r *report) save(name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	js, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".json", append(js, '\n'), 0o644); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s; load %s\n", r.Machine, r.Load)
	for _, n := range []string{"weir", "nginx", "haproxy"} {
		fmt.Fprintf(&text, "  %-8s %s\n", n, r.Versions[n])
	}
	for _, o := range r.Outcomes {
		o.print(&text, 0)
	}
	return os.WriteFile(name+".txt", []byte(text.String()), 0o644)
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown kernel"
	}
	release, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return "Linux " + release
}

// print writes an outcome for people; a duration of 0 is not shown.
func (o *outcome) print(w io.Writer, d time.Duration) {
	fmt.Fprintf(w, "%-22s %-8s requests %d  errors %d  sent %.3fx  p50 %.1f ms  p99 %.1f ms  worst %.0f ms", o.Scenario+"/"+o.Case, o.Subject,
		o.Requests, o.Errors, o.Sent, o.P50, o.P99, o.Worst)
	for _, f := range o.Figures {
		fmt.Fprintf(w, "  %s %s", f.Name, f.text())
	}
	if o.Late > 5 {
		fmt.Fprintf(w, "  CLIENT LATE %.0f ms", o.Late)
	}
	if d > 0 {
		fmt.Fprintf(w, "  (%.0f s)", d.Seconds())
	}
	fmt.Fprintln(w)
	kinds := make([]string, 0, len(o.Kinds))
	for k, n := range o.Kinds {
		kinds = append(kinds, fmt.Sprintf("%d x %s", n, k))
	}
	if slices.Sort(kinds); len(kinds) > 0 {
		fmt.Fprintf(w, "    errors: %s\n", strings.Join(kinds, ", "))
	}
	for _, c := range o.Checks {
		word := "holds "
		if !c.Holds {
			word = "BROKEN"
		}
		if !c.Holds || o.Subject == "weir" {
			fmt.Fprintf(w, "    %s %s: %s, %s\n", word, c.What, c.Got, c.Limit)
		}
	}
}

func (f figure) text() string {
	switch f.Unit {
	case "s":
		return fmt.Sprintf("%.1f s", f.Value)
	case "ms":
		return fmt.Sprintf("%.0f ms", f.Value)
	case "x":
		return fmt.Sprintf("%.2fx", f.Value)
	case "%":
		return fmt.Sprintf("%.0f %%", f.Value)
	}
	return fmt.Sprintf("%.4g", f.Value)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Files of the page, from the root of the tree.
const (
	pageFile = "docs/resilience.md"
	saved    = "bench/results/faults"
)

var places = regexp.MustCompile(`(?s)<!-- (faults|config): ([a-z.]+) -->\n.*?<!-- end -->`)

// page holds docs/resilience.md to the saved results and to the configurations
// that are run, or writes what stands between its marks.
func page(write bool) error {
	rep, err := loadReport(saved + ".json")
	if err != nil {
		return err
	}
	old, err := os.ReadFile(pageFile)
	if err != nil {
		return err
	}
	fresh, err := fillPage(string(old), rep)
	if err != nil {
		return err
	}
	if fresh == string(old) {
		return nil
	}
	if write {
		return os.WriteFile(pageFile, []byte(fresh), 0o644)
	}
	return fmt.Errorf("%s is not what %s.json says: go run ./bench/faults -page write", pageFile, saved)
}

// loadReport reads saved results; nil when there are none.
func loadReport(file string) (*report, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rep := &report{}
	return rep, json.Unmarshal(text, rep)
}

// fillPage returns a page with everything between its marks made anew. Each
// scenario has to have a place on it.
func fillPage(text string, rep *report) (string, error) {
	var errs []error
	seen := map[string]bool{}
	text = places.ReplaceAllStringFunc(text, func(old string) string {
		m := places.FindStringSubmatch(old)
		head := "<!-- " + m[1] + ": " + m[2] + " -->\n"
		seen[m[2]] = true
		if m[1] == "config" {
			c, err := configs.ReadFile("config/" + m[2])
			errs = append(errs, err)
			return head + "```text\n" + string(c) + "```\n<!-- end -->" // a template is not yet of its language
		}
		if m[2] == "run" {
			return head + rep.about() + "<!-- end -->"
		}
		i := slices.IndexFunc(suite(), func(sc *scenario) bool { return sc.name == m[2] })
		if i < 0 {
			errs = append(errs, fmt.Errorf("no scenario is called %q", m[2]))
			return old
		}
		return head + rep.section(suite()[i]) + "<!-- end -->"
	})
	for _, sc := range suite() {
		if !seen[sc.name] {
			errs = append(errs, fmt.Errorf("the page has no place for scenario %q", sc.name))
		}
	}
	return text, errors.Join(errs...)
}

// about says where the figures are from, and when not to believe them.
func (r *report) about() string {
	if r == nil {
		return "Nothing has been measured yet.\n"
	}
	s := fmt.Sprintf("%s, weir (%s), %s, %s; %.0f s in all.\n", r.Machine, r.Versions["weir"], r.Versions["nginx"], r.Versions["haproxy"], r.Seconds)
	late := 0.0
	for _, o := range r.Outcomes {
		late = max(late, o.Late)
	}
	s += fmt.Sprintf("The client itself was late by at most %.1f ms (p99 of the worst case).\n", late)
	if busy, _ := strconv.ParseFloat(r.Load, 64); busy > 1 || late > 20 {
		s += "\n**The machine was busy with other work (load " + r.Load + "): counts hold, times do not.**\n"
	}
	if r.Short {
		s += "\n**The run was a short one.**\n"
	}
	return s
}

// section is what a scenario says, and its two tables.
func (r *report) section(sc *scenario) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n**Promise.** %s\n\n", sc.title, sc.promise)
	sc.added(&b)
	if r == nil {
		b.WriteString("Not measured yet.\n")
		return b.String()
	}
	var some []*outcome
	for _, o := range r.Outcomes {
		if o.Scenario == sc.name {
			some = append(some, o)
		}
	}
	figures(&b, sc, some)
	b.WriteString("\n")
	promises(&b, sc, some)
	return b.String()
}

// added tells what a scenario sets beyond the configurations of the page.
func (sc *scenario) added(b *strings.Builder) {
	seen := map[string]bool{}
	for i := range sc.cases {
		for _, name := range []string{"weir", "nginx", "haproxy"} {
			words := sc.cases[i].extra[name]
			for _, place := range slices.Sorted(maps.Keys(words)) {
				line := fmt.Sprintf("- %s (%s): `%s`\n", name, place, strings.Join(strings.FieldsFunc(words[place], func(r rune) bool { return r == '\n' }), "`, `"))
				if words[place] != "" && !seen[line] {
					b.WriteString(line)
				}
				seen[line] = true
			}
		}
	}
	if len(seen) > 0 {
		b.WriteString("\n")
	}
}

// figures is the table of what was counted, one row for each case and balancer.
func figures(b *strings.Builder, sc *scenario, some []*outcome) {
	var own []string
	for _, o := range some {
		for _, f := range o.Figures {
			if !slices.Contains(own, f.Name) {
				own = append(own, f.Name)
			}
		}
	}
	b.WriteString("| | | requests | errors | sent | p50 | p99 | worst |")
	for _, n := range own {
		b.WriteString(" " + n + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---:|", 6+len(own)) + "\n")
	last := ""
	for _, o := range some {
		what := ""
		if o.Case != last {
			what, last = sc.what(o.Case), o.Case
		}
		sent := "-"
		if o.Sent > 0 {
			sent = fmt.Sprintf("%.2fx", o.Sent)
		}
		fmt.Fprintf(b, "| %s | %s | %d | %d | %s | %.1f ms | %.0f ms | %.0f ms |", what, o.Subject, o.Requests, o.Errors, sent, o.P50, o.P99, o.Worst)
		for _, n := range own {
			text := "-"
			if i := slices.IndexFunc(o.Figures, func(f figure) bool { return f.Name == n }); i >= 0 {
				text = o.Figures[i].text()
			}
			b.WriteString(" " + text + " |")
		}
		b.WriteString("\n")
	}
}

// promises is the table of what was promised, with what each came to.
func promises(b *strings.Builder, sc *scenario, some []*outcome) {
	b.WriteString("| | promised | limit | weir | nginx | haproxy |\n|---|---|---|---:|---:|---:|\n")
	last := ""
	for _, o := range some {
		if o.Subject != "weir" {
			continue
		}
		for _, c := range o.Checks {
			what := ""
			if o.Case != last {
				what, last = sc.what(o.Case), o.Case
			}
			fmt.Fprintf(b, "| %s | %s | %s |", what, c.What, c.Limit)
			for _, name := range []string{"weir", "nginx", "haproxy"} {
				b.WriteString(" " + came(some, o.Case, name, c.What) + " |")
			}
			b.WriteString("\n")
		}
	}
}

// came returns what a promise came to for one balancer, in bold where it is
// broken.
func came(some []*outcome, scase, subject, what string) string {
	for _, o := range some {
		if o.Case != scase || o.Subject != subject {
			continue
		}
		for _, c := range o.Checks {
			switch {
			case c.What != what:
			case c.Holds:
				return c.Got
			default:
				return "**" + c.Got + "**"
			}
		}
	}
	return "-"
}

// what returns what a case is, by its name.
func (sc *scenario) what(name string) string {
	for i := range sc.cases {
		if sc.cases[i].name == name {
			return sc.cases[i].what
		}
	}
	return name
}

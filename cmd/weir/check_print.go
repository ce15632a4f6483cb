// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// printFindings writes errors and warnings to stderr, the worst first, and
// notes, detection times and that all is well to stdout.
func printFindings(stdout, stderr io.Writer, f findings) {
	explained := map[string]bool{}
	for i := range f.Errors {
		_, _ = io.WriteString(stderr, f.Errors[i].block("error", explained))
	}
	for i := range f.Warnings {
		_, _ = io.WriteString(stderr, f.Warnings[i].block("warning", explained))
	}
	for i := range f.Pools {
		_, _ = fmt.Fprintln(stdout, f.Pools[i].String())
	}
	for i := range f.Notes {
		_, _ = io.WriteString(stdout, f.Notes[i].line("note"))
	}
	silenced := slices.Concat(f.Errors, f.Warnings, f.Notes)
	if i := slices.IndexFunc(silenced, func(x finding) bool { return x.Name != "" }); i >= 0 {
		where := stdout
		if len(f.Errors)+len(f.Warnings) > 0 {
			where = stderr
		}
		_, _ = fmt.Fprintf(where, "[name] is explained in docs/lints, and check: {silence: [name]} silences it\n")
	}
	switch {
	case f.OK:
		_, _ = fmt.Fprintf(stdout, "%s: fine%s\n", f.File, besides(f))
	case len(f.Errors) == 0:
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", f.File, count(len(f.Warnings), "warning"))
	case len(f.Warnings) == 0:
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", f.File, count(len(f.Errors), "error"))
	default:
		_, _ = fmt.Fprintf(stderr, "%s: %s, %s\n", f.File, count(len(f.Errors), "error"), count(len(f.Warnings), "warning"))
	}
}

// besides counts what does not keep a configuration from being fine.
func besides(f findings) string {
	var parts []string
	if n := len(f.Warnings); n > 0 {
		parts = append(parts, count(n, "warning"))
	}
	if n := len(f.Notes); n > 0 {
		parts = append(parts, count(n, "note"))
	}
	if len(parts) == 0 {
		return ""
	}
	return ", with " + strings.Join(parts, " and ")
}

// line is a finding in one line.
func (x *finding) line(severity string) string {
	if x.Name == "" {
		return x.place + "\n"
	}
	return x.place + severity + ": " + x.Text + " [" + x.Name + "]\n"
}

// block is a finding with the line of the text, why it matters (once for each
// rule), and what to write.
func (x *finding) block(severity string, explained map[string]bool) string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(x.line(severity), "\n") + x.shown + "\n")
	if x.Name == "" {
		return b.String()
	}
	if !explained[x.Name] {
		b.WriteString(wrapped("why", x.Why))
	}
	explained[x.Name] = true
	if len(x.Remove)+len(x.Steps) == 0 && x.Write == "" {
		b.WriteString(wrapped("fix", x.Fix))
	}
	for _, key := range x.Remove {
		b.WriteString("  fix: remove " + key + "\n")
	}
	for _, step := range x.Steps {
		b.WriteString("  fix: write " + step + "\n")
	}
	if x.Write != "" {
		b.WriteString("  fix: write\n")
		for line := range strings.Lines(x.Write) {
			b.WriteString("         " + line)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// wrapped is a paragraph behind a word, at most 100 columns wide.
func wrapped(word, text string) string {
	const width = 100
	var b strings.Builder
	line := "  " + word + ":"
	for w := range strings.FieldsSeq(text) {
		if len(line)+1+len(w) > width {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", len(word)+3)
		}
		line += " " + w
	}
	b.WriteString(line + "\n")
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestBounds feeds texts that would hurt a naive parser: each must be refused,
// or read, soon.
func TestBounds(t *testing.T) {
	lines := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	stairs := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.Repeat(" ", i) + "k:\n")
		}
		return b.String()
	}
	for name, c := range map[string]struct{ text, want string }{
		"block keys":     {lines(maxKeys+1, "k%d: 1\n"), "too many keys"},
		"flow keys":      {"{" + lines(20_000, "k%d: 1, ") + "}", "is not a key"},
		"nested lists":   {strings.Repeat("[", 20_000), "nested too deeply"},
		"closed lists":   {strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "nested too deeply"},
		"nested flow":    {strings.Repeat("{a: ", 20_000), "nested too deeply"},
		"dashes":         {strings.Repeat("- ", 20_000) + "a\n", "nested too deeply"},
		"stairs":         {stairs(1000), "nested too deeply"},
		"question marks": {strings.Repeat("? ", 10_000) + "a\n", "introduced by ?"},
		"anchors":        {strings.Repeat("&a ", 10_000), "too many anchors"},
		"tags":           {strings.Repeat("!a ", 10_000), "tags"},
		"long scalar":    {"a: " + strings.Repeat("x", 1<<20), "is not a key"},
		"large":          {strings.Repeat("#\n", maxText/2+1), "larger than 16MiB"},
		"NUL":            {"a: \x00", "NUL"},
		"colons":         {strings.Repeat(": ", 10_000), ""},
		"quotes":         {strings.Repeat("'a' ", 10_000), ""},
		"many faults":    {"listeners: {" + lines(2000, "\"k %d\": {x: 1, y: 2}, ") + "}", "more"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := Parse("t", []byte(c.text), lookup)
			if d := time.Since(start); d > time.Minute {
				t.Errorf("took %v", d)
			}
			var e *Errors
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %.300v", c.want, err)
			}
			if n := len(err.Error()); n > 1<<20 {
				t.Errorf("the report has %d bytes", n)
			}
		})
	}
}

func manyBackends(n int, form string) []byte {
	var b strings.Builder
	b.WriteString("listeners: {web: {bind: \":8080\", pool: app}}\npools:\n  app:\n    backends:\n")
	for i := range n {
		fmt.Fprintf(&b, form, i>>16, i>>8&255, i&255)
	}
	return []byte(b.String())
}

// TestManyBackends reads a pool of ten thousand, and of a thousand in the longer forms.
func TestManyBackends(t *testing.T) {
	for form, many := range map[string]int{
		"      - http://10.%d.%d.%d:8080\n":                         10_000,
		"      - {url: \"http://10.%d.%d.%d:8080\", weight: 2}\n":   1000,
		"      - url: http://10.%d.%d.%d:8080\n        weight: 2\n": 1000,
	} {
		start := time.Now()
		plan, err := Parse("t", manyBackends(many, form), lookup)
		if err != nil {
			t.Fatalf("%.300v", err)
		}
		if n := len(plan.Pools[0].Backends); n != many {
			t.Errorf("%d backends", n)
		}
		if d := time.Since(start); d > time.Minute {
			t.Errorf("took %v", d)
		}
		if _, err := Parse("t", plan.YAML(true), lookup); err != nil {
			t.Errorf("%.300v", err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{2, 100, 10_000} {
		text := manyBackends(n, "      - {url: \"http://10.%d.%d.%d:8080\", weight: 2}\n")
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Parse("b", text, lookup); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

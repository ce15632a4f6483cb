// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestMistakes reads configurations with one mistake each, of the kinds that
// people make: testdata/mistakes/*.txtar hold NAME.yaml and, in NAME.txt, what
// is said of it. -rewrite puts in what is said now; read it as somebody would
// who has never seen weir.
func TestMistakes(t *testing.T) {
	archives, err := filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, archive := range archives {
		a, err := txtar.ParseFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		for _, f := range a.Files {
			if name, ok := strings.CutSuffix(f.Name, ".txt"); ok {
				said[name] = string(f.Data)
			}
		}
		fresh := &txtar.Archive{Comment: a.Comment}
		for _, f := range a.Files {
			name, ok := strings.CutSuffix(f.Name, ".yaml")
			if !ok {
				continue
			}
			n++
			out := said[name] // it stays where -run leaves it out
			t.Run(strings.TrimSuffix(filepath.Base(archive), ".txtar")+"/"+name, func(t *testing.T) {
				out = mistake(t, f.Data)
				if !*rewrite && out != said[name] {
					t.Errorf("got:\n%swant:\n%s", out, said[name])
				}
			})
			fresh.Files = append(fresh.Files, f, txtar.File{Name: name + ".txt", Data: []byte(out)})
		}
		if *rewrite {
			if err := os.WriteFile(archive, txtar.Format(fresh), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d mistakes", n)
	}
}

// inside matches what only weir's authors know: names of Go and of libraries.
var inside = regexp.MustCompile(`\b(int|uint|float|string|bool)(8|16|32|64)?\b|\bmap\[|\[\]string|<nil>|%!|\bnil\b|[a-z]+\.[A-Z][a-z]+\b|unmarshal|strconv|netip|goccy|end token|scalar|mapping node|0x[0-9a-f]{4,}`)

// mistake returns what is said of a text and holds it to what a newcomer needs:
// one message for one mistake, with its place, the words of the text, a fix, and
// nothing that only weir's authors know.
func mistake(t *testing.T, text []byte) string {
	_, err := Parse("weir.yaml", text, func(string) (string, bool) { return "", false })
	var e *Errors
	if !errors.As(err, &e) {
		t.Fatalf("accepted: %v\n%s", err, text)
	}
	checkErrors(t, err, string(text))
	strange := 0 // keys: each is a mistake
	for _, f := range e.Faults {
		if strings.Contains(f.What, "is not a key of") {
			strange++
		}
	}
	if len(e.Faults) != max(strange, 1) {
		t.Errorf("%d messages for one mistake:\n%v", len(e.Faults), err)
	}
	for _, f := range e.Faults {
		said := f.What + ": " + f.Fix
		lines := strings.Split(string(text), "\n")
		switch {
		case len(said) > 260:
			t.Errorf("too long: %s", said)
		case inside.MatchString(said):
			t.Errorf("%q is nothing a user knows: %s", inside.FindString(said), said)
		case f.Fix == f.What, len(f.Fix) < 6, !unicode.IsLower([]rune(f.Fix)[0]):
			t.Errorf("no fix: %s", said)
		case strings.TrimSpace(lines[f.Pos.Line-1]) != "" && f.Line == "":
			t.Errorf("the line is not shown: %s", f)
		case !mentions(f):
			t.Errorf("nothing of what is marked is in the message: %s", f)
		}
	}
	return err.Error() + "\n"
}

// mentions reports whether a message has a word of what it marks, or the key
// before it; a mark of one character stands for its line.
func mentions(f Fault) bool {
	line := []rune(f.Line)
	from := min(f.Pos.Col-1, len(line))
	marked, before := string(line[from:min(from+f.Len, len(line))]), words(string(line[:from]))
	if len(words(marked)) == 0 {
		return true // a bracket, a dash, nothing
	}
	if f.Len <= 1 {
		marked = f.Line
	}
	list := words(marked)
	if len(before) > 0 {
		list = append(list, before[len(before)-1])
	}
	said := strings.ToLower(f.What + " " + f.Fix)
	return f.Pos.Line == 1 && f.Pos.Col == 1 || strings.Contains(said, "tab") ||
		slices.ContainsFunc(list, func(w string) bool { return strings.Contains(said, strings.ToLower(w)) })
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`"'{}[],:/@-`, r) })
}

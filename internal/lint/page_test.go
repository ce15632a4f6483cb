// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/lint"
)

const pages = "../../docs/lints"

// TestPages keeps docs/lints up to date, without a page too many; -rewrite
// writes it.
func TestPages(t *testing.T) {
	want := map[string]string{"README.md": lint.Index()}
	for _, r := range lint.Rules() {
		want[r.Name+".md"] = lint.Page(&r, lint.Example{
			Bad: read(t, r.Name+".bad.yaml"), Said: read(t, r.Name+".txt"), Good: read(t, r.Name+".good.yaml"),
		})
	}
	if *rewrite {
		if err := os.MkdirAll(pages, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(pages, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	there, err := os.ReadDir(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range there {
		if _, ok := want[e.Name()]; !ok {
			t.Errorf("%s is about no rule: remove it", e.Name())
		}
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil || string(got) != text {
			t.Errorf("%s is not up to date: run go generate ./internal/lint", name)
		}
	}
	for _, r := range lint.Rules() {
		if !strings.Contains(want["README.md"], "("+r.Name+".md)") {
			t.Errorf("the index has no %s", r.Name)
		}
	}
}

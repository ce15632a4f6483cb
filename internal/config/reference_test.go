// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"testing"
)

// TestReference keeps docs/configuration.md up to date; -rewrite writes it.
func TestReference(t *testing.T) {
	const file = "../../docs/configuration.md"
	want := Reference()
	if *rewrite {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not up to date: run go generate ./internal/config", file)
	}
}

// TestSchema holds the table to what its users rely on.
func TestSchema(t *testing.T) {
	var walk func(path string, list []*spec)
	walk = func(path string, list []*spec) {
		seen := map[string]bool{}
		for _, s := range list {
			at := path + "." + s.name
			if seen[s.name] {
				t.Errorf("%s is there twice", at)
			}
			seen[s.name] = true
			if s.doc == "" || s.kind == "" {
				t.Errorf("%s has no documentation or type", at)
			}
			walk(at, s.subs)
		}
	}
	walk("", schema)
	plan := defaultsOf(planFields) // parses every default of the process's own blocks
	if plan.Admin.Bind != "127.0.0.1:9900" || plan.Shutdown.Deadline.Seconds() != 25 {
		t.Errorf("defaults: %+v", plan)
	}
}

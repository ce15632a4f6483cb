// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"testing"
)

const outlined = `listeners:
  web: {bind: "${HOST}:8080", pool: app}
pools:
  app:
    backends:
      - http://10.0.1.21:8080
      - {url: "http://10.0.1.22:8080", weight: 0}
    timeouts: {connect: none}
`

// TestOutline finds places by path and paths by place, and edits without
// showing what the environment holds.
func TestOutline(t *testing.T) {
	plan, o, err := ParseOutlined("o.yaml", []byte(outlined), lookup)
	if err != nil {
		t.Fatal(err)
	}
	if got := o.At("pools", "app", "timeouts", "connect"); got.Pos.Line != 8 || got.Pos.Col != 16 || got.Len != 7 {
		t.Errorf("connect is at %+v", got)
	}
	if got := o.At("pools", "app", "health", "active", "fall"); got.Pos.Line != 4 || got.Pos.Col != 3 {
		t.Errorf("what is absent is at %+v, not at the pool", got)
	}
	if got := o.At("nothing"); got.Pos.Line != 1 || got.Pos.Col != 1 {
		t.Errorf("nothing is at %+v", got)
	}
	if o.Has("pools", "app", "balance") || !o.Has("pools", "app", "backends", "1", "weight") || o.Has("pools", "app", "backends", "2") {
		t.Error("Has is wrong")
	}
	if got := o.PathOf(plan.Pools[0].Backends[1].Pos); !slices.Equal(got, []string{"pools", "app", "backends", "1"}) {
		t.Errorf("the second backend is %q", got)
	}
	if got := o.PathOf(plan.Warnings[0].Pos); !slices.Equal(got, []string{"pools", "app", "backends", "1", "weight"}) {
		t.Errorf("the weight is %q", got)
	}
	if got := o.PathOf(Position{File: "o.yaml", Line: 99, Col: 1}); got != nil {
		t.Errorf("nowhere is %q", got)
	}
	edits := []Edit{
		{Path: []string{"pools", "app", "backends", "1", "weight"}, Value: "1"},
		{Path: []string{"pools", "app", "timeouts", "connect"}},
		{Path: []string{"pools", "app", "health", "active", "path"}, Value: "/readyz"},
		{Path: []string{"pools", "app", "backends", "0"}, Value: "http://10.0.1.20:8080", Insert: true},
		{Path: []string{"listeners", "web", "bind"}, Value: `["${HOST}:8080", ":8081"]`},
	}
	// An index counts before earlier insertions: the weight was changed first.
	fragment, err := o.Fragment(edits...)
	if err != nil {
		t.Fatal(err)
	}
	const want = `pools:
  app:
    backends:
      - http://10.0.1.20:8080
      - http://10.0.1.21:8080
      - {url: "http://10.0.1.22:8080", weight: 1}
    health:
      active: {path: /readyz}
listeners:
  web:
    bind: ["${HOST}:8080", ":8081"]
`
	if fragment != want {
		t.Errorf("fragment:\n%s\nwant:\n%s", fragment, want)
	}
	whole, err := o.Apply(edits...)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := Overlay(outlined, fragment)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{whole, merged} {
		after, err := Parse("after.yaml", []byte(text), lookup)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if p := after.Pools[0]; len(p.Backends) != 3 || p.Backends[2].Weight != 1 || p.Active.Path != "/readyz" || after.Listeners[0].Bind[0] != "127.0.0.1:8080" {
			t.Errorf("after the edits:\n%s", text)
		}
	}
	for _, bad := range []Edit{
		{Path: []string{"pools", "app", "backends", "7"}, Value: "x"},
		{Path: []string{"pools", "app", "backends", "x", "y"}, Value: "x"},
		{Path: []string{"pools", "app", "balance"}, Value: "{"},
	} {
		if _, err := o.Apply(bad); err == nil {
			t.Errorf("%v was made", bad)
		}
	}
}

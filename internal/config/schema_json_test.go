// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("weir.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("weir.json") // checks it against its meta-schema
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON is what an editor makes of a YAML text: the core schema of YAML 1.2.
func asJSON(n *node) any {
	switch n.kind {
	case mapping:
		m := map[string]any{}
		for _, p := range n.pairs {
			m[p.key.text] = asJSON(p.value)
		}
		return m
	case list:
		l := []any{}
		for _, i := range n.items {
			l = append(l, asJSON(i))
		}
		return l
	}
	text := n.text
	if n.raw != "" {
		return n.raw
	}
	if !n.quoted {
		if text == "true" || text == "false" {
			return text == "true"
		}
		if v, err := strconv.ParseFloat(text, 64); err == nil && text[0] >= '0' && text[0] <= '9' {
			return v
		}
	}
	return text
}

func rootOf(t *testing.T, text string) *node {
	t.Helper()
	f, root := tree("t.yaml", []byte(text), lookup)
	if root == nil {
		t.Fatal(f.err())
	}
	return root
}

// TestJSONSchema holds the schema to the parser: what parses is valid, also as
// weir prints it, and the mistakes that a schema can see are not.
func TestJSONSchema(t *testing.T) {
	s := compiledSchema(t)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Parse(file, text, lookup)
		if err != nil {
			continue
		}
		valid++
		for _, text := range []string{string(text), string(plan.YAML(true)), string(plan.YAML(false))} {
			if err := s.Validate(asJSON(rootOf(t, text))); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if valid < 10 {
		t.Errorf("only %d configurations parse", valid)
	}
	const front = "listeners: {web: {bind: \":8080\", pool: app}}\npools: {app: {backends: [\"http://10.0.1.21:8080\"]"
	for _, bad := range []string{
		"listeners: []",
		"include: {a: b}",
		front + ", balancing: p2c}}",
		front + ", balance: fastest}}",
		front + ", health: {active: {interval: 5}}}}",
		front + ", health: {active: {interval: 5 seconds}}}}",
		front + ", health: {active: {fall: 1000}}}}",
		front + ", health: {active: {fall: [3]}}}}",
		front + ", retry: {budget: 0.2}}}",
		front + ", limits: {requests: many}}}",
		"listeners: {web: {bind: \":8080\", http: {max_body: 10MB}, pool: app}}",
		"listeners: {web: {bind: \":8080\", routes: {match: {}}}}",
	} {
		if err := s.Validate(asJSON(rootOf(t, bad))); err == nil {
			t.Errorf("valid: %s", bad)
		}
	}
}

// TestJSONSchemaGolden shows what changes in the schema; -rewrite writes it.
func TestJSONSchemaGolden(t *testing.T) {
	const file = "../../docs/weir.schema.json"
	if *rewrite {
		if err := os.WriteFile(file, JSONSchema(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(JSONSchema(), want) {
		t.Errorf("%s is not up to date: run go generate ./internal/config", file)
	}
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
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

// TestJSONSchemaOfExamples holds the schema to every configuration of the tree:
// those that are read are valid by it, file by file where there are several, and of
// those with a mistake it finds what it can.
func TestJSONSchemaOfExamples(t *testing.T) {
	s := compiledSchema(t)
	validate := func(text string) (ok, yaml bool, why error) {
		_, root := tree("t.yaml", []byte(text), lookup)
		if root == nil || root.kind != mapping {
			return false, false, nil
		}
		why = s.Validate(asJSON(root))
		return why == nil, true, why
	}
	good := 0
	for name, text := range exampleTexts(t) {
		plan, err := Parse(name, []byte(text), lookup)
		if err != nil {
			continue
		}
		good++
		for _, text := range []string{text, string(plan.YAML(false))} {
			if ok, _, why := validate(text); !ok {
				t.Errorf("%s is read and not valid: %v", name, why)
			}
		}
	}
	archives, err := filepath.Glob("testdata/files/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		a, err := txtar.ParseFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if want := a.Files[len(a.Files)-1]; !bytes.Contains(want.Data, []byte("\nfiles: ")) {
			continue
		}
		for _, f := range a.Files {
			if ok, yaml, why := validate(string(f.Data)); yaml && !ok && filepath.Ext(f.Name) == ".yaml" && filepath.Base(f.Name)[0] != '.' {
				t.Errorf("%s, %s: %v", archive, f.Name, why)
			}
		}
	}
	found, all := 0, 0
	archives, err = filepath.Glob("testdata/mistakes/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		a, err := txtar.ParseFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if filepath.Ext(f.Name) != ".yaml" {
				continue
			}
			if ok, yaml, _ := validate(string(f.Data)); yaml {
				all++
				if !ok {
					found++
				}
			}
		}
	}
	t.Logf("%d configurations are valid; of %d with a mistake the schema finds %d", good, all, found)
	if good < 100 || found < 120 {
		t.Errorf("%d configurations are valid; of %d with a mistake the schema finds %d", good, all, found)
	}
}

// exampleTexts are the configurations of tests, lints and documents.
func exampleTexts(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"testdata/*.yaml", "../lint/testdata/*.yaml", "../../README.md", "../../docs/*.md", "../../docs/lints/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(f) == ".yaml" {
				out[f] = string(text)
				continue
			}
			for i, m := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
				out[f+" "+itoa(i+1)] = m[1]
			}
		}
	}
	return out
}

var yamlBlock = regexp.MustCompile("(?s)(?:```yaml\n|<<'END'\n)(.*?)(?:```|\nEND)")

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

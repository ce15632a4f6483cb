// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
)

// Load reads and parses a file, or all *.yaml and *.yml of a folder, with what
// they include and the process's environment. The error is an *Errors when all
// of it could be read.
func Load(path string) (*Plan, error) {
	plan, _, err := LoadOutlined(path)
	return plan, err
}

// Parse turns a text into a Plan. name stands for the text in messages; env
// looks up environment variables, as os.LookupEnv does. The error is an *Errors
// with every fault of the text.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Plan, error) {
	f, root := tree(name, text, env)
	if root == nil {
		return nil, f.err()
	}
	return decodePlan(f, root, name)
}

// tree returns the root of a text and what is wrong with it so far; without a
// root there is at least one fault.
func tree(name string, text []byte, env func(string) (string, bool)) (*faults, *node) {
	if len(text) > maxText {
		f := &faults{src: newSource(name, "")}
		f.list = []Fault{{
			Pos: Position{File: name, Line: 1, Col: 1}, Len: 1,
			What: "the text is larger than " + showBytes(maxText), Fix: "check that this is a configuration",
		}}
		return f, nil
	}
	body := strings.TrimPrefix(string(text), "\ufeff")
	f := &faults{src: newSource(name, body)}
	b := &builder{faults: f, env: env}
	return f, b.parse(body)
}

// decodePlan reads the tree of a configuration.
func decodePlan(f *faults, root *node, name string) (*Plan, error) {
	plan := defaultsOf(planFields)
	plan.File = name
	d := &decoder{faults: f, plan: &plan}
	readBlock(d, root, "the configuration", planFields, &plan)
	if root.kind == mapping && root.lacks("listeners") {
		at := Position{File: name, Line: 1, Col: 1}
		if f.all != nil && f.file(name) < 0 {
			at = Position{File: name} // a folder: no line of any of its files
		}
		d.fault(&node{kind: scalar, pos: at, width: 1}, "there is no listener", `add listeners: {web: {bind: ":8080", pool: NAME}}`)
	} else if p := root.get("listeners"); p != nil && p.value.kind == mapping && len(p.value.pairs) == 0 {
		d.fault(p.value, "there is no listener", `write {web: {bind: ":8080", pool: NAME}}`)
	}
	checkPlan(d, root)
	if err := f.err(); err != nil {
		return nil, err
	}
	plan.Warnings = d.finishWarnings()
	plan.secrets = f.envSecrets
	return &plan, nil
}

// parse returns the root of a text, or nil after a fault that leaves nothing to
// look at.
func (b *builder) parse(body string) (root *node) {
	whole := func(what, fix string) *node {
		b.add(Position{File: b.src.name, Line: 1, Col: 1}, 1, what, fix)
		return nil
	}
	switch {
	case !utf8.ValidString(body):
		b.notUTF8(body)
		return nil
	case strings.ContainsRune(body, 0):
		return whole("the text has a NUL character", "check that this is a configuration")
	}
	defer func() {
		if r := recover(); r != nil {
			// The parser is not ours; whatever it trips over is no configuration.
			root = whole(fmt.Sprintf("the YAML parser failed: %v", r), "simplify the text: plain block mappings and lists are always read")
		}
	}()
	if b.oddIndent() {
		return nil
	}
	tokens := lexer.Tokenize(body)
	before := len(b.faults.list) + b.faults.more
	guard(b.faults, b, tokens)
	if len(b.faults.list)+b.faults.more > before {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		b.syntax(err)
		return nil
	}
	var docs []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			docs = append(docs, doc.Body)
		}
	}
	switch {
	case len(docs) == 0:
		return whole("the configuration is empty", "begin with "+fiveLines)
	case len(docs) > 1:
		b.add(b.begin(docs[1]), 1, quote(strings.TrimSpace(b.src.line(b.begin(docs[1]).Line)))+" begins a second YAML document", "keep one document per file: remove the line ---")
		return nil
	}
	n := b.build(docs[0])
	if n.size > maxNodes {
		b.add(n.pos, 1, "the configuration is too large when its aliases are expanded", "use fewer aliases")
		return nil
	}
	return n
}

// fiveLines is the smallest configuration.
const fiveLines = "listeners: {web: {bind: \":8080\", pool: app}}, and in the next line pools: {app: {backends: [\"http://10.0.1.21:8080\"]}}"

func (b *builder) notUTF8(body string) {
	line := 1
	for i, r := range body {
		if r == '\n' {
			line++
		}
		if _, size := utf8.DecodeRuneInString(body[i:]); r == utf8.RuneError && size == 1 {
			col := utf8.RuneCountInString(body[strings.LastIndexByte(body[:i], '\n')+1:i]) + 1
			b.src.lines = nil // not to be shown
			b.add(Position{File: b.src.name, Line: line, Col: col}, 1, "the text is not UTF-8", "save the file as UTF-8")
			return
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Outline remembers where each key of a configuration stands and how it was
// written, for those who have more to say about a Plan than it holds itself.
// It is immutable and safe for concurrent use.
//
// A path names a place: keys, and the index of an item as a number, such as
// "pools", "app", "backends", "0". Environment variables are as they were
// written, so that nothing of what they hold is shown.
type Outline struct {
	f    *faults // for the texts
	root *node
}

// Place is a piece of a text, to be shown.
type Place struct {
	Pos  Position
	Line string // the line of the text
	Len  int    // how many characters from Pos.Col on are meant, at least 1
}

// Excerpt returns the line of the text with a mark under the place, beginning
// with a line break; nothing when there is no text.
func (p Place) Excerpt() string { return excerpt(p.Line, p.Pos, p.Len) }

// LoadOutlined is Load, and returns the outline of the text beside the plan.
func LoadOutlined(path string) (*Plan, *Outline, error) {
	l, err := loadTree(path, os.LookupEnv)
	if err != nil {
		return nil, nil, err
	}
	return l.plan(path)
}

// ParseOutlined is Parse, and returns the outline of the text beside the plan.
func ParseOutlined(name string, text []byte, env func(string) (string, bool)) (*Plan, *Outline, error) {
	f, root := tree(name, text, env)
	if root == nil {
		return nil, nil, f.err()
	}
	plan, err := decodePlan(f, root, name)
	if err != nil {
		return nil, nil, err
	}
	return plan, &Outline{f: f, root: root}, nil
}

// below returns the pair's key and value, or the item, that a path leads to.
func (o *Outline) below(path []string) (key, value *node) {
	value = o.root
	for _, step := range path {
		key, value = child(value, step)
		if value == nil {
			return nil, nil
		}
	}
	return key, value
}

func child(n *node, step string) (key, value *node) {
	switch n.kind {
	case mapping:
		if p := n.get(step); p != nil {
			return p.key, p.value
		}
	case list:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.items) {
			return nil, n.items[i]
		}
	}
	return nil, nil
}

// Has reports whether the text says something at the path, even if that is the
// default.
func (o *Outline) Has(path ...string) bool {
	_, v := o.below(path)
	return v != nil
}

// At returns the place of a path: its key, or the item; where the text does not
// have it, the nearest place above that it has.
func (o *Outline) At(path ...string) Place {
	for ; len(path) > 0; path = path[:len(path)-1] {
		key, value := o.below(path)
		switch {
		case key != nil:
			return o.place(key)
		case value != nil:
			return o.place(value)
		}
	}
	return Place{Pos: Position{File: o.f.src.name, Line: 1, Col: 1}, Line: o.f.src.line(1), Len: 1}
}

func (o *Outline) place(n *node) Place {
	return Place{Pos: n.pos, Line: o.f.line(n.pos), Len: max(n.width, 1)}
}

// Compare orders places as they are read: by file, then by line and column.
func (o *Outline) Compare(a, b Position) int { return o.f.compare(a, b) }

// PathOf returns the path to what begins at a position: the key, the value or
// the item; of several the outermost. It is nil when nothing does.
func (o *Outline) PathOf(pos Position) []string {
	var walk func(n *node, path []string) []string
	walk = func(n *node, path []string) []string {
		if n.pos == pos && len(path) > 0 {
			return slices.Clone(path)
		}
		for _, p := range n.pairs {
			at := append(path, p.key.text)
			if p.key.pos == pos {
				return slices.Clone(at)
			}
			if found := walk(p.value, at); found != nil {
				return found
			}
		}
		for i, item := range n.items {
			if found := walk(item, append(path, strconv.Itoa(i))); found != nil {
				return found
			}
		}
		return nil
	}
	return walk(o.root, nil)
}

// Edit is a change of a configuration: a value, in YAML, to be written at a
// path, or what is there to be removed.
type Edit struct {
	Path   []string
	Value  string // YAML; empty removes
	Insert bool   // the last step of Path is an index before which Value is put
}

// Fragment returns the part of the configuration that edits change, as they
// leave it: a mapping to be merged into the text. A list is written whole.
// Edits that only remove a key of a mapping leave nothing to write.
func (o *Outline) Fragment(edits ...Edit) (string, error) {
	after, err := o.edited(edits)
	if err != nil {
		return "", err
	}
	out := &node{kind: mapping}
	for _, e := range edits {
		path := e.Path
		from := after
		for i, step := range path {
			if from == nil {
				break
			}
			if from.kind == list {
				path = path[:i]
				break
			}
			_, from = child(from, step)
		}
		if len(path) == len(e.Path) && e.Value == "" {
			continue
		}
		v := after
		for _, step := range path {
			_, v = child(v, step)
		}
		put(out, path, v)
	}
	var b strings.Builder
	printPairs(&b, out, "")
	return b.String(), nil
}

// Apply returns the whole configuration with the edits made, without its
// comments and layout.
func (o *Outline) Apply(edits ...Edit) (string, error) {
	after, err := o.edited(edits)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	printPairs(&b, after, "")
	return b.String(), nil
}

// edited returns a copy of the tree, as it was written, with the edits made.
func (o *Outline) edited(edits []Edit) (*node, error) {
	root := written(o.root)
	for _, e := range edits {
		if err := e.make(root); err != nil {
			return nil, fmt.Errorf("edit of %s: %w", strings.Join(e.Path, "."), err)
		}
	}
	return root, nil
}

// written copies a tree with the environment unexpanded.
func written(n *node) *node {
	c := &node{kind: n.kind, text: n.text, raw: n.raw, quoted: n.quoted}
	if n.raw != "" {
		c.text, c.quoted = n.raw, true
	}
	for _, p := range n.pairs {
		c.pairs = append(c.pairs, pair{written(p.key), written(p.value)})
	}
	for _, i := range n.items {
		c.items = append(c.items, written(i))
	}
	return c
}

func (e *Edit) make(root *node) error {
	n := root
	for _, step := range e.Path[:len(e.Path)-1] {
		_, next := child(n, step)
		switch {
		case next != nil && (next.kind == mapping || next.kind == list):
		case n.kind == mapping:
			next = &node{kind: mapping}
			set(n, step, next)
		default:
			return fmt.Errorf("there is no item %s", step)
		}
		n = next
	}
	last := e.Path[len(e.Path)-1]
	if n.kind == list {
		return e.makeItem(n, last)
	}
	if e.Value == "" {
		n.pairs = slices.DeleteFunc(n.pairs, func(p pair) bool { return p.key.text == last })
		return nil
	}
	v, err := valueNode(e.Value)
	if err != nil {
		return err
	}
	set(n, last, v)
	return nil
}

func (e *Edit) makeItem(n *node, last string) error {
	i, err := strconv.Atoi(last)
	if err != nil || i < 0 || i > len(n.items) || i == len(n.items) && !e.Insert {
		return fmt.Errorf("there is no item %s", last)
	}
	if e.Value == "" {
		n.items = slices.Delete(n.items, i, i+1)
		return nil
	}
	v, err := valueNode(e.Value)
	if err != nil {
		return err
	}
	if e.Insert {
		n.items = slices.Insert(n.items, i, v)
	} else {
		n.items[i] = v
	}
	return nil
}

func set(n *node, key string, v *node) {
	if p := n.get(key); p != nil {
		p.value = v
		return
	}
	n.pairs = append(n.pairs, pair{textNode(key), v})
}

// put writes a value below a path of mappings.
func put(n *node, path []string, v *node) {
	for _, step := range path[:len(path)-1] {
		_, next := child(n, step)
		if next == nil {
			next = &node{kind: mapping}
			set(n, step, next)
		}
		n = next
	}
	set(n, path[len(path)-1], v)
}

// valueNode reads a value of an edit.
func valueNode(text string) (*node, error) {
	f := &faults{src: newSource("edit", text)}
	b := &builder{faults: f, env: func(string) (string, bool) { return "", true }}
	n := b.parse("value: " + text)
	if err := f.err(); err != nil {
		return nil, err
	}
	return written(n.pairs[0].value), nil
}

// Overlay returns the text with a fragment merged into it: mappings key by key,
// everything else replaced. It is what an operator does by hand with a fragment
// of Outline.Fragment.
func Overlay(text, fragment string) (string, error) {
	var roots []*node
	for _, t := range []string{text, fragment} {
		f := &faults{src: newSource("text", t)}
		b := &builder{faults: f, env: func(string) (string, bool) { return "", true }}
		n := b.parse(t)
		if err := f.err(); err != nil {
			return "", err
		}
		roots = append(roots, written(n))
	}
	overlay(roots[0], roots[1])
	var b strings.Builder
	printPairs(&b, roots[0], "")
	return b.String(), nil
}

func overlay(n, over *node) {
	for _, p := range over.pairs {
		if at := n.get(p.key.text); at != nil && at.value.kind == mapping && p.value.kind == mapping {
			overlay(at.value, p.value)
			continue
		}
		set(n, p.key.text, p.value)
	}
}

// Quote returns a text as a value of an edit.
func Quote(s string) string {
	if !utf8.ValidString(s) || !plain.MatchString(s) {
		return quoted(s)
	}
	return s
}

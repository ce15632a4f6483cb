// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// node is a piece of a configuration: what YAML says, without YAML's ideas
// about types. It is also what a Plan is printed from.
type node struct {
	kind   nodeKind
	text   string // scalar: the source text, unquoted, environment expanded
	raw    string // scalar: the same before the environment was expanded, where that changed it
	quoted bool   // scalar: it was, or must be, written in quotes
	pos    Position
	width  int // characters of the source that a mark should cover
	pairs  []pair
	items  []*node
	meant  []string // mapping: keys that unknown ones in it were probably meant to be
	size   int      // nodes below and including this one, aliases expanded
}

type pair struct {
	key   *node
	value *node
}

type nodeKind uint8

const (
	nothing nodeKind = iota // a bare `key:`
	scalar
	mapping
	list
	faulty // reported already: it counts as given, and nothing more is said about it
)

// String names the kind for messages.
func (k nodeKind) String() string {
	return [...]string{"nothing", "a single value", "a mapping", "a list", "faulty"}[k]
}

// called names what a node is for messages, with the text of a single value.
func (n *node) called() string {
	if n.kind == scalar {
		return "the single value " + quote(n.text)
	}
	return n.kind.String()
}

// lacks reports whether a mapping neither has a key nor has an unknown one that
// was probably meant to be it, which is reported already.
func (n *node) lacks(key string) bool { return n.get(key) == nil && !slices.Contains(n.meant, key) }

// get returns the pair with the key, or nil.
func (n *node) get(key string) *pair {
	if n == nil {
		return nil
	}
	for i := range n.pairs {
		if n.pairs[i].key.text == key {
			return &n.pairs[i]
		}
	}
	return nil
}

// at returns the value of a key for a message about it, or n itself.
func (n *node) at(path ...string) *node {
	for _, key := range path {
		p := n.get(key)
		if p == nil {
			return n
		}
		n = p.value
	}
	return n
}

// maxNodes bounds a configuration with its aliases expanded: enough for
// hundreds of thousands of backends, and an alias bomb is refused at once.
const maxNodes = 2_000_000

// builder turns YAML's tree into nodes.
type builder struct {
	*faults
	env     func(string) (string, bool)
	anchors map[string]*node // nil value: being defined
	flow    int              // how deep in flow collections
}

func (b *builder) fault(n *node, what, fix string) { b.add(n.pos, n.width, what, fix) }

func (b *builder) position(t *token.Token) Position {
	p := Position{File: b.src.name, Line: 1, Col: 1}
	if t != nil && t.Position != nil {
		p.Line = min(max(t.Position.Line, 1), len(b.src.lines))
		p.Col = max(t.Position.Column, 1)
	}
	return p
}

// build returns the node for a YAML node; on a fault it returns what is still
// of use, so that the rest is checked too.
func (b *builder) build(a ast.Node) *node {
	switch v := a.(type) {
	case nil:
		return &node{kind: nothing, size: 1}
	case *ast.MappingNode:
		return b.mapping(v)
	case *ast.MappingValueNode:
		return b.pairs(b.position(v.Key.GetToken()), []*ast.MappingValueNode{v})
	case *ast.SequenceNode:
		return b.sequence(v)
	case *ast.AnchorNode:
		return b.anchor(v)
	case *ast.AliasNode:
		return b.alias(v)
	case *ast.NullNode:
		return b.null(v)
	case *ast.TagNode:
		n := b.build(v.Value)
		b.add(b.position(v.GetToken()), len(v.GetToken().Value), "YAML tags are not used here", "remove "+quote(v.GetToken().Value))
		return n
	case *ast.LiteralNode:
		n := &node{kind: scalar, quoted: true, pos: b.position(v.GetToken()), width: 1, size: 1}
		if v.Value != nil {
			n.text = v.Value.Value
		}
		return b.expanded(n)
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return b.scalar(a)
	default:
		n := &node{kind: nothing, pos: b.position(a.GetToken()), width: 1, size: 1}
		b.fault(n, "this piece of YAML is not used here", "write a value, a list or a mapping")
		return n
	}
}

func (b *builder) scalar(a ast.Node) *node {
	t := a.GetToken()
	n := &node{kind: scalar, text: t.Value, pos: b.position(t), size: 1}
	if s, ok := a.(*ast.StringNode); ok {
		n.text = s.Value
	}
	n.quoted = t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType
	n.width = utf8.RuneCountInString(n.text)
	if n.quoted {
		n.width += 2
	}
	return b.expanded(n)
}

func (b *builder) expanded(n *node) *node {
	out, what, fix := expand(n.text, func(name string) (string, bool) {
		v, ok := b.env(name)
		if secretName(name) {
			b.secretOf(v)
		}
		return v, ok
	})
	if what != "" {
		b.fault(n, what, fix)
		n.text = ""
		n.kind = faulty
		return n
	}
	if r, _ := utf8.DecodeRuneInString(n.text); !n.quoted && strings.ContainsRune("“”‘’„«»", r) {
		b.fault(n, quote(n.text)+" begins with a quote that YAML does not know", `write "`+strings.Trim(n.text, "“”‘’„«»")+`" in straight quotes`)
		n.kind = faulty
		return n
	}
	if out == Masked {
		b.fault(n, Masked+" stands for a secret that was not shown where this text comes from", `write the secret itself, or take it from the environment: "${NAME}"`)
		n.kind = faulty
		return n
	}
	if !utf8.ValidString(out) {
		b.fault(n, "the value is not UTF-8 text", "check the environment variable")
		n.kind = faulty
		return n
	}
	if out != n.text {
		n.raw = n.text
	}
	n.text = out
	return n
}

// null tells `key:` from `key: ~`; both are refused where they are read.
func (b *builder) null(v *ast.NullNode) *node {
	n := &node{kind: nothing, pos: b.position(v.GetToken()), width: 1, size: 1}
	if t := v.GetToken(); strings.TrimSpace(t.Origin) != "" && b.shows(n.pos, t.Value) {
		n.text = t.Value
		n.width = len(t.Value)
	}
	return n
}

// shows reports whether the text has s at the position.
func (b *builder) shows(p Position, s string) bool {
	line := b.src.runes(p.Line)
	return p.Col-1+len(s) <= len(line) && string(line[p.Col-1:p.Col-1+len(s)]) == s
}

// begin is where a YAML node begins; the library calls the first colon the
// beginning of a block mapping.
func (b *builder) begin(a ast.Node) Position {
	if m, ok := a.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return b.position(m.Values[0].Key.GetToken())
	}
	return b.position(a.GetToken())
}

func (b *builder) mapping(v *ast.MappingNode) *node {
	if v.IsFlowStyle {
		b.flow++
		defer func() { b.flow-- }()
	}
	return b.pairs(b.begin(v), v.Values)
}

func (b *builder) pairs(pos Position, values []*ast.MappingValueNode) *node {
	n := &node{kind: mapping, pos: pos, width: 1, size: 1}
	seen := make(map[string]*node, len(values))
	var merges []*node
	for _, mv := range values {
		if _, ok := mv.Key.(*ast.MergeKeyNode); ok {
			m := b.build(mv.Value)
			merges = append(merges, m)
			n.size = min(n.size+m.size, maxNodes+1)
			continue
		}
		key := b.key(mv.Key)
		if key == nil {
			continue
		}
		value := b.build(mv.Value)
		if value.kind == nothing && (value.pos.Line == 0 || value.text == "") {
			value.pos, value.width = key.pos, key.width
		}
		n.size = min(n.size+value.size, maxNodes+1)
		if first := seen[key.text]; first != nil {
			b.fault(key, quote(key.text)+" is given twice", "keep one of them; the first is in line "+itoa(first.pos.Line))
			continue
		}
		seen[key.text] = key
		n.pairs = append(n.pairs, pair{key, value})
	}
	for _, m := range merges {
		b.merge(n, m, seen)
	}
	return n
}

// merge adds the pairs of `<<`; keys that are there already win.
func (b *builder) merge(n, m *node, seen map[string]*node) {
	switch m.kind {
	case mapping:
		for _, p := range m.pairs {
			if seen[p.key.text] == nil {
				seen[p.key.text] = p.key
				n.pairs = append(n.pairs, p)
			}
		}
	case list:
		for _, item := range m.items {
			if item.kind != mapping {
				b.fault(item, "<< merges mappings only", "name an alias of a mapping")
				continue
			}
			b.merge(n, item, seen)
		}
	case faulty:
	default:
		b.fault(m, "<< merges mappings only", "name an alias of a mapping, as in <<: *defaults")
	}
}

// key returns a mapping's key, which must be plain text.
func (b *builder) key(k ast.MapKeyNode) *node {
	t := k.GetToken()
	n := &node{kind: scalar, pos: b.position(t), size: 1}
	switch v := k.(type) {
	case *ast.StringNode:
		n.text = v.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		n.text = t.Value
	default:
		n.width = 1
		b.fault(n, "this cannot be a key", "write the key as plain text")
		return nil
	}
	n.quoted = t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType
	n.width = max(utf8.RuneCountInString(n.text), 1)
	return n
}

func (b *builder) sequence(v *ast.SequenceNode) *node {
	if v.IsFlowStyle {
		b.flow++
		defer func() { b.flow-- }()
	}
	n := &node{kind: list, pos: b.position(v.GetToken()), width: 1, size: 1}
	for _, item := range v.Values {
		c := b.item(item)
		n.size = min(n.size+c.size, maxNodes+1)
		n.items = append(n.items, c)
	}
	return n
}

// item undoes a misreading: in a list inside a flow mapping the library takes
// `http://10.0.1.21:8080` and `header:X` for mappings, although a colon without
// a space behind it separates nothing (YAML 1.2.2 section 7.3.3).
func (b *builder) item(a ast.Node) *node {
	var mv *ast.MappingValueNode
	switch v := a.(type) {
	case *ast.MappingNode:
		if v.IsFlowStyle || len(v.Values) != 1 {
			return b.build(a)
		}
		mv = v.Values[0]
	case *ast.MappingValueNode:
		mv = v
	default:
		return b.build(a)
	}
	key, colon := mv.Key.GetToken(), mv.Start
	if b.flow == 0 || colon == nil || colon.Type != token.MappingValueType || key.Position.Line != colon.Position.Line {
		return b.build(a)
	}
	line := b.src.runes(colon.Position.Line)
	if c := colon.Position.Column; c >= len(line) || c < 1 || strings.ContainsRune(" \t,]}", line[c]) {
		return b.build(a)
	}
	n := &node{kind: scalar, pos: b.position(key), size: 1}
	value, ok := mv.Value.(ast.ScalarNode)
	if !ok || key.Type == token.DoubleQuoteType || key.Type == token.SingleQuoteType ||
		value.GetToken().Type == token.DoubleQuoteType || value.GetToken().Type == token.SingleQuoteType ||
		value.GetToken().Position.Line != colon.Position.Line || value.GetToken().Position.Column != colon.Position.Column+1 {
		n.kind, n.width = faulty, 1
		b.fault(n, "YAML may read this as a mapping", "put it in quotes")
		return n
	}
	n.text = key.Value + ":" + value.GetToken().Value
	n.width = utf8.RuneCountInString(n.text)
	return b.expanded(n)
}

func (b *builder) anchor(v *ast.AnchorNode) *node {
	name := ""
	if v.Name != nil {
		name = v.Name.GetToken().Value
	}
	if b.anchors == nil {
		b.anchors = map[string]*node{}
	}
	b.anchors[name] = nil
	n := b.build(v.Value)
	b.anchors[name] = n
	return n
}

func (b *builder) alias(v *ast.AliasNode) *node {
	name := ""
	if v.Value != nil {
		name = v.Value.GetToken().Value
	}
	at := &node{kind: faulty, pos: b.position(v.GetToken()), width: utf8.RuneCountInString(name) + 1, size: 1}
	target, known := b.anchors[name]
	switch {
	case strings.HasPrefix(name, "."):
		b.fault(at, "YAML reads an unquoted "+quote("*"+name)+" as an alias", `write "*`+name+`" in quotes`)
	case !known && strings.ContainsFunc(name, func(r rune) bool { return !isEnvName("a"+string(r)) && r != '-' && r != '.' }):
		b.fault(at, "YAML reads an unquoted "+quote("*"+name)+" as an alias", `put it in quotes`)
	case !known:
		b.fault(at, "the alias "+quote("*"+name)+" names nothing", "define it before with &"+name+", or put the text in quotes")
	case target == nil:
		b.fault(at, "the alias "+quote("*"+name)+" lies within itself", "write the value out")
	default:
		return target
	}
	return at
}

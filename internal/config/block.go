// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// group is a key with keys below it, kept in a U within the T.
type group[T, U any] struct {
	s      spec
	at     func(*T) *U
	fields []field[U]
	off    func(*U) *bool                  // set by none, off, false, no
	offBy  func(*U)                        // alternative to off: what switching off means
	base   func(plan *Plan, t *T) U        // defaults that depend on the rest of the plan
	check  func(d *decoder, n *node, u *U) // after reading
}

// keys declares a group.
func keys[T, U any](name, doc string, at func(*T) *U, fields []field[U]) *group[T, U] {
	g := &group[T, U]{at: at, fields: fields}
	g.s = spec{name: name, kind: "mapping", doc: doc, subs: specsOf(fields)}
	return g
}

// switched lets none, off, false and no set a flag.
func (g *group[T, U]) switched(off func(*U) *bool) *group[T, U] {
	g.off, g.s.off = off, "off"
	return g
}

// offMeans lets none, off, false and no change the block.
func (g *group[T, U]) offMeans(by func(*U)) *group[T, U] {
	g.offBy, g.s.off = by, "off"
	return g
}

// checked adds a check that is made after reading.
func (g *group[T, U]) checked(check func(d *decoder, n *node, u *U)) *group[T, U] {
	g.check = check
	return g
}

// basedOn makes the defaults depend on the rest of the plan.
func (g *group[T, U]) basedOn(base func(plan *Plan, t *T) U) *group[T, U] {
	g.base = base
	return g
}

func (g *group[T, U]) spec() *spec { return &g.s }

func (g *group[T, U]) read(d *decoder, n *node, t *T) bool {
	u := g.at(t)
	if g.base != nil {
		*u = g.base(d.plan, t)
	}
	switch {
	case g.off != nil && switchedOff(n):
		*g.off(u) = true
		return false
	case g.offBy != nil && switchedOff(n):
		g.offBy(u)
		return false
	case g.s.off != "" && switchedOn(n):
		n = &node{kind: mapping, pos: n.pos, width: n.width}
	}
	readBlock(d, n, g.s.name, g.fields, u)
	if g.check != nil && n.kind == mapping {
		g.check(d, n, u)
	}
	return false
}

func (g *group[T, U]) absent(d *decoder, t *T) bool {
	if g.base != nil {
		*g.at(t) = g.base(d.plan, t)
	}
	return false
}

func (g *group[T, U]) settle(*T) {}

func (g *group[T, U]) defaults(t *T) {
	for _, f := range g.fields {
		f.defaults(g.at(t))
	}
	for _, f := range g.fields {
		if f.spec().def == "auto" {
			f.settle(g.at(t))
		}
	}
}

func (g *group[T, U]) write(w *writer, t, ref *T) *node {
	u, r := g.at(t), g.at(ref)
	if g.base != nil {
		b := g.base(w.plan, t)
		r = &b
	}
	if g.off != nil && *g.off(u) {
		return &node{kind: scalar, text: "off"}
	}
	n := writeBlock(w, g.fields, u, r)
	if len(n.pairs) == 0 {
		return nil
	}
	return n
}

// optional is a group that is absent by default.
type optional[T, U any] struct {
	s      spec
	at     func(*T) **U
	fields []field[U]
	check  func(d *decoder, n *node, u *U)
	whole  bool // on, true and yes stand for it with all its defaults
}

// orOn lets on, true and yes stand for the group with its defaults.
func (o *optional[T, U]) orOn() *optional[T, U] {
	o.whole = true
	return o
}

// maybe declares an optional group; off says whether `none` may be written.
func maybe[T, U any](name, off, doc string, at func(*T) **U, fields []field[U], check func(*decoder, *node, *U)) *optional[T, U] {
	return &optional[T, U]{
		s:  spec{name: name, kind: "mapping", def: off, off: off, doc: doc, subs: specsOf(fields)},
		at: at, fields: fields, check: check,
	}
}

func (o *optional[T, U]) spec() *spec { return &o.s }

func (o *optional[T, U]) read(d *decoder, n *node, t *T) bool {
	if o.s.off != "" && switchedOff(n) {
		return false
	}
	if o.whole && switchedOn(n) {
		n = &node{kind: mapping, pos: n.pos, width: n.width}
	}
	u := defaultsOf(o.fields)
	*o.at(t) = &u
	readBlock(d, n, o.s.name, o.fields, &u)
	if o.check != nil && n.kind == mapping {
		o.check(d, n, &u)
	}
	return false
}

func (o *optional[T, U]) absent(*decoder, *T) bool { return false }
func (o *optional[T, U]) settle(*T)                {}
func (o *optional[T, U]) defaults(*T)              {}

func (o *optional[T, U]) write(w *writer, t, _ *T) *node {
	u := *o.at(t)
	if u == nil {
		return nil
	}
	ref := defaultsOf(o.fields)
	n := writeBlock(w, o.fields, u, &ref)
	if o.whole && len(n.pairs) == 0 {
		return &node{kind: scalar, text: "on"}
	}
	return n
}

// several is a list of blocks, or a mapping from names to blocks.
type several[T, U any] struct {
	s      spec
	at     func(*T) *[]U
	what   string // one of them, for messages
	fields []field[U]
	begin  func(d *decoder, key, n *node, u *U)      // before reading: name, position
	end    func(d *decoder, key, n *node, u *U)      // after reading: checks across keys
	short  func(d *decoder, n *node, u *U) bool      // reads an item that is a single value
	brief  func(w *writer, u *U) *node               // writes an item as a single value, or nil
	name   func(u *U) string                         // the key of a named entry
	after  func(d *decoder, n *node, t *T, list []U) // when all are read
	ref    U
}

func (l *several[T, U]) spec() *spec { return &l.s }

func (l *several[T, U]) read(d *decoder, n *node, t *T) bool {
	var out []U
	switch {
	case n.kind == faulty:
		return false
	case l.name != nil && n.kind == mapping:
		for _, p := range n.pairs {
			if l.misplaced(d, p) {
				continue
			}
			out = l.one(d, p.key, p.value, out)
		}
	case l.name == nil && n.kind == list:
		for _, item := range n.items {
			out = l.one(d, nil, item, out)
		}
	case l.name != nil:
		d.fault(n, l.s.name+" is "+n.called()+", not a mapping", "write a name for each "+l.what+" and its keys below it")
		return false
	case n.kind == scalar && strings.HasPrefix(n.text, "-") && !n.quoted:
		d.fault(n, l.s.name+" is "+n.called()+", not a list", "put a space behind the dash: - "+n.text[1:])
		return false
	default:
		d.fault(n, l.s.name+" is "+n.called()+", not a list", "write each "+l.what+" behind a dash, or all in [ ]")
		return false
	}
	*l.at(t) = out
	if l.after != nil {
		l.after(d, n, t, out)
	}
	return false
}

// misplaced reports a block of the top level that was indented into this one. A
// name may be the same: what is below it tells.
func (l *several[T, U]) misplaced(d *decoder, p pair) bool {
	if l.s.in != nil || d.known != nil || p.value.kind != mapping || len(p.value.pairs) == 0 ||
		!slices.ContainsFunc(schema, func(s *spec) bool { return s.name == p.key.text }) ||
		slices.ContainsFunc(p.value.pairs, func(q pair) bool {
			return slices.ContainsFunc(l.fields, func(f field[U]) bool { return f.spec().name == q.key.text })
		}) {
		return false
	}
	d.fault(p.key, p.key.text+" is indented, so that it would be a "+l.what, "begin "+p.key.text+" in column 1: it is a block of its own")
	d.misplaced = append(d.misplaced, p.key.text)
	return true
}

func (l *several[T, U]) one(d *decoder, key, n *node, out []U) []U {
	u := l.ref
	what, at := withArticle(l.what), n
	if key != nil {
		what, at = l.what+" "+key.text, key
	}
	switch n.kind {
	case faulty:
		return out
	case nothing:
		d.fault(at, what+" has no value", "write its keys, or remove it")
		return out
	}
	if l.begin != nil {
		l.begin(d, key, n, &u)
	}
	if n.kind == scalar && l.short != nil {
		if !l.short(d, n, &u) {
			return out
		}
	} else {
		readBlock(d, n, what, l.fields, &u)
		if n.kind != mapping {
			return out
		}
	}
	if l.end != nil {
		l.end(d, key, n, &u)
	}
	return append(out, u)
}

// withArticle puts "a" or "an" before a word.
func withArticle(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an " + word
	}
	return "a " + word
}

func (l *several[T, U]) absent(*decoder, *T) bool { return false }
func (l *several[T, U]) settle(*T)                {}
func (l *several[T, U]) defaults(*T)              {}

func (l *several[T, U]) write(w *writer, t, _ *T) *node {
	all := *l.at(t)
	if len(all) == 0 {
		return nil
	}
	n := &node{kind: list}
	if l.name != nil {
		n.kind = mapping
	}
	for i := range all {
		u := &all[i]
		var v *node
		if l.brief != nil && !w.long {
			v = l.brief(w, u)
		}
		if v == nil {
			v = writeBlock(w, l.fields, u, &l.ref)
		}
		if l.name != nil {
			n.pairs = append(n.pairs, pair{textNode(l.name(u)), v})
		} else {
			n.items = append(n.items, v)
		}
	}
	return n
}

// named returns the name and the place of what a key begins, and says what is
// wrong with the name.
func named(d *decoder, key *node) (string, Position) {
	if what, fix := goodName(key.text); what != "" {
		d.fault(key, what, fix)
	}
	return key.text, key.pos
}

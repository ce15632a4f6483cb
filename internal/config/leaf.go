// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"sync"
)

// leaf is a key whose value is kept in a V.
type leaf[T, V any] struct {
	s      spec
	codec  codec[V]
	at     func(*T) *V // nil: known but not built; only the default is accepted
	words  []namedValue[V]
	offV   V
	auto   func(*T) V // decides "auto"
	noNone bool       // "none" would be ambiguous
	def    func() V
}

type namedValue[V any] struct {
	name  string
	value V
}

// key declares a leaf. def is what a user would have to write to get the
// default; empty when the key is absent by default.
func key[T, V any](name, def string, c codec[V], at func(*T) *V, doc string) *leaf[T, V] {
	l := &leaf[T, V]{codec: c, at: at}
	l.s = spec{name: name, kind: c.kind(), def: def, rng: c.rng(), doc: doc, later: at == nil}
	l.def = sync.OnceValue(l.readDefault)
	return l
}

// later declares a key that is known but not built yet: only its default, and
// what switches it off, is accepted.
func later[T, V any](name, def string, c codec[V], doc string) *leaf[T, V] {
	return key[T, V](name, def, c, nil, doc)
}

// readDefault parses the default. A default that does not parse is a mistake in
// the table, which every test finds.
func (l *leaf[T, V]) readDefault() V {
	var v V
	if l.s.def == "" || l.s.def == "auto" && l.auto != nil {
		return v
	}
	n := &node{kind: scalar, text: l.s.def, quoted: true}
	switch l.s.def {
	case "[]":
		n = &node{kind: list}
	case "{}":
		n = &node{kind: mapping}
	case `""`:
		n.text = ""
	default:
		if list, ok := strings.CutPrefix(l.s.def, "["); ok {
			n = listNode(strings.TrimSuffix(list, "]"))
		}
	}
	d := &decoder{faults: &faults{}}
	v, _ = l.scan(d, n)
	if len(d.list) > 0 {
		panic(fmt.Sprintf("default of %s: %s", l.s.name, d.list[0]))
	}
	return v
}

// listNode is the list of the words of a default.
func listNode(words string) *node {
	n := &node{kind: list}
	for item := range strings.SplitSeq(words, ", ") {
		n.items = append(n.items, &node{kind: scalar, text: item})
	}
	return n
}

// off lets none, off, false and no switch the key off; word is the one to show.
func (l *leaf[T, V]) off(word string, v V) *leaf[T, V] {
	l.s.off, l.offV = word, v
	return l
}

// zero says that 0 is the value that allows nothing, so that "none", which could
// mean no limit as well as nothing, is refused.
func (l *leaf[T, V]) zero() *leaf[T, V] {
	l.noNone, l.s.zero = true, true
	return l
}

// word gives a name to a value.
func (l *leaf[T, V]) word(name string, v V) *leaf[T, V] {
	l.words = append(l.words, namedValue[V]{name, v})
	l.s.kind += " or " + name
	return l
}

// decide settles the word "auto" from the rest of the block.
func (l *leaf[T, V]) decide(auto func(*T) V) *leaf[T, V] {
	l.auto = auto
	l.s.kind += " or auto"
	return l
}

func (l *leaf[T, V]) spec() *spec { return &l.s }

func (l *leaf[T, V]) scan(d *decoder, n *node) (V, bool) {
	if l.s.off != "" && switchedOff(n) {
		return l.offV, true
	}
	if l.noNone && switchedOff(n) {
		if n.text != "none" {
			return l.offV, true
		}
		d.fault(n, l.s.name+": none could mean no limit or nothing at all", "write 0 for nothing, or a number")
		return l.offV, false
	}
	if n.kind == scalar {
		for _, w := range l.words {
			if w.name == n.text {
				return w.value, true
			}
		}
	}
	return l.codec.scan(d, n, &l.s)
}

func (l *leaf[T, V]) read(d *decoder, n *node, t *T) bool {
	if l.auto != nil && n.kind == scalar && n.text == "auto" {
		return true
	}
	v, ok := l.scan(d, n)
	switch {
	case !ok:
	case l.at != nil:
		*l.at(t) = v
	case !same(l.show(v), l.show(l.def())) && !(l.s.off != "" && switchedOff(n)):
		d.fault(n, l.s.full()+" is not built yet in this version", "remove it"+leaveAt(l.s.def))
	}
	return false
}

func leaveAt(def string) string {
	if def == "" {
		return ""
	}
	return ", or leave it at " + def
}

func (l *leaf[T, V]) absent(*decoder, *T) bool { return l.s.def == "auto" }

func (l *leaf[T, V]) settle(t *T) {
	if l.auto != nil && l.at != nil {
		*l.at(t) = l.auto(t)
	}
}

func (l *leaf[T, V]) defaults(t *T) {
	if l.at != nil {
		*l.at(t) = l.def()
	}
}

func (l *leaf[T, V]) show(v V) *node {
	n := l.codec.show(v)
	if l.s.off != "" && same(n, l.codec.show(l.offV)) {
		return &node{kind: scalar, text: l.s.off}
	}
	for _, w := range l.words {
		if same(n, l.codec.show(w.value)) {
			return &node{kind: scalar, text: w.name}
		}
	}
	return n
}

func (l *leaf[T, V]) write(w *writer, t, ref *T) *node {
	if l.at == nil {
		return nil
	}
	n := l.show(*l.at(t))
	if w.full {
		if l.s.def == "" && same(n, l.show(l.def())) {
			return nil // absent by default, and there is no word for that
		}
		return n
	}
	standard := *l.at(ref)
	if l.auto != nil {
		standard = l.auto(t)
	}
	if same(n, l.show(standard)) {
		return nil
	}
	return n
}

// same compares what two nodes say.
func same(a, b *node) bool {
	if a.kind != b.kind || a.text != b.text || len(a.items) != len(b.items) || len(a.pairs) != len(b.pairs) {
		return false
	}
	for i := range a.items {
		if !same(a.items[i], b.items[i]) {
			return false
		}
	}
	for i := range a.pairs {
		if a.pairs[i].key.text != b.pairs[i].key.text || !same(a.pairs[i].value, b.pairs[i].value) {
			return false
		}
	}
	return true
}

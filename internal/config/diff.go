// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// Change is one difference between two plans, in the words of a configuration.
type Change struct {
	Op   string `json:"op"`   // added, removed, changed, moved
	Path string `json:"path"` // the key, such as pools.app.balance; NAME[x] is the item x of a list
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// The values of Change.Op.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
	Moved   = "moved" // the items of a list are the same, in another order
)

// String is one line for people: "+ what", "- what" or "~ what: old -> new".
func (c Change) String() string {
	behind := func(s string) string {
		if s == "" {
			return ""
		}
		return ": " + s
	}
	switch c.Op {
	case Added:
		return "+ " + c.Path + behind(c.New)
	case Removed:
		return "- " + c.Path + behind(c.Old)
	case Moved:
		return "~ " + c.Path + ": another order"
	default:
		return "~ " + c.Path + ": " + c.Old + " -> " + c.New
	}
}

// Diff returns what distinguishes two plans, in the order in which a
// configuration is written; old nil stands for a plan without anything. Values
// are those in force, so that writing out a default is no difference; secrets
// are masked. File names and positions do not count.
func Diff(old, next *Plan) []Change {
	d := &differ{mask: next.mask()}
	before := side{full: &node{kind: mapping}}
	if old != nil {
		before = old.side()
		d.mask.values = append(slices.Clone(d.mask.values), old.secrets...)
	}
	d.mapping("", before, next.side())
	return d.out
}

// side is a piece of one of the plans: with all that is in force, which is compared,
// and without what stands at its default, which is shown. short is nil where nothing
// is beside the defaults.
type side struct{ full, short *node }

func (p *Plan) side() side {
	ref := defaultsOf(planFields)
	return side{p.tree(), writeBlock(&writer{plan: p}, printOrder(), p, &ref)}
}

// below returns the piece behind a key.
func (s side) below(p *pair) side {
	out := side{full: p.value}
	if q := s.short.get(p.key.text); q != nil {
		out.short = q.value
	}
	return out
}

// told is what is shown of a piece as a whole.
func (s side) told() *node {
	if s.short != nil {
		return s.short
	}
	return s.full
}

// tree returns every key that has a value.
func (p *Plan) tree() *node {
	ref := defaultsOf(planFields)
	return writeBlock(&writer{plan: p, full: true, long: true}, printOrder(), p, &ref)
}

type differ struct {
	mask mask
	out  []Change
}

func (d *differ) add(op, path, old, next string) {
	if op == Changed && old == next {
		old, next = Masked, Masked+" (another one)"
	}
	d.out = append(d.out, Change{Op: op, Path: path, Old: old, New: next})
}

// mapping compares key by key: what is in the new one in its order, then what is
// gone.
func (d *differ) mapping(path string, old, next side) {
	for i := range next.full.pairs {
		p := &next.full.pairs[i]
		at := join(path, p.key.text)
		was := old.full.get(p.key.text)
		if was == nil {
			d.came(at, next.below(p))
			continue
		}
		d.value(at, old.below(was), next.below(p))
	}
	for i := range old.full.pairs {
		if p := &old.full.pairs[i]; next.full.get(p.key.text) == nil {
			d.add(Removed, join(path, p.key.text), d.shown(join(path, p.key.text), old.below(p).told()), "")
		}
	}
}

func (d *differ) value(path string, old, next side) {
	switch a, b := old.full, next.full; {
	case a.kind == mapping && b.kind == mapping:
		d.mapping(path, old, next)
	case a.kind == list && b.kind == list:
		d.list(path, a, b)
	default:
		if plainText(a) != plainText(b) {
			d.add(Changed, path, d.shown(path, old.told()), d.shown(path, next.told()))
		}
	}
}

// came tells of a key or an item that is new. Blocks of the top two levels are
// told of as a whole, with what is worth knowing below them.
func (d *differ) came(path string, n side) {
	if strings.Contains(path, ".") || n.full.kind != mapping {
		d.add(Added, path, "", d.shown(path, n.told()))
		return
	}
	for i := range n.full.pairs {
		p := &n.full.pairs[i]
		d.came(join(path, p.key.text), n.below(p))
	}
}

// list compares lists by what identifies their items.
func (d *differ) list(path string, old, next *node) {
	was := make(map[string]*node, len(old.items))
	for _, item := range old.items {
		was[itemName(item)] = item
	}
	var kept []string
	seen := make(map[string]bool, len(next.items))
	for _, item := range next.items {
		name := itemName(item)
		seen[name] = true
		before := was[name]
		if before == nil {
			d.add(Added, path+d.label(item), "", detail(item))
			continue
		}
		kept = append(kept, name)
		if plainText(before) != plainText(item) {
			d.value(path+d.label(item), side{full: before}, side{full: item})
		}
	}
	i := 0
	moved := false
	for _, item := range old.items {
		name := itemName(item)
		if !seen[name] {
			d.add(Removed, path+d.label(item), "", "")
			continue
		}
		if i < len(kept) && kept[i] != name {
			moved = true
		}
		i++
	}
	if moved {
		d.add(Moved, path, "", "")
	}
}

// label names an item of a list for people, secrets masked.
func (d *differ) label(item *node) string {
	return "[" + itemName(d.mask.node(item, false, "")) + "]"
}

// identity are the keys that tell the items of a list apart.
var identity = []string{"id", "url", "name", "match", "cert"}

// itemName returns what identifies an item of a list.
func itemName(n *node) string {
	if n.kind != mapping {
		return plainText(n)
	}
	for _, key := range identity {
		if p := n.get(key); p != nil {
			return plainText(p.value)
		}
	}
	if n.get("pool") != nil || n.get("respond") != nil || n.get("redirect") != nil || n.get("split") != nil {
		return "everything" // a route without a condition
	}
	return plainText(n)
}

// telling are the keys of a new item that are told of, and what they say when
// there is nothing to tell.
var telling = []struct{ key, dull string }{{"weight", "1"}, {"zone", "none"}, {"pool", ""}, {"split", "none"}}

// detail is what is said of a new item beside what identifies it.
func detail(n *node) string {
	var parts []string
	for _, t := range telling {
		if p := n.get(t.key); p != nil && plainText(p.value) != t.dull {
			parts = append(parts, t.key+" "+plainText(p.value))
		}
	}
	return strings.Join(parts, ", ")
}

// shown prints a node in one line, secrets masked. Of what is long, such as a pool
// of a thousand backends, lists are told by their length.
func (d *differ) shown(path string, n *node) string {
	const most = 400
	parent := path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent = path[:i]
	}
	n = d.mask.node(n, holdsFields(parent), path[strings.LastIndexByte(path, '.')+1:])
	text := plainText(n)
	if len(text) > most {
		text = plainText(counted(n))
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// counted is a node in which lists of more than a few items are their number.
func counted(n *node) *node {
	const few = 2
	switch {
	case n.kind == list && len(n.items) > few:
		return textNode(itoa(len(n.items)) + " items")
	case n.kind == mapping:
		out := *n
		out.pairs = make([]pair, len(n.pairs))
		for i, p := range n.pairs {
			out.pairs[i] = pair{p.key, counted(p.value)}
		}
		return &out
	}
	return n
}

// plainText prints a node in one line.
func plainText(n *node) string {
	switch n.kind {
	case scalar:
		return n.text
	case list:
		parts := make([]string, 0, len(n.items))
		for _, i := range n.items {
			parts = append(parts, plainText(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	default:
		parts := make([]string, 0, len(n.pairs))
		for _, p := range n.pairs {
			parts = append(parts, p.key.text+": "+plainText(p.value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

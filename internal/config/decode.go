// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
	"strings"
)

// decoder reads nodes into a Plan. It goes on after every fault.
type decoder struct {
	*faults
	plan      *Plan
	warnings  []Warning
	poolRefs  []poolRef // every place that names a pool
	fleet     *Fleet    // what is read instead of a plan, or nil
	misplaced []string  // blocks of the top level that were found below others
	known     []*spec   // keys that unknown ones may belong to; nil: schema
}

// poolRef is a place that names a pool.
type poolRef struct {
	at   *node
	name string
}

func (d *decoder) fault(n *node, what, fix string) {
	if n.kind == faulty {
		return
	}
	d.add(n.pos, n.width, what, fix)
}

// warn records a finding under the name by which check.silence knows it.
func (d *decoder) warn(n *node, name, text string) {
	d.warnings = append(d.warnings, Warning{Pos: n.pos, Name: name, Text: clean(text), Line: d.line(n.pos)})
}

func itoa(n int) string { return strconv.Itoa(n) }

// spec describes one key: for messages, suggestions and the documentation.
type spec struct {
	name  string
	kind  string // what may be written: "duration", "size", "p2c or random"
	def   string // the default as written; empty when the key must be given or is absent by default
	off   string // the word that switches it off, empty when nothing does
	rng   string // what is allowed
	doc   string // one line
	later bool   // known, but only its default is built
	zero  bool   // off, false and no mean 0
	subs  []*spec
	in    *spec // the key above, nil at the top
	list  bool  // subs describe each item of a list, or each named entry
}

// full is the name with that of the block around it, where that helps.
func (s *spec) full() string {
	if s.in == nil || s.in.list {
		return s.name
	}
	return s.in.name + "." + s.name
}

// adopt tells every spec below list where it is.
func adopt(list []*spec, in *spec) {
	for _, s := range list {
		s.in = in
		adopt(s.subs, s)
	}
}

// field is one key of a block that is kept in a T.
type field[T any] interface {
	spec() *spec
	// read stores what n says; auto reports that it says "auto".
	read(d *decoder, n *node, t *T) (auto bool)
	// absent is called instead of read when the key is not there; auto as above.
	absent(d *decoder, t *T) (auto bool)
	// settle decides an "auto" after the rest of the block is known.
	settle(t *T)
	// defaults stores the default.
	defaults(t *T)
	// write returns the node that says what t holds, or nil when that is what
	// ref, the defaults, hold and full is not asked for.
	write(w *writer, t, ref *T) *node
}

// writer prints a Plan.
type writer struct {
	plan *Plan
	full bool // keys at their default too
	long bool // items of lists as blocks, even where one value would do
}

// readBlock reads the keys of a mapping into t, in the order of the fields.
func readBlock[T any](d *decoder, n *node, what string, fields []field[T], t *T) {
	var autos []field[T]
	usable := n.kind == mapping
	if !usable && n.kind != faulty {
		fix := "write keys below it, such as " + suchAs(fields, n)
		if what == "the configuration" {
			fix = "begin with " + fiveLines
		}
		d.fault(n, what+" is "+n.called()+", not a mapping", fix)
	}
	strays := straysOf(n, specsOf(fields))
	for _, f := range fields {
		var p *pair
		if usable {
			p = n.get(f.spec().name)
		}
		switch {
		case p == nil:
			if f.absent(d, t) {
				autos = append(autos, f)
			}
		case p.value.kind == nothing:
			fix := noneFix(f.spec())
			if stray := strays[p.key.text]; stray != nil {
				fix = "indent what belongs below it: " + stray.text + " in line " + itoa(stray.pos.Line) + " and so on"
			}
			d.fault(p.value, bare(p, what), fix)
		case p.value.kind == faulty:
		default:
			if f.read(d, p.value, t) {
				autos = append(autos, f)
			}
		}
	}
	for _, f := range autos {
		f.settle(t)
	}
	if !usable {
		return
	}
	for _, p := range n.pairs {
		if slices.ContainsFunc(fields, func(f field[T]) bool { return f.spec().name == p.key.text }) || strays.have(p.key) {
			continue
		}
		if meant := d.unknownKey(p, what, specsOf(fields)); meant != "" {
			n.meant = append(n.meant, meant)
		}
	}
}

// strays are unknown keys right below a bare key, at its level: the first of what
// was meant to be indented, by the name of the bare key.
type strays map[string]*node

func (s strays) have(key *node) bool {
	for _, stray := range s {
		if stray == key {
			return true
		}
	}
	return false
}

// straysOf finds them. A typo beside a block that was left empty is not among
// them, as it is near to a key that is known.
func straysOf(n *node, fields []*spec) strays {
	known := func(name string) *spec {
		if i := slices.IndexFunc(fields, func(s *spec) bool { return s.name == name }); i >= 0 {
			return fields[i]
		}
		return nil
	}
	var out strays
	for i := 0; i+1 < len(n.pairs); i++ {
		p, next := n.pairs[i], n.pairs[i+1]
		s := known(p.key.text)
		if s == nil || p.value.kind != nothing || p.value.text != "" || len(s.subs) == 0 && !s.list || known(next.key.text) != nil || next.key.pos.Col != p.key.pos.Col {
			continue
		}
		if out == nil {
			out = strays{}
		}
		out[p.key.text] = next.key
	}
	return out
}

func bare(p *pair, what string) string {
	if p.value.text != "" {
		return p.key.text + " is " + p.value.text
	}
	return p.key.text + " has no value"
}

func noneFix(s *spec) string {
	switch {
	case s.off != "":
		return "write " + s.name + ": " + s.off + " to switch it off, or remove the line for the default" + defaultOf(s)
	case s.list || len(s.subs) > 0:
		return "write what belongs below it, or remove the line"
	default:
		return "write a value (" + s.kind + "; `none` where that is allowed), or remove the line" + defaultOf(s)
	}
}

func defaultOf(s *spec) string {
	if s.def == "" || strings.ContainsAny(s.def, "{\n") {
		return ""
	}
	return " (" + s.def + ")"
}

// suchAs is a key with a value that could stand below another: the one that takes
// the single value that stands there, if one does.
func suchAs[T any](fields []field[T], n *node) string {
	for _, f := range fields {
		s := f.spec()
		if n.kind != scalar || switchedOn(n) || s.later || len(s.subs) > 0 || !takes(f, n.text) {
			continue
		}
		// Who takes anything says nothing by taking this, unless it looks like one.
		if takes(f, "nosuch") && !(s.kind == "path" && strings.HasPrefix(n.text, "/")) {
			continue
		}
		return s.name + ": " + Quote(n.text)
	}
	return fields[0].spec().name + ": " + example(fields[0].spec())
}

// takes reports whether a key could have a single value.
func takes[T any](f field[T], text string) bool {
	d, t := &decoder{faults: &faults{src: &source{}}, plan: &Plan{}}, new(T)
	auto := f.read(d, &node{kind: scalar, text: text}, t)
	return !auto && len(d.list) == 0
}

// example is something that could stand behind the key.
func example(s *spec) string {
	switch {
	case len(s.subs) > 0:
		return "{...}"
	case s.def != "":
		return s.def
	default:
		return "..."
	}
}

func specsOf[T any](fields []field[T]) []*spec {
	list := make([]*spec, len(fields))
	for i, f := range fields {
		list[i] = f.spec()
	}
	return list
}

// unknownKey reports a key that is not known in a block: with the nearest one
// that is, or the place where this one belongs. It returns the key that was
// meant here, if one is suggested.
func (d *decoder) unknownKey(p pair, what string, known []*spec) (meant string) {
	key := p.key
	if len(d.list) >= maxFaults {
		d.more++
		return ""
	}
	names := make([]string, len(known))
	for i, s := range known {
		names[i] = s.name
	}
	fix := ""
	if before, after, ok := strings.Cut(key.text, ":"); ok && slices.Contains(names, before) {
		d.fault(key, quote(key.text)+" is not a key", "put a space behind the colon: "+before+": "+after)
		return before
	}
	if p.value.kind == scalar && strings.HasPrefix(p.value.text, "//") {
		d.fault(key, "a URL has a space in it, so YAML reads a mapping", `write "`+key.text+":"+p.value.text+`" in quotes`)
		return "url"
	}
	table := d.known
	if table == nil {
		table = schema
	}
	homes := homesOf(key.text, table)
	near := nearest(key.text, names)
	other, here := "", false
	if d.known == nil {
		other, here = foreign(key.text, names)
	}
	switch {
	case key.text == "headers" && slices.Contains(names, "request_headers"):
		fix = "write request_headers or response_headers to change fields, and match.headers to compare them"
	case here && (near == "" || distance(near, key.text) > 1):
		fix, meant = "did you mean "+other+"?", other
	case other != "" && (near == "" || strings.HasPrefix(other, near+".")):
		fix = "write " + other + " instead"
	case len(homes) > 0 && (near == "" || distance(near, key.text) > 1):
		fix = "it belongs in " + oneOf(homes)
		for _, h := range homes {
			if i := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(h, "."+name) }); i >= 0 {
				meant = names[i] // the block that it belongs in is at hand
			}
		}
	case near != "":
		fix, meant = "did you mean "+near+"?", near
	default:
		fix = "known here: " + strings.Join(names, ", ")
	}
	d.fault(key, quote(key.text)+" is not a key of "+what, fix)
	return meant
}

// homesOf lists the blocks that have the key, at most three.
func homesOf(key string, table []*spec) []string {
	var found []string
	var walk func(path string, list []*spec)
	walk = func(path string, list []*spec) {
		for _, s := range list {
			if s.name == key && path != "" && len(found) < 3 {
				found = append(found, path)
			}
			below := s.name
			if path != "" {
				below = path + "." + s.name
			}
			if s.list && s.kind != "list" {
				below += ".NAME"
			}
			walk(below, s.subs)
		}
	}
	walk("", table)
	return found
}

// writeBlock returns the mapping of the fields that have something to say.
func writeBlock[T any](w *writer, fields []field[T], t, ref *T) *node {
	n := &node{kind: mapping}
	for _, f := range fields {
		if v := f.write(w, t, ref); v != nil {
			n.pairs = append(n.pairs, pair{&node{kind: scalar, text: f.spec().name}, v})
		}
	}
	return n
}

func defaultsOf[T any](fields []field[T]) T {
	var t T
	for _, f := range fields {
		f.defaults(&t)
	}
	return t
}

// switchedOff reports whether a node says none, off, false or no.
func switchedOff(n *node) bool {
	return n.kind == scalar && (n.text == "none" || n.text == "off" || n.text == "false" || n.text == "no")
}

// switchedOn reports whether a node says on, true or yes.
func switchedOn(n *node) bool {
	return n.kind == scalar && (n.text == "on" || n.text == "true" || n.text == "yes")
}

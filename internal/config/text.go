// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"slices"
	"strings"
)

// text reads strings. check says what is wrong with one; it may be nil. Control
// characters are never allowed.
func text(name string, check func(string) (what, fix string)) codec[string] {
	return textCodec{name: name, check: check}
}

type textCodec struct {
	name  string
	lines bool // line breaks are allowed, and so is nothing
	check func(string) (what, fix string)
}

func (c textCodec) kind() string { return c.name }
func (c textCodec) rng() string  { return "" }

func (c textCodec) scan(d *decoder, n *node, s *spec) (string, bool) {
	switch {
	case n.kind != scalar:
		d.fault(n, s.name+" is "+n.kind.String(), "write "+oneValue(c.name))
	case n.text == "" && !c.lines:
		if s.off != "" {
			d.fault(n, s.name+" is empty", "write "+s.off+" to switch it off")
		} else {
			d.fault(n, s.name+" is empty", "write a "+c.name)
		}
	case !n.quoted && misread.MatchString(n.text):
		d.fault(n, n.text+" is a number to YAML, which may change how it is written", `put it in quotes: "`+n.text+`"`)
	case strings.ContainsFunc(n.text, func(r rune) bool { return r < ' ' && (!c.lines || r != '\n' && r != '\t') || r == 0x7f }):
		d.fault(n, s.name+" has a control character", "remove it")
	default:
		if c.check != nil {
			if what, fix := c.check(n.text); what != "" {
				d.fault(n, what, fix)
				return "", false
			}
		}
		return n.text, true
	}
	return "", false
}

func (c textCodec) show(v string) *node { return textNode(v) }

// misread matches plain texts that YAML takes for numbers and that would not
// come back as they were written.
var misread = regexp.MustCompile(`^[-+]?(0[0-9_]+|[0-9][0-9_]*_[0-9_]*|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*\.[0-9_]*0|[0-9]*\.[0-9]+e[-+]?[0-9]+|\.[0-9]+|[0-9]+\.)$`)

// plain matches texts that need no quotes anywhere.
var plain = regexp.MustCompile(`^(/|[/a-zA-Z][a-zA-Z0-9_./-]*)$`)

// textNode is the node of a string, quoted unless it is plainly one.
func textNode(v string) *node {
	reserved := []string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
	return &node{kind: scalar, text: v, quoted: !plain.MatchString(v) || slices.Contains(reserved, strings.ToLower(v))}
}

// listOf reads a list of values; a single value is a list of one.
func listOf[V any](item codec[V], check func(d *decoder, n *node, values []V) bool) codec[[]V] {
	return listCodec[V]{item, check}
}

type listCodec[V any] struct {
	item  codec[V]
	check func(d *decoder, n *node, values []V) bool
}

func (c listCodec[V]) kind() string { return "list of " + c.item.kind() }
func (c listCodec[V]) rng() string  { return c.item.rng() }

func (c listCodec[V]) scan(d *decoder, n *node, s *spec) ([]V, bool) {
	items := n.items
	switch n.kind {
	case scalar:
		items = []*node{n}
	case list:
	default:
		d.fault(n, s.name+" is "+n.called()+", not a list", "write [a, b], or one value per line behind a dash")
		return nil, false
	}
	inner := spec{name: "an item of " + s.name}
	var out []V
	ok := true
	seen := map[string]bool{}
	for _, i := range items {
		switch i.kind {
		case faulty:
			ok = false
			continue
		case nothing:
			d.fault(i, "an item of "+s.name+" has no value", "remove the dash or the comma")
			ok = false
			continue
		}
		v, good := c.item.scan(d, i, &inner)
		if !good {
			ok = false
			continue
		}
		if shown := c.item.show(v).text; seen[shown] {
			d.fault(i, quote(i.text)+" is listed twice", "keep one of them")
			ok = false
		} else {
			seen[shown] = true
		}
		out = append(out, v)
	}
	if ok && c.check != nil {
		ok = c.check(d, n, out)
	}
	return out, ok
}

func (c listCodec[V]) show(v []V) *node {
	n := &node{kind: list}
	for _, i := range v {
		n.items = append(n.items, c.item.show(i))
	}
	return n
}

// oneOrMore shows a list of one as the one.
func oneOrMore(c codec[[]string]) codec[[]string] { return oneCodec{c} }

type oneCodec struct{ codec[[]string] }

func (c oneCodec) show(v []string) *node {
	n := c.codec.show(v)
	if len(n.items) == 1 {
		return n.items[0]
	}
	return n
}

// sorted makes the order of a list not matter.
func sorted(c codec[[]string]) codec[[]string] { return sortedCodec{c} }

type sortedCodec struct{ codec[[]string] }

func (c sortedCodec) scan(d *decoder, n *node, s *spec) ([]string, bool) {
	v, ok := c.codec.scan(d, n, s)
	slices.Sort(v)
	return v, ok
}

// fieldMap reads a mapping from field names to values, sorted by name.
type fieldMap[V any] struct {
	value func(name, value string) V
	parts func(V) (name, value string)
}

func (fieldMap[V]) kind() string { return "mapping from field names to values" }
func (fieldMap[V]) rng() string  { return "" }

func (c fieldMap[V]) scan(d *decoder, n *node, s *spec) ([]V, bool) {
	if n.kind != mapping {
		d.fault(n, s.name+" is "+n.called()+", not a mapping", `write field names and values, as in {X-Name: "value"}`)
		return nil, false
	}
	ok := true
	found := map[string]string{}
	for _, p := range n.pairs {
		if what, fix := fieldName(p.key.text); what != "" {
			d.fault(p.key, what, fix)
			ok = false
			continue
		}
		inner := spec{name: p.key.text}
		if p.value.kind == nothing {
			d.fault(p.value, p.key.text+" has no value", `write a value, or "" for an empty one`)
			ok = false
			continue
		}
		if MaskField(p.key.text, p.value.text) == Masked {
			d.secret(p.value.text)
		}
		v, good := textCodec{name: "field value", lines: true, check: fieldValue}.scan(d, p.value, &inner)
		if !good {
			ok = false
			continue
		}
		for other := range found {
			if strings.EqualFold(other, p.key.text) {
				d.fault(p.key, quote(p.key.text)+" is given twice; case does not count in field names", "keep one of them")
				ok = false
			}
		}
		found[p.key.text] = v
	}
	var out []V
	for _, name := range slices.Sorted(mapKeys(found)) {
		out = append(out, c.value(name, found[name]))
	}
	return out, ok
}

func (c fieldMap[V]) show(v []V) *node {
	n := &node{kind: mapping}
	for _, i := range v {
		name, value := c.parts(i)
		n.pairs = append(n.pairs, pair{textNode(name), textNode(value)})
	}
	return n
}

func mapKeys[K comparable, V any](m map[K]V) func(yield func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// tokenPattern is RFC 9110 section 5.6.2.
var tokenPattern = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func fieldName(s string) (what, fix string) {
	if !tokenPattern.MatchString(s) {
		if bare := strings.Trim(s, ": "); tokenPattern.MatchString(bare) {
			return quote(s) + " is not a field name", "write " + bare
		}
		return quote(s) + " is not a field name", "use letters, digits and -"
	}
	switch strings.ToLower(s) {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length":
		return s + " says how a message is framed and is weir's own to write", "remove it"
	case "host":
		return "Host is not set as a field", "use rewrite.host to change it and match.host to match it"
	}
	if strings.HasPrefix(strings.ToLower(s), "x-weir-") {
		return s + " is weir's own", "use another name"
	}
	return "", ""
}

func fieldValue(s string) (what, fix string) {
	if s != strings.Trim(s, " \t") {
		return quote(s) + " begins or ends with space, which no receiver sees", "remove the space"
	}
	if strings.ContainsRune(s, '\n') {
		return "a field value is one line", "remove the line break"
	}
	return "", ""
}

// namePattern is what listeners, pools and routes may be called: names appear
// in URLs, metrics and log lines.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

func goodName(s string) (what, fix string) {
	if namePattern.MatchString(s) {
		return "", ""
	}
	return quote(s) + " is not a name", "use up to 63 letters, digits, - . and _, a letter or digit first and last"
}

// file reads a path.
func file() codec[string] { return text("file", nil) }

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"strings"
)

// ParseBackend reads one backend as a client of the admin API writes it: a JSON
// object with the keys of a backend in a configuration, under the same rules and
// with the same words for what is wrong. Weight 0 is fine here, as is a name that
// somebody else has: the caller knows the pool. The error is an *Errors with
// every fault, without places, as the text is a line that a program wrote; the
// environment is not consulted.
func ParseBackend(text []byte) (Backend, error) {
	f := &faults{src: newSource("", "")}
	refuse := func(what, fix string) (Backend, error) {
		return Backend{}, &Errors{Faults: []Fault{{What: what, Fix: fix}}}
	}
	trimmed := bytes.TrimSpace(text)
	if len(text) > maxText || len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(trimmed) {
		return refuse("this is no JSON object", `send such as {"url": "http://10.0.1.21:8080", "weight": 2}`)
	}
	var flat bytes.Buffer // YAML takes JSON, but for tabs
	if err := json.Compact(&flat, trimmed); err != nil {
		return refuse("this is no JSON object: "+err.Error(), `send such as {"url": "http://10.0.1.21:8080"}`)
	}
	body := "[" + spaced(flat.String()) + "]"
	b := &builder{faults: f, env: func(string) (string, bool) { return "", false }}
	root := b.parse(body)
	var p Pool
	if len(f.list) == 0 {
		d := &decoder{faults: f, plan: &Plan{}, known: specsOf(fileFields)}
		backendsField.read(d, root, &p)
	}
	if len(f.list) == 0 && len(p.Backends) != 1 {
		f.list = append(f.list, Fault{What: "this is no backend", Fix: `send such as {"url": "http://10.0.1.21:8080"}`})
	}
	for i := range f.list {
		x := &f.list[i]
		if key := keyAt(root, x.Pos); key != "" && !strings.Contains(x.What, key) {
			x.What = key + ": " + x.What
		}
		x.Pos, x.Line, x.Len = Position{}, "", 0
	}
	if err := f.err(); err != nil {
		return Backend{}, err
	}
	out := p.Backends[0]
	out.Pos = Position{}
	return out, nil
}

// keyAt returns the key whose value is at a place of a list of one mapping, "" if
// there is none.
func keyAt(root *node, at Position) string {
	if root == nil || len(root.items) == 0 {
		return ""
	}
	for _, p := range root.items[0].pairs {
		if p.value != nil && p.value.pos == at {
			return p.key.text
		}
	}
	return ""
}

// spaced puts a space behind each colon and comma that is not inside a string:
// YAML wants it where what precedes is not quoted.
func spaced(compact string) string {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(compact); i++ {
		c := compact[i]
		b.WriteByte(c)
		switch {
		case quoted && c == '\\':
			i++
			b.WriteByte(compact[i])
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ':' || c == ','):
			b.WriteByte(' ')
		}
	}
	return b.String()
}

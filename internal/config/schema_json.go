// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of a configuration, for
// editors: it comes from the same table as the parser. Every configuration that
// parses is valid by it, and so is each file of several; what it cannot say
// (names that must exist, times that must nest) the parser finds.
func JSONSchema() []byte {
	root := object(schema)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "weir's configuration"
	root["$defs"] = map[string]any{
		"env":      map[string]any{"type": "string", "pattern": `\$\{`, "description": "a text with environment variables"},
		"off":      map[string]any{"enum": []any{"none", "off", "no", "false", false}},
		"duration": map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`},
		"share":    map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?%$`},
		"size":     map[string]any{"anyOf": []any{map[string]any{"type": "string", "pattern": `^[0-9]+(B|KiB|MiB|GiB|TiB)$`}, map[string]any{"const": 0}, map[string]any{"const": "0"}}},
		"rate":     map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB|TiB)?/s$`},
		"boolean":  map[string]any{"enum": []any{true, false, "true", "false", "on", "off", "yes", "no"}},
		"text":     map[string]any{"type": []string{"string", "number", "boolean"}},
	}
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return append(out, '\n')
}

// object describes a mapping with these keys.
func object(list []*spec) map[string]any {
	properties := map[string]any{}
	for _, s := range list {
		properties[s.name] = s.jsonSchema()
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func reference(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

// jsonSchema describes the value of a key.
func (s *spec) jsonSchema() map[string]any {
	var ways []any
	if s.later {
		// Only the default is built, and what switches the key off.
		ways = append(ways, map[string]any{})
	} else {
		ways = s.ways()
	}
	if s.off != "" || s.zero {
		ways = append(ways, reference("off"))
	}
	out := map[string]any{"anyOf": ways}
	if len(ways) == 1 {
		out = ways[0].(map[string]any)
	}
	doc := s.doc
	if s.later {
		doc = "Not built yet: leave it at its default. " + doc
	}
	out["description"] = doc
	if s.def != "" && s.def != "auto" && len(s.subs) == 0 && !strings.ContainsAny(s.def, "[{") {
		out["default"] = s.def
	}
	return out
}

// ways lists how the value may be written.
func (s *spec) ways() []any {
	block := func() map[string]any { return object(s.subs) }
	switch {
	case len(s.subs) == 0:
		return kindWays(s.kind, s.rng)
	case s.kind == "mapping" && s.off != "":
		return []any{block(), map[string]any{"enum": []any{true, "on", "yes", "true"}}}
	case s.kind == "mapping":
		return []any{block()}
	case s.kind == "list":
		return []any{map[string]any{"type": "array", "items": map[string]any{"anyOf": []any{block(), reference("text")}}}}
	default: // named entries
		return []any{map[string]any{"type": "object", "additionalProperties": block()}}
	}
}

// kindWays describes the types that the documentation names.
func kindWays(kind, rng string) []any {
	env := reference("env")
	if base, word, ok := cutLast(kind, " or "); ok && (word == "auto" || word == "system" || word == "on") {
		return append(kindWays(base, rng), map[string]any{"const": word})
	}
	if item, ok := strings.CutPrefix(kind, "list of "); ok {
		one := map[string]any{"anyOf": kindWays(item, rng)}
		return []any{map[string]any{"type": "array", "items": one}, one}
	}
	switch kind {
	case "number", "prime":
		return []any{numberSchema(rng), env, map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?$`}}
	case "duration", "share", "size", "rate":
		return []any{reference(kind), env}
	case "true or false":
		return []any{reference("boolean"), env}
	case "mapping from field names to values":
		return []any{map[string]any{"type": "object", "additionalProperties": reference("text")}}
	case "status, range or list":
		return []any{reference("text"), map[string]any{"type": "array", "items": reference("text")}}
	}
	if words, ok := wordsOf(kind); ok {
		return []any{map[string]any{"enum": words}, env}
	}
	return []any{reference("text")}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

var limitsPattern = regexp.MustCompile(`^([0-9.]+) to ([0-9.]+)$`)

func numberSchema(rng string) map[string]any {
	n := map[string]any{"type": "number"}
	if m := limitsPattern.FindStringSubmatch(rng); m != nil {
		lo, _ := strconv.ParseFloat(m[1], 64) // matched
		hi, _ := strconv.ParseFloat(m[2], 64)
		n["minimum"], n["maximum"] = lo, hi
	} else if least, ok := strings.CutSuffix(rng, " or more"); ok {
		if lo, err := strconv.ParseFloat(least, 64); err == nil {
			n["minimum"] = lo
		}
	}
	return n
}

var wordPattern = regexp.MustCompile(`^[a-z0-9_.]+$`)

// wordsOf reads "a, b or c", the kind of a choice.
func wordsOf(kind string) ([]any, bool) {
	head, last, ok := cutLast(kind, " or ")
	if !ok {
		return nil, false
	}
	var out []any
	for word := range strings.SplitSeq(head+", "+last, ", ") {
		if !wordPattern.MatchString(word) || word == "file" || word == "status" {
			return nil, false
		}
		out = append(out, word)
		if n, err := strconv.ParseFloat(word, 64); err == nil {
			out = append(out, n)
		}
	}
	return out, true
}

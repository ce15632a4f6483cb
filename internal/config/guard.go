// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"

	"github.com/goccy/go-yaml/token"
)

// Bounds on the shape of a text, far above any configuration and far below what
// makes the YAML parser, which recurses per level and per key of a block
// mapping, slow or overflow its stack.
const (
	maxText    = 16 << 20 // bytes
	maxDepth   = 40       // nested collections
	maxKeys    = 10_000   // keys of one block mapping
	maxAnchors = 1_000
	maxTokens  = 4_000_000
)

// guard looks at the tokens of a text before it is parsed. It reports what
// would hurt the parser and what a configuration never needs.
func guard(f *faults, b *builder, tokens token.Tokens) {
	refuse := func(t *token.Token, what, fix string) { f.add(b.position(t), 1, what, fix) }
	if len(tokens) > maxTokens {
		refuse(tokens[0], "the text is too large", "keep a configuration below "+strconv.Itoa(maxTokens)+" words")
		return
	}
	type level struct{ column, keys int }
	var levels []level
	flow, anchors := 0, 0
	for i, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow = max(flow-1, 0)
		case token.AnchorType, token.AliasType:
			anchors++
		case token.TagType:
			refuse(t, "YAML tags are not used here", "remove "+quote(t.Value))
			return
		case token.MappingKeyType:
			refuse(t, "a key introduced by ? is not used here", "write key: value")
			return
		case token.DirectiveType:
			refuse(t, "YAML directives are not used here", "remove the line")
			return
		}
		if flow+len(levels) > maxDepth {
			refuse(t, "collections are nested too deeply", "a configuration needs fewer than "+strconv.Itoa(maxDepth)+" levels")
			return
		}
		if anchors > maxAnchors {
			refuse(t, "there are too many anchors and aliases", "use at most "+strconv.Itoa(maxAnchors))
			return
		}
		if flow > 0 {
			continue
		}
		var column int
		switch {
		case t.Type == token.SequenceEntryType:
			column = t.Position.Column
		case t.Type == token.MappingValueType && i > 0:
			column = tokens[i-1].Position.Column
		default:
			continue
		}
		for len(levels) > 0 && levels[len(levels)-1].column > column {
			levels = levels[:len(levels)-1]
		}
		if len(levels) == 0 || levels[len(levels)-1].column < column {
			levels = append(levels, level{column: column})
		}
		top := &levels[len(levels)-1]
		if t.Type == token.SequenceEntryType {
			continue
		}
		if top.keys++; top.keys > maxKeys {
			refuse(t, "one mapping has too many keys", "use at most "+strconv.Itoa(maxKeys))
			return
		}
	}
}

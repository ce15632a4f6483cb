// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// nearest returns the known word that was probably meant, or "". A word is near
// when at most a third of it (but at least two characters' worth for words of
// four and more) differs.
func nearest(word string, known []string) string {
	word = strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(word))
	if len(word) > 64 {
		return ""
	}
	best, bestDistance := "", 1<<30
	for _, k := range known {
		limit := max(len(k), len(word)) / 3
		if len(k) >= 4 {
			limit = max(limit, 2)
		}
		if d := distance(word, k); d <= limit && d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// Nearest returns the known word that was probably meant, or "", for words that
// are not of a configuration: commands, scenarios. Dashes count as underscores.
func Nearest(word string, known []string) string {
	flat := make([]string, len(known))
	for i, k := range known {
		flat[i] = strings.ReplaceAll(k, "-", "_")
	}
	if i := slices.Index(flat, nearest(word, flat)); i >= 0 {
		return known[i]
	}
	return ""
}

// distance is the number of insertions, deletions, substitutions and swaps of
// neighbours between two words (optimal string alignment).
func distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}

// oneOf lists words for a message: "a, b or c".
func oneOf(words []string) string {
	switch len(words) {
	case 0:
		return "nothing"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	}
}

// useOne is the fix for a word that is not one of those known.
func useOne(word string, known []string) string {
	near := nearest(word, known)
	if other := otherWords[strings.ToLower(word)]; near == "" && slices.Contains(known, other) {
		near = other
	}
	if near != "" && !slices.Contains(known, word) {
		return "did you mean " + near + "? Use " + oneOf(known)
	}
	return "use " + oneOf(known)
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// TestMutations swaps words of real configurations for others and for odd
// values. Whatever comes of it is refused with positions, or makes a plan that
// prints to itself. It goes deeper than FuzzParse, whose mutations are rarely
// YAML.
func TestMutations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	var texts []string
	words := map[string]bool{}
	word := regexp.MustCompile(`"[^"\n]*"|[^\s,{}\[\]"]+`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 8192 {
			continue
		}
		texts = append(texts, string(b))
		for _, w := range word.FindAllString(string(b), -1) {
			words[w] = true
		}
	}
	pool := []string{
		"", "~", "null", "[]", "{}", "[", "}", "''", `""`, "none", "off", "true", "no", "0", "-1", "1", "1.0", ".5", "010", "5s", "0s", "1ns", "20%", "0%", "1KiB",
		"9223372036854775807", "99999999999h", "*x", "&x", "*.a", "!!str", "|", ">", "- a", "? a", "<<", "#", "${HOST}", "${NOPE:-}", "$${a}", "http://", "http://[::1]", "http://a:1",
		"https://[fe80::1%eth0]:1", "unix:", "unix:/x", ":0", ":80", "[::]:80", "\"[::]:80\"", "\t", "é", "\u2028", "@", "`", "%", "a: b", "a:b", "x y", "\\", "\"\\u0007\"", "'''", "1e3", "0x1",
	}
	for w := range words {
		pool = append(pool, w)
	}
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SampledFrom(texts).Draw(rt, "text")
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			places := word.FindAllStringIndex(text, -1)
			if len(places) == 0 {
				break
			}
			at := rapid.SampledFrom(places).Draw(rt, "place")
			text = text[:at[0]] + rapid.SampledFrom(pool).Draw(rt, "word") + text[at[1]:]
		}
		plan, err := Parse("t", []byte(text), lookup)
		if err != nil {
			checkErrors(rt, err, text)
			return
		}
		roundTrip(rt, plan)
	})
}

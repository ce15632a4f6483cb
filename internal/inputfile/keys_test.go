// SPDX-License-Identifier: Apache-2.0

package inputfile

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

func keyLine(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 48)) }

func TestParseKeys(t *testing.T) {
	one, two := keyLine(1), keyLine(2)
	for text, want := range map[string]string{
		one: "",
		"# newest\n" + one + "\n\n  " + two + " \r\n": "",
		"":         "no key",
		"# only\n": "no key",
		"secret!":  "line 1 is not base64",
		one + "\n" + base64.StdEncoding.EncodeToString(make([]byte, 31)): "line 2 has 31 bytes",
		one + "\n" + one: "line 2 repeats",
		strings.Repeat("\n", 3) + func() (s string) {
			for i := range byte(mostKeys + 1) {
				s += keyLine(i) + "\n"
			}
			return s
		}(): "more than 16",
	} {
		keys, err := ParseKeys([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err == nil && !bytes.Equal(keys[0], bytes.Repeat([]byte{1}, 48)) {
			t.Errorf("%q: first key %x", text, keys[0])
		}
	}
}

// FuzzKeys: keys are long enough and few, and errors show none of the text.
func FuzzKeys(f *testing.F) {
	f.Add([]byte(keyLine(1) + "\n# x\n" + keyLine(2)))
	f.Add([]byte("not a key"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := ParseKeys(text)
		if err != nil {
			return
		}
		if len(keys) == 0 || len(keys) > mostKeys {
			t.Fatalf("%d keys", len(keys))
		}
		for _, k := range keys {
			if len(k) < leastKey {
				t.Fatalf("a key of %d bytes", len(k))
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

// Golden fails the test unless got is what the file holds. With the flag
// -rewrite the file is written first; the difference is then reviewed as a diff.
func Golden(tb testing.TB, path string, got []byte) {
	tb.Helper()
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		tb.Errorf("differs from %s (-rewrite writes it anew):\n%s", path, got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlb/weir/balance"
)

// docs/policies.md quotes the simulator: each block marked with <!-- run --> runs
// as it stands, all of them in one folder and in order, and prints exactly the
// text block that follows it. -rewrite puts in what they print now; the prose
// around a table that has changed wants to be read again then.
func TestPoliciesDocument(t *testing.T) {
	const file = "../docs/policies.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?s)<!-- run -->\n```sh\n(.*?)```\n```text\n(.*?)```").FindAllSubmatchIndex(text, -1)
	if want := bytes.Count(text, []byte("<!-- run -->")); len(steps) != want || want < 8 {
		t.Fatalf("%d blocks to run with what they print, of %d that are marked", len(steps), want)
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	rewrite := flag.Lookup("rewrite").Value.String() == "true" // weirtest's
	var fresh []byte
	from := 0
	for _, s := range steps {
		script, want := string(text[s[2]:s[3]]), string(text[s[4]:s[5]])
		cmd := exec.Command("bash", "-e", "-o", "pipefail", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%v\n%s", script, err, out)
		}
		if string(out) != want && !rewrite {
			t.Errorf("%sprints\n%s\nand %s quotes\n%s\n(go test ./test -run TestPoliciesDocument -rewrite puts it in)", script, out, filepath.Base(file), want)
		}
		fresh = append(append(fresh, text[from:s[4]]...), out...)
		from = s[5]
	}
	if fresh = append(fresh, text[from:]...); rewrite && !bytes.Equal(fresh, text) {
		if err := os.WriteFile(file, fresh, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range balance.Names() {
		if !strings.Contains(string(text), "\n### "+name+"\n") {
			t.Errorf("%s has no section about %s", file, name)
		}
	}
}

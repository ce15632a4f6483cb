// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

// docs/operations.md promises that every reason has a row and that its
// configuration passes check, goals included.
func TestOperationsDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	status, requests, found := strings.Cut(string(text), "## Reading the access log")
	if !found {
		t.Fatal("docs/operations.md has no section about the access log")
	}
	for r := health.None + 1; r.String() != "unknown"; r++ {
		if !regexp.MustCompile("(?m)^\\| `" + r.String() + "` \\|").MatchString(status) {
			t.Errorf("status' reason %s has no row", r)
		}
	}
	for r := range message.Reasons {
		if !strings.Contains(requests, "`"+r.String()+"`") {
			t.Errorf("the access log's reason %s has no row", r)
		}
	}

	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatal("no configuration")
	}
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	ca.Write(dir, "weir", ca.Issue("shop.example.com"))
	names := regexp.MustCompile(`^# ([a-z./]+\.yaml): `)
	for i, block := range blocks {
		text, args := block[1], []string{"check", "--strict"}
		if i > 0 { // a piece
			text, args = complete(text), args[:1]
		}
		main := filepath.Join(dir, "weir.yaml")
		if m := names.FindStringSubmatch(block[1]); m != nil { // one of several files: the first includes those that follow
			text, main = block[1], filepath.Join(dir, m[1])
			if err := os.MkdirAll(filepath.Dir(main), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		text = strings.ReplaceAll(text, "/var/lib/weir/", dir+"/") // which this machine may not have
		write(t, main, text)
		if i+1 < len(blocks) && names.MatchString(block[1]) && names.MatchString(blocks[i+1][1]) {
			continue
		}
		cmd := exec.Command(binary, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "weir.yaml: fine") {
			t.Errorf("check of configuration %d: %v\n%s\n%s", i+1, err, out, text)
		}
	}
}

// complete adds to a piece of a configuration what it is silent about.
func complete(text string) string {
	if !regexp.MustCompile(`(?m)^listeners:`).MatchString(text) {
		text = "listeners: {web: {bind: \":8080\", pool: app}}\n" + text
	}
	if !regexp.MustCompile(`(?m)^pools:`).MatchString(text) {
		text += "pools: {app: {backends: [\"http://10.0.1.21:8080\"]}}\n"
	}
	return text
}

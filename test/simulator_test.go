// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/simulator.md runs as it stands: each block marked with <!-- run --> in one
// folder, and what it prints has the shape of the text block that follows it: the
// same words in the same order, whatever the figures and the lengths of bars.
func TestSimulatorDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?s)<!-- run -->\n```sh\n(.*?)```\n```text\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(steps) != 3 {
		t.Fatalf("%d blocks to run, want 3", len(steps))
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		cmd := exec.Command("bash", "-e", "-c", s[1])
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s%v\n%s", s[1], err, out)
			continue
		}
		if got, want := shape(string(out)), shape(s[2]); got != want {
			t.Errorf("%sprints\n%s\nof the shape\n%s\nwant\n%s", s[1], out, got, want)
		}
	}

	cmd := exec.Command(binary, "sim", "--list", "--json")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name string   `json:"name"`
		Doc  []string `json:"doc"`
	}
	if err := json.Unmarshal(out, &all); err != nil || len(all) != 14 {
		t.Fatalf("%d scenarios, %v", len(all), err)
	}
	for _, s := range all {
		if !strings.Contains(string(text), "\n### "+s.Name+"\n") || !strings.Contains(string(text), "`weir sim "+s.Name+"`") || !strings.Contains(string(text), strings.Join(s.Doc, " ")) {
			t.Errorf("the document does not say about %s what weir sim --list %s does", s.Name, s.Name)
		}
	}
}

var (
	figure = regexp.MustCompile(`<?[0-9]+(\.[0-9]+)?(ms|s|%|x|/s|m[0-9.]+s)?`)
	blocks = regexp.MustCompile(`[▁▂▃▄▅▆▇█▏▎▍▌▋▊▉]+`)
	blanks = regexp.MustCompile(`\s+`)
	// How many events there are depends on figures, and so does where lines are broken.
	events = regexp.MustCompile(`(?s)\nevents\n.*?\n\n`)
)

// shape is a text without its figures, bars and events.
func shape(s string) string {
	s = events.ReplaceAllString(s, "\nevents\n\n")
	s = figure.ReplaceAllString(s, "N")
	return strings.TrimSpace(blanks.ReplaceAllString(blocks.ReplaceAllString(s, ""), " "))
}

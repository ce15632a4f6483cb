// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// varying is what differs from run to run: ids, hashes, times, places in tables
// that depend on ports.
var varying = regexp.MustCompile(`[0-9a-f]{16,}(-[0-9a-f]+)*|\d\d:\d\d:\d\d(\.\d+)?|\d+ms|slot \d+ of|\d+ of \d+ probes|-[0-9a-f]{16}-01`)

// The part of docs/operations.md about explain runs as it stands: blocks marked
// with <!-- explain --> in one shell and one folder, on ports that are free.
func TestExplainDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?s)<!-- explain -->\n```sh\n(.*?)```\n```text\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(steps) != 3 {
		t.Fatalf("%d blocks to run, want 3", len(steps))
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	// The ports of the text are taken on some machines. Maglev's table follows the
	// names, so which of two backends has the key may differ: both are "SHOP".
	ports := map[string]string{}
	for _, p := range []string{"8080", "9900", "9001", "9002", "9003"} {
		ports[p] = weirtest.FreePort(t)
	}
	move := func(s string) string {
		for from, to := range ports {
			s = strings.ReplaceAll(s, "127.0.0.1:"+from, "127.0.0.1:"+to)
		}
		return s
	}
	const stop = "kill -INT $(jobs -p) 2>/dev/null; wait" // an interrupt does not wait for the drain
	script := "set -e\nexport PATH=$PWD:$PATH\ntrap '" + stop + "' EXIT\n"
	for i, s := range steps {
		script += "exec > out" + string(rune('0'+i)) + "\n" + strings.ReplaceAll(move(s[1]), "weir explain --failures", "weir explain --admin 127.0.0.1:"+ports["9900"]+" --failures")
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v\n%s", err, stderr.String())
		}
	case <-time.After(40 * time.Second):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started, too
		t.Fatal("the blocks hang")
	}
	same := func(s string) string {
		s = varying.ReplaceAllString(s, "N")
		for _, p := range []string{"9001", "9002"} {
			s = strings.ReplaceAll(s, "127.0.0.1:"+p, "SHOP")
			s = strings.ReplaceAll(s, "127.0.0.1:"+ports[p], "SHOP")
		}
		for from, to := range ports {
			s = regexp.MustCompile(`\b`+to+`\b`).ReplaceAllString(s, from)
		}
		s = regexp.MustCompile(`(?m)^  SHOP .*\n`).ReplaceAllString(s, "")
		return strings.Join(strings.Fields(s), " ") // lines break elsewhere with longer ports
	}
	for i, s := range steps {
		out, err := os.ReadFile(filepath.Join(dir, "out"+string(rune('0'+i))))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := same(string(out)), same(s[2]); got != want {
			t.Errorf("%sprints\n%s\n%s\nwant\n%s", s[1], out, got, want)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("wider than 80 columns: %s", line)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// docs/debugging.md runs as it stands, in a network of its own: each block
// marked with <!-- run -->, in one shell, in order. What one prints must hold the
// lines of the text that follows it, in order; "…" stands for anything.
func TestDebuggingDocument(t *testing.T) {
	t.Parallel()
	runDocument(t, "../docs/debugging.md", 14, networkWithHole)
}

// networkWithHole gives a network namespace an address behind which nobody is,
// and from which nothing comes back.
const networkWithHole = `
ip link set lo up
ip link add hole0 type veth peer name hole1
ip addr add 192.0.2.1/24 dev hole0
ip link set hole0 up
ip link set hole1 up
ip neigh replace 192.0.2.9 lladdr 02:00:00:00:00:99 dev hole0 nud permanent
`

// runDocument runs the marked blocks of a document, at least so many.
func runDocument(t *testing.T, file string, least int, prelude string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?s)<!-- run -->\n```sh\n(.*?)```\n(?:```text\n(.*?)```)?").FindAllStringSubmatch(string(text), -1)
	if len(steps) < least {
		t.Fatalf("only %d blocks to run in %s", len(steps), file)
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("export PATH=$PWD:/usr/sbin:/sbin:$PATH\n{ " + prelude + "} || exit 1\ntrap 'kill -KILL $(jobs -p) 2>/dev/null' EXIT\n")
	for i, s := range steps {
		fmt.Fprintf(&script, "exec > out%d 2>&1\n%s", i, s[1])
	}
	unshare := tool(t, "unshare") // a user of its own, so that it needs no root
	args := []string{"--map-root-user", "--net", "bash", "-c", script.String()}
	if out, err := exec.Command(unshare, "--map-root-user", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("this kernel gives users no network of their own: %v: %s", err, out)
	}
	cmd := exec.Command(unshare, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := startChild(cmd); err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(90*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	if !end.Stop() {
		t.Error("the blocks hang")
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for i, s := range steps {
		printed, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("out%d", i)))
		if err != nil {
			t.Errorf("step %d did not run:\n%s", i+1, s[1])
			continue
		}
		rest := squeeze(string(printed))
		for want := range strings.Lines(s[2]) {
			want = squeeze(want)
			at := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*?")).FindStringIndex(rest)
			if at == nil {
				t.Errorf("step %d does not print %q:\n%s\nbut:\n%s", i+1, want, s[1], printed)
				break
			}
			rest = rest[at[1]:]
		}
	}
}

// squeeze makes columns of different widths equal.
func squeeze(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

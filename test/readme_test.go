// SPDX-License-Identifier: Apache-2.0

package test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The README's tour runs as it stands: each block marked with <!-- run --> in
// one shell, in order, and what it prints must hold the lines of the text block
// that follows it, in order ("…" stands for anything).
func TestReadmeTour(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?s)<!-- run -->\n```sh\n(.*?)```\n(?:```text\n(.*?)```)?").FindAllStringSubmatch(string(text), -1)
	if len(steps) < 4 {
		t.Fatalf("only %d blocks to run in README.md", len(steps))
	}
	// Other ports, so that a weir which happens to run here is left alone.
	ports := map[string]string{}
	var free []string
	for range 5 {
		free = append(free, freeAddr(t))
	}
	slices.Sort(free) // status lists by address: keep the README's order
	for i, p := range []string{"8080", "9001", "9002", "9003", "9900"} {
		_, ports[p], _ = net.SplitHostPort(free[i])
	}
	local := func(s string) string {
		for from, to := range ports {
			s = strings.ReplaceAll(s, "127.0.0.1:"+from, "127.0.0.1:"+to)
		}
		return s
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "weir")); err != nil {
		t.Fatal(err)
	}
	const mark = "=== step done"
	var script strings.Builder
	script.WriteString("set -m\n")
	for _, s := range steps {
		block := strings.ReplaceAll(s[1], "go build -o weir ./cmd/weir\n", "")
		// The admin address is the default one in the README.
		block = strings.ReplaceAll(block, "cat > weir.yaml <<'END'\n", "cat > weir.yaml <<'END'\nadmin: {bind: \"127.0.0.1:9900\"}\n")
		block = regexp.MustCompile(`(?m)^\./weir (status|drain|enable)(.*)$`).ReplaceAllString(block, "./weir $1$2 --admin 127.0.0.1:9900")
		script.WriteString(local(block) + "echo '" + mark + "'\n")
	}
	script.WriteString("kill $(jobs -p) 2>/dev/null\n")
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer killIn(dir)
	eventually(t, 60*time.Second, "the tour ends", func() bool { return strings.Count(out.String(), mark) == len(steps) })
	killIn(dir)
	_ = cmd.Wait()

	printed := strings.Split(out.String(), mark)
	for i, s := range steps {
		rest := printed[i]
		for want := range strings.Lines(local(s[2])) {
			want = strings.TrimSpace(want)
			re := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*"))
			at := re.FindStringIndex(rest)
			if at == nil {
				t.Errorf("step %d does not print %q:\n%s\nbut:\n%s", i+1, want, s[1], printed[i])
				break
			}
			rest = rest[at[1]:]
		}
	}
}

// killIn kills the processes that run in a folder: job control puts each
// background job of a shell into a process group of its own.
func killIn(dir string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err != nil || cwd != dir {
			continue // not ours, or gone
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStateOverRestart: with state_file, what an operator said and what weir knew
// outlives a stop, and a kill; a file that is not weir's is left alone.
func TestStateOverRestart(t *testing.T) {
	t.Parallel()
	a, b := freeAddr(t), freeAddr(t)
	startBackend(t, a)
	startBackend(t, b)
	admin, state := freeAddr(t), filepath.Join(t.TempDir(), "state.json")
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`
admin: {bind: %q}
log: {access: off}
shutdown: {delay: none}
state_file: %s
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://%s", "http://%s"]}}
`, admin, state, a, b)), 0o600); err != nil {
		t.Fatal(err)
	}
	say := func(args ...string) string {
		out, err := exec.Command(binary, append(args, "--admin", admin)...).CombinedOutput()
		if err != nil {
			t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	up := func() *process {
		p := spawn(t, binary, "run", "-c", file)
		eventually(t, 10*time.Second, "weir answers", func() bool {
			return exec.Command(binary, "status", "--admin", admin).Run() == nil
		})
		return p
	}
	p := up()
	say("drain", "app/"+a)
	p.signal(syscall.SIGTERM)
	p.wait(10 * time.Second)
	if info, err := os.Stat(state); err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}

	p = up()
	if out := say("status", "app"); !strings.Contains(out, "draining  healthy") || !strings.Contains(out, "enabled   healthy") {
		t.Errorf("after a restart:\n%s", out)
	}
	say("weight", "app/"+b, "7")
	eventually(t, 10*time.Second, "the weight is in the file", func() bool {
		text, err := os.ReadFile(state)
		return err == nil && strings.Contains(string(text), `"weight":7`)
	})
	p.signal(syscall.SIGKILL)
	p.wait(10 * time.Second)

	p = up()
	if out := say("status", "app"); !strings.Contains(out, "draining") || !strings.Contains(out, "7") {
		t.Errorf("after a kill:\n%s", out)
	}
	p.signal(syscall.SIGINT)
	p.wait(10 * time.Second)

	if err := os.WriteFile(state, []byte("127.0.0.1 localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = up()
	if out := say("status", "app"); strings.Contains(out, "draining") {
		t.Errorf("from a file that says nothing:\n%s", out)
	}
	p.signal(syscall.SIGINT)
	p.wait(10 * time.Second)
	if text, err := os.ReadFile(state); err != nil || string(text) != "127.0.0.1 localhost\n" {
		t.Errorf("a file that is not weir's was changed: %q, %v", text, err)
	}
}

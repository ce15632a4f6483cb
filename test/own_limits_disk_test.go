// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOwnDisk: the file system under the access log and the state file is full.
// Requests go on, lost lines are counted and said once, the state file keeps its
// old content whole, and both are written again when there is room.
func TestOwnDisk(t *testing.T) {
	t.Parallel() // it waits, mostly
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	// A file system of its own, in a mount namespace that goes with the process.
	under := []string{tool(t, "unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c", `mount -t tmpfs -o size=256k none "$0" && exec "$@"`, dir}
	w := startRunUnder(t, under, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %[1]s/access.log}}
state_file: %[1]s/state
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: [%[2]s], health: {active: {interval: 1s}}}}
`, dir, slowBackends(t, 2, 0)))
	inside := fmt.Sprintf("/proc/%d/root%s", w.cmd.Process.Pid, dir)
	c := keptClient(t, w)
	ask := func(n int) {
		t.Helper()
		for range n {
			c.get(t, "/", 200)
		}
	}
	state := func() []byte {
		text, _ := os.ReadFile(filepath.Join(inside, "state"))
		return text
	}
	var ids []string
	for id := range w.backends(t, "app") {
		ids = append(ids, id)
	}
	ask(3)
	w.command(t, "drain", "app/"+ids[0])
	eventually(t, 10*time.Second, "the state is written", func() bool { return bytes.Contains(state(), []byte("drain")) })
	whole := state()

	fill := filepath.Join(inside, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for size := 64 << 10; size > 0; size /= 2 { // to the last byte
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	f.Close()
	ask(200)
	eventually(t, 10*time.Second, "lines are lost", func() bool {
		ask(20)
		return w.sum(t, "weir_log_dropped_total", "") > 0
	})
	w.command(t, "enable", "app/"+ids[0])
	eventually(t, 10*time.Second, "the state cannot be written", func() bool {
		return w.sum(t, "weir_state_file_writes_total", `outcome="failure"`) > 0
	})
	if !bytes.Equal(state(), whole) {
		t.Errorf("the state file was touched:\n%s\nbefore:\n%s", state(), whole)
	}
	if left, _ := filepath.Glob(filepath.Join(inside, ".state.tmp-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	w.unharmed(t, "")
	w.command(t, "reload") // the shortage is no reason to refuse one
	ask(20)
	for _, s := range []string{"access log cannot be written", "the state file cannot be written"} {
		if n := strings.Count(w.out.String(), s); n != 1 {
			t.Errorf("%q is in the log %d times", s, n)
		}
	}

	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	was, _ := os.ReadFile(filepath.Join(inside, "access.log"))
	ask(3)
	eventually(t, time.Second+busy, "lines are written again", func() bool {
		text, _ := os.ReadFile(filepath.Join(inside, "access.log"))
		return len(text) > len(was)
	})
	w.command(t, "drain", "app/"+ids[1])
	eventually(t, 10*time.Second, "the state is written again", func() bool { return bytes.Contains(state(), []byte(ids[1])) && !bytes.Equal(state(), whole) })
	text, err := os.ReadFile(filepath.Join(inside, "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	torn := 0
	for line := range bytes.Lines(text) {
		if !json.Valid(line) {
			torn++
		}
	}
	if torn > 1 { // where the disk became full
		t.Errorf("%d lines are torn", torn)
	}
}

// command runs weir's client against w.
func (w *weir) command(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(binary, append(args, "--admin", w.admin)...).CombinedOutput(); err != nil {
		t.Fatalf("weir %v: %v\n%s", args, err, out)
	}
}

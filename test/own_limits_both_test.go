// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestOwnFilesAndDisk: descriptors and the disk under the access log and the state
// file run out at once. Each is said for itself, no backend is blamed, what is open
// is served, and both are well again without a restart.
func TestOwnFilesAndDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	// A file system of its own, in a mount namespace that goes with the process.
	under := []string{tool(t, "unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c",
		`mount -t tmpfs -o size=128k none "$0" && head -c 120k /dev/zero > "$0/fill" && exec "$@"`, dir, tool(t, "prlimit"), "--nofile=256:256"}
	config := strings.Replace(fmt.Sprintf(filesConfig, dir+"/access.log", slowBackends(t, 2, 100*time.Millisecond), ""),
		"limits:", "state_file: "+dir+"/state\nlimits:", 1)
	w := startRunUnder(t, under, config)
	good := keptClient(t, w)
	good.get(t, "/a", 200)
	idle := dialMany(t, w.addr, 300)
	if n := answersOf(idle)["503"]; n < 60 {
		t.Errorf("of 300 idle connections %d were refused with an answer", n)
	}
	eventually(t, 20*time.Second, "lines are lost", func() bool {
		for range 20 {
			good.get(t, "/", 200, 503)
		}
		return w.sum(t, "weir_log_dropped_total", "") > 0
	})
	var id string
	for id = range w.backends(t, "app") {
		break
	}
	w.command(t, "weight", "app/"+id, "3") // asks for the state to be written
	eventually(t, 10*time.Second, "the state cannot be written", func() bool {
		return w.sum(t, "weir_state_file_writes_total", `outcome="failure"`) > 0
	})
	w.unharmed(t, "local_files")
	before := cpuOf(t, w)
	time.Sleep(500 * time.Millisecond)
	if used := cpuOf(t, w) - before; used > 200*time.Millisecond {
		t.Errorf("short of both weir used %v of half a second", used)
	}

	closeAll(idle)
	w.wellAgain(t) // of descriptors; the disk is full as it was
	inside := fmt.Sprintf("/proc/%d/root%s", w.cmd.Process.Pid, dir)
	if err := os.Remove(inside + "/fill"); err != nil {
		t.Fatal(err)
	}
	w.command(t, "weight", "app/"+id, "5")
	eventually(t, 10*time.Second, "both are written again", func() bool {
		good.get(t, "/", 200)
		log, _ := os.Stat(inside + "/access.log")
		state, _ := os.ReadFile(inside + "/state")
		return log.Size() > 8<<10 && strings.Contains(string(state), id)
	})
	for _, s := range []string{"connection refused at a ceiling", "access log cannot be written", "the state file cannot be written"} {
		if n := strings.Count(w.out.String(), s); n == 0 || n > 4 {
			t.Errorf("%q is in the log %d times", s, n)
		}
	}
}

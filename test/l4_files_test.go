// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSessionsFilesAtOnce: more clients wait to be accepted than there are descriptors for
// both ends of their sessions. Whoever finds none is reset, which nobody takes for an
// answer, and counted, and the log says why; no backend is blamed for it. Of 256
// descriptors weir keeps 64 for itself; of 100 none, so that the kernel refuses.
func TestSessionsFilesAtOnce(t *testing.T) {
	for _, files := range []int{256, 100} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			const n = 300
			backend := startTalker(t)
			log := filepath.Join(t.TempDir(), "access.log")
			w := startRunUnder(t, []string{tool(t, "prlimit"), fmt.Sprintf("--nofile=%d:%d", files, files)}, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %s}}
limits: {max_connections: 100000}
listeners: {lines: {bind: "${LISTEN}", protocol: tcp, pool: app}}
pools: {app: {backends: ["tcp://%s"], health: {active: {interval: 1s}}}}
`, log, backend.addr))
			s, err := openChat(w.addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = s.c.Close()
			pid := w.cmd.Process.Pid
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			all := newCrowd(t, w.addr, n)
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			answered, reset := all.end(t)
			t.Logf("%d answered, %d reset", answered, reset)
			if answered < files/8 || answered+reset != n {
				t.Errorf("%d were answered and %d reset, of %d", answered, reset, n)
			}
			// Accepts that fail and are tried again are counted, too: there may be more.
			eventually(t, 10*time.Second, "all are counted", func() bool { return int(w.sessions(t, "lines", "local_files")) >= reset })
			eventually(t, 20*time.Second, "weir is well again", func() bool {
				s, err := openChat(w.addr)
				if err != nil {
					return false
				}
				_ = s.c.Close()
				return true
			})
			if reset > 0 && !strings.Contains(w.out.String(), "local_files") && !strings.Contains(string(read(t, log)), "local_files") {
				t.Errorf("no log says why: %s", w.out)
			}
			w.blameless(t)
		})
	}
}

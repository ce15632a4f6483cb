// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOwnFilesUpgrade: an upgrade and a reload are asked for when there is no
// descriptor, one, two and so on. Whatever fails, weir serves on, says why and
// keeps nothing open; when there are enough both succeed.
func TestOwnFilesUpgrade(t *testing.T) {
	w := startRunUnder(t, []string{tool(t, "prlimit"), "--nofile=1024:1024"},
		fmt.Sprintf(filesConfig, t.TempDir()+"/access.log", slowBackends(t, 1, 0), ""))
	good := keptClient(t, w)
	good.get(t, "/", 200)
	idle := dialMany(t, w.addr, 40) // so that a successor, who has none of them, has room
	eventually(t, 10*time.Second, "they are accepted", func() bool { return w.sum(t, "weir_connections", `side="client"`) >= 41 })
	said := func(s string) int { return strings.Count(w.out.String(), s) }
	const noReload, noUpgrade, over = "the configuration was not reloaded", "this process serves on", "another process has taken over"
	open := openFiles(t, w)
	taken, reasons := false, 0
	for more := range 14 {
		limit := open + more - 1
		if more == 0 {
			limit = 8 // below all that are open: none is free
		}
		setFiles(t, w, uint64(limit))
		was := said(noReload) + said("configuration reloaded")
		w.signal(syscall.SIGHUP)
		eventually(t, 10*time.Second, "a reload ends", func() bool { return said(noReload)+said("configuration reloaded") > was })
		was = said(noUpgrade)
		w.signal(syscall.SIGUSR2)
		eventually(t, 20*time.Second, "an upgrade ends", func() bool { return said(noUpgrade) > was || said(over) > 0 })
		if taken = said(over) > 0; taken {
			t.Logf("with %d descriptors an upgrade succeeds, %d were open before", limit, open)
			break
		}
		reasons++
		good.get(t, "/", 200, 503) // it has a connection, and perhaps none to a backend
	}
	if said(noReload) == 0 || reasons < 3 {
		t.Errorf("nothing failed: %d reloads, %d upgrades", said(noReload), reasons)
	}
	if n := said("too many open files") + said("limit of open files"); n < said(noReload)+reasons {
		t.Errorf("of %d failures %d name descriptors", said(noReload)+reasons, n)
	}
	if !taken {
		setFiles(t, w, 1024)
		w.wellAgain(t)
		closeAll(idle)
		eventually(t, 10*time.Second, "nothing is left open", func() bool { return openFiles(t, w) <= open })
		generation := w.sum(t, "weir_config_generation", "")
		w.signal(syscall.SIGHUP)
		eventually(t, 10*time.Second, "the configuration is read again", func() bool { return w.sum(t, "weir_config_generation", "") > generation })
		w.signal(syscall.SIGUSR2)
		eventually(t, 20*time.Second, "another process takes over", func() bool { return said(over) > 0 })
	}
	keptClient(t, w).get(t, "/", 200)
}

// openFiles returns how many descriptors weir has.
func openFiles(t *testing.T, w *weir) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

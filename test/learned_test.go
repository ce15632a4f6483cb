// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLearnedIdleTime: a backend that closes idle connections early is found out,
// the operator is told once, sees it, and `weir check` that asks the running weir
// holds the configuration to it.
func TestLearnedIdleTime(t *testing.T) {
	const idle = 1500 * time.Millisecond
	addr := freeAddr(t)
	startBackend(t, addr, "--idle-timeout", idle.String(), "--delay", "900ms")
	text := fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["http://%s"]}}
`, addr)
	w := startRun(t, text)
	// Requests that begin apart and overlap have connections of their own, which
	// fall idle, and are closed, apart.
	var wg sync.WaitGroup
	for range 7 {
		wg.Go(func() {
			resp, err := http.Get(w.url("/"))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
		time.Sleep(110 * time.Millisecond) //nolint:forbidigo // what is tested is real time
	}
	wg.Wait()
	var said string
	eventually(t, 10*time.Second, "it is learned", func() bool {
		out, _ := exec.Command(binary, "status", "app", "--admin", w.admin).CombinedOutput()
		said = string(out)
		return strings.Contains(said, "closes idle connections after 1.")
	})
	if n := strings.Count(w.out.String(), "backend closes idle connections after about 1.5s; weir's keepalive is 55s"); n != 1 {
		t.Errorf("said %d times\n%s", n, said)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer("${ADMIN}", "127.0.0.1:9900", "${LISTEN}", ":8080").Replace(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--admin", w.admin}, nil} {
		out, _ := exec.Command(binary, append([]string{"check", "-c", file}, args...)...).CombinedOutput()
		if got := strings.Contains(string(out), "[keepalive_long]") && strings.Contains(string(out), "closes idle connections after 1."); got != (args != nil) {
			t.Errorf("check %v:\n%s", args, out)
		}
	}
}

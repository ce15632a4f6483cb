// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOwnUnreadStderr: whoever reads standard error has stopped, before weir starts. It
// serves, notices that a backend is gone, reloads, and stops when it is told to.
func TestOwnUnreadStderr(t *testing.T) {
	t.Parallel() // it waits, mostly
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer pipe.Close()
	for err == nil { // until it is full
		_ = pipe.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = pipe.Write(make([]byte, 4096))
	}
	addr, admin := freeAddr(t), freeAddr(t)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	text := fmt.Sprintf("admin: {bind: %q}\nlog: {access: {path: off}}\nlisteners: {web: {bind: %q, pool: app}}\n"+
		"pools: {app: {backends: [\"http://127.0.0.1:1\"], health: {active: {interval: 1s}}}}\n", admin, addr)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "run", "-c", file)
	cmd.Stderr = pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := startChild(cmd); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	c := &http.Client{Timeout: 5 * time.Second}
	api := func(method, path, want string) bool {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+admin+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var b [1 << 16]byte
		n, _ := resp.Body.Read(b[:])
		return resp.StatusCode == 200 && strings.Contains(string(b[:n]), want)
	}
	eventually(t, 20*time.Second, "the backend is known to be broken", func() bool {
		return api("GET", "/api/v1/pools/app", `"health":"broken"`)
	})
	if !api("POST", "/api/v1/reload", `"generation":2`) {
		t.Error("it does not reload")
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not stop")
	}
}

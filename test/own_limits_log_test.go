// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestOwnLogReader: whoever reads the access log from a pipe has stopped. Requests
// go on, lines are held in 4 MiB and then lost and counted, the log of weir says
// so once, and when the reader goes on it gets whole lines again.
func TestOwnLogReader(t *testing.T) {
	t.Parallel() // it waits, mostly
	path := t.TempDir() + "/pipe"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %s}}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: [%s], health: {active: {interval: 1s}}}}
`, path, slowBackends(t, 2, 0)))
	reader, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var asked atomic.Int64
	target := "/" + strings.Repeat("x", 7000)
	ask := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for range 4 {
			c := keptClient(t, w)
			wg.Go(func() {
				for range n / 4 {
					if code, err := c.ask(target); code != 200 {
						t.Errorf("a request got %d, %v", code, err)
						return
					}
					asked.Add(1)
				}
			})
		}
		wg.Wait()
	}
	ask(100)
	before := rssOf(t, w)
	for deadline := time.Now().Add(30 * time.Second); w.sum(t, "weir_log_dropped_total", "") < 200; {
		if ask(400); t.Failed() || time.Now().After(deadline) {
			t.Fatalf("of %d lines %v are lost", asked.Load(), w.sum(t, "weir_log_dropped_total", ""))
		}
	}
	if grown := rssOf(t, w) - before; grown > 32<<20 {
		t.Errorf("weir has grown by %d bytes", grown)
	}
	if n := asked.Load(); n < (4<<20)/8000 {
		t.Errorf("lines are lost when only %d wait", n)
	}
	w.unharmed(t, "")
	eventually(t, 5*time.Second, "the log says so", func() bool { return strings.Contains(w.out.String(), "whoever reads it has stopped") })
	w.signal(syscall.SIGHUP) // is no reason to refuse a configuration
	eventually(t, 10*time.Second, "the configuration is read again", func() bool { return w.sum(t, "weir_config_generation", "") == 2 })

	var mu sync.Mutex
	var text bytes.Buffer
	go func() {
		for buf := make([]byte, 64<<10); ; {
			n, err := reader.Read(buf)
			mu.Lock()
			text.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	lines := func() int {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Count(text.Bytes(), []byte("\n"))
	}
	all := func() bool { return int64(lines())+int64(w.sum(t, "weir_log_dropped_total", "")) == asked.Load() }
	eventually(t, 10*time.Second, "every line is read or counted", all)
	lost := w.sum(t, "weir_log_dropped_total", "")
	ask(100)
	eventually(t, 10*time.Second, "lines are read again", all)
	if n := w.sum(t, "weir_log_dropped_total", ""); n != lost {
		t.Errorf("%v more lines are lost while they are read", n-lost)
	}
	if n := strings.Count(w.out.String(), "whoever reads it has stopped"); n != 1 {
		t.Errorf("the log says so %d times", n)
	}
	mu.Lock()
	defer mu.Unlock()
	for line := range bytes.Lines(text.Bytes()) {
		if !json.Valid(line) {
			t.Fatalf("torn: %.200s", line)
		}
	}
}

// rssOf returns how much memory weir has.
func rssOf(t *testing.T, w *weir) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/statm", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, _ := io.ReadAll(f)
	return int64(parse(t, strings.Fields(string(text))[1])) * int64(os.Getpagesize())
}

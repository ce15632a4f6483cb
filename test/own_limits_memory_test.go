// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// group is a control group of one controller that a test made.
type group struct{ dir string }

// newGroup makes a control group, of either version, with settings in the form
// file=value; where none can be made the test is skipped.
func newGroup(t *testing.T, controller string, settings map[string]string) *group {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("weir-test-%d-%s", os.Getpid(), controller))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		g := &group{dir}
		t.Cleanup(func() {
			for range 100 { // until the last process is gone
				if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
		set := 0
		for file, value := range settings {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil && os.WriteFile(filepath.Join(dir, file), []byte(value), 0) == nil {
				set++
			}
		}
		if set > 0 {
			return g
		}
		_ = os.Remove(dir)
	}
	t.Skip("no control group can be made here for " + controller)
	return nil
}

// under starts a program in the group.
func (g *group) under() []string {
	return []string{"/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir}
}

func (g *group) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(g.dir, name))
	return strings.TrimSpace(string(text))
}

// TestOwnMemory: clients hold more memory than the control group has. weir says
// so and refuses before the kernel kills it, and serves as soon as they leave.
func TestOwnMemory(t *testing.T) {
	half := func(c net.Conn) { fmt.Fprint(c, "GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\r\n") }
	upload := "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat("b", 40_000)
	for _, c := range []struct {
		name string
		long bool
		do   func(c net.Conn)
	}{
		{"many connections", false, half},
		{"uploads that stop", true, func(c net.Conn) { fmt.Fprint(c, upload) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long && !ownLong {
				t.Skip("with -tags long")
			}
			w, g := startInGroup(t, 64<<20)
			before := keptClient(t, w)
			before.get(t, "/", 200)
			hogs := &hogs{}
			held := make(chan struct{})
			go func() {
				defer close(held)
				hogs.run(6000, w.addr, c.do)
			}()
			leave := sync.OnceFunc(func() {
				hogs.enough.Store(true)
				<-held
				hogs.leave()
			})
			defer leave()
			eventually(t, 20*time.Second, "weir says that it is out of memory", func() bool {
				return w.sum(t, "weir_memory_short", "") == 1
			})
			hogs.enough.Store(true)
			before.get(t, "/", 503)
			late, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer late.Close()
			_ = late.SetDeadline(time.Now().Add(5 * time.Second))
			if text, err := io.ReadAll(late); err != nil || !strings.Contains(string(text), "503 local_memory") || !strings.Contains(string(text), "Retry-After: ") {
				t.Errorf("a client who came later got %q, %v", text, err)
			}
			out, err := exec.Command(binary, "status", "--admin", w.admin).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "OUT OF MEMORY") {
				t.Errorf("weir status does not say it: %v\n%s", err, out)
			}
			w.unharmed(t, "local_memory")
			leave()
			w.wellAgain(t)
			t.Logf("used at most %s bytes", g.read("memory.max_usage_in_bytes")+g.read("memory.peak"))
			if n := strings.Count(w.out.String(), "out of memory"); n == 0 || n > 5 {
				t.Errorf("the log says so %d times", n)
			}
		})
	}
}

// TestOwnMemoryHeads: large heads together get a part of the memory and no more,
// whoever sends them and however fast; others notice nothing.
func TestOwnMemoryHeads(t *testing.T) {
	w, g := startInGroup(t, 96<<20)
	head := "GET /a HTTP/1.1\r\nHost: a\r\n"
	rest := strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 60)
	var refused atomic.Int64
	hogs := &hogs{}
	defer hogs.leave()
	hogs.run(1200, w.addr, func(c net.Conn) {
		fmt.Fprint(c, head)
		_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := fmt.Fprint(c, rest)
		buf := make([]byte, 512)
		if n, _ := c.Read(buf); err != nil || strings.Contains(string(buf[:n]), "503 ") {
			refused.Add(1)
		}
	})
	if n := refused.Load(); n < 600 {
		t.Errorf("of 1200 large heads %d were refused", n)
	}
	keptClient(t, w).get(t, "/", 200)
	w.unharmed(t, "local_memory")
	hogs.leave()
	w.wellAgain(t)
	c := keptClient(t, w)
	if code, err := c.send(head + rest + "\r\n"); code != 200 {
		t.Errorf("one large head got %d, %v", code, err)
	}
	t.Logf("used at most %s bytes", g.read("memory.max_usage_in_bytes")+g.read("memory.peak"))
}

// startInGroup runs weir before one backend in a control group with so much
// memory.
func startInGroup(t *testing.T, limit int) (*weir, *group) {
	t.Helper()
	size := fmt.Sprint(limit)
	g := newGroup(t, "memory", map[string]string{"memory.max": size, "memory.limit_in_bytes": size, "memory.swap.max": "0"})
	w := startRunUnder(t, g.under(), fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
limits: {max_connections: 100000}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: [%s], health: {active: {interval: 1s}}}}
`, slowBackends(t, 2, 0)))
	if got := w.sum(t, "weir_memory_limit_bytes", ""); got < float64(limit)*.85 || got > float64(limit)*.95 {
		t.Errorf("the limit is %v, of %d of the group", got, limit)
	}
	return w, g
}

// hogs are clients that take memory and stay.
type hogs struct {
	enough atomic.Bool
	mu     sync.Mutex
	all    []net.Conn
}

// run connects so many, by few at a time; each does what it does and then waits.
func (h *hogs) run(n int, addr string, do func(net.Conn)) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := 0; i < n/8 && !h.enough.Load(); i++ {
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if errors.Is(err, syscall.ECONNREFUSED) {
					return // it is dead, which others find out
				}
				if err != nil {
					continue
				}
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				do(c)
				h.mu.Lock()
				h.all = append(h.all, c)
				h.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func (h *hogs) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	closeAll(h.all)
	h.all = nil
}

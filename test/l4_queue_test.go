// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crowd are clients who connected while weir was stopped, so that all of them wait in
// the accept queue when it goes on, and who have said something.
type crowd struct {
	all []net.Conn
}

func newCrowd(t *testing.T, addr string, n int) *crowd {
	t.Helper()
	c := &crowd{all: dialMany(t, addr, n)}
	for _, nc := range c.all {
		if _, err := fmt.Fprintln(nc, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// end hears what became of each, and closes it.
func (c *crowd) end(t *testing.T) (answered, reset int) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, nc := range c.all {
		wg.Go(func() {
			defer nc.Close()
			_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
			b := make([]byte, 100)
			n, err := nc.Read(b)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && strings.Contains(string(b[:n]), "hello"):
				answered++
			case wasReset(err):
				reset++
			default:
				t.Errorf("a client heard %q, %v", b[:n], err)
			}
		})
	}
	wg.Wait()
	return answered, reset
}

// lines counts sessions in an access log, those that ended ok and the others.
func sessionLines(t *testing.T, log, listener string) (ok, other int) {
	t.Helper()
	for line := range strings.Lines(string(read(t, log))) {
		switch {
		case !strings.Contains(line, fmt.Sprintf(`"listener":%q`, listener)):
		case strings.Contains(line, `"reason":"ok"`):
			ok++
		default:
			other++
		}
	}
	return ok, other
}

// TestSessionsFullQueue: a stop, an upgrade, and an upgrade to a configuration that has
// not got the listener any more, each at a moment when hundreds wait to be accepted. Who
// was accepted is served, whoever is not has a line in the access log, and nobody is both.
func TestSessionsFullQueue(t *testing.T) {
	const n = 400
	for _, how := range []string{"stop", "upgrade", "yield"} {
		t.Run(how, func(t *testing.T) {
			backend := startTalker(t)
			listen, other := freeAddr(t), freeAddr(t)
			text := func(dir, bind string) string {
				return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: {path: %s/access.log}}
limits: {max_connections: 10000}
shutdown: {delay: none, deadline: 20s}
listeners: {lines: {bind: %q, protocol: tcp, pool: talkers}}
pools: {talkers: {backends: ["tcp://%s"], health: {active: {interval: 5s}}}}
`, dir, dir, bind, backend.addr)
			}
			w := startLive(t, binary, func(dir string) string { return text(dir, listen) })
			log := filepath.Join(w.dir, "access.log")
			s, err := openChat(listen) // it serves
			if err != nil {
				t.Fatal(err)
			}
			_ = s.c.Close()
			eventually(t, 10*time.Second, "the session has a line", func() bool { ok, _ := sessionLines(t, log, "lines"); return ok == 1 })
			old := w.pid
			if how == "yield" {
				w.write(text(w.dir, other))
			}
			tell := func(s syscall.Signal) {
				if err := syscall.Kill(old, s); err != nil {
					t.Fatal(err)
				}
			}
			tell(syscall.SIGSTOP)
			all := newCrowd(t, listen, n)
			if how == "stop" {
				tell(syscall.SIGTERM)
			} else {
				tell(syscall.SIGUSR2)
			}
			tell(syscall.SIGCONT)
			if how != "stop" {
				eventually(t, 30*time.Second, "another process serves", func() bool { return w.ask().PID != old })
				w.pid = w.ask().PID
				w.reap(w.pid)
			}
			answered, reset := all.end(t)
			if answered != n {
				t.Errorf("%d were answered and %d reset, of %d", answered, reset, n)
			}
			eventually(t, 30*time.Second, "each has a line", func() bool {
				ok, failed := sessionLines(t, log, "lines")
				return ok+failed >= n+1
			})
			if ok, failed := sessionLines(t, log, "lines"); ok != answered+1 || failed != reset {
				t.Errorf("the access log has %d that are ok and %d others; %d were answered, %d reset", ok, failed, answered+1, reset)
			}
			eventually(t, 30*time.Second, "the process has ended", func() bool { _, over := w.exit(old); return over })
			if code, _ := w.exit(old); code != 0 {
				t.Errorf("it ended with %d\n%s", code, w.said())
			}
			if strings.Contains(w.said(), "defect of weir") {
				t.Errorf("a defect:\n%s", w.said())
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/weirtest"
)

// filesConfig lets descriptors be what runs out: the ceiling on connections,
// which would keep half of them for backends, is out of the way.
const filesConfig = `
admin: {bind: "${ADMIN}"}
log: {access: {path: %s}}
limits: {max_connections: 100000}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app:
    backends: [%s]
    health: {active: {interval: 1s}}
    %s
`

// busy is what a machine with other work may add to a second.
const busy = 1500 * time.Millisecond

// TestOwnFiles: weir has 256 descriptors, of which 64 are reserved, and clients
// and backends want more.
func TestOwnFiles(t *testing.T) {
	path := t.TempDir() + "/access.log"
	backends := slowBackends(t, 3, 300*time.Millisecond)
	w := startRunUnder(t, []string{tool(t, "prlimit"), "--nofile=1024:1024"}, fmt.Sprintf(filesConfig, path, backends, ""))
	good := keptClient(t, w)
	good.get(t, "/a", 200)
	setFiles(t, w, 256) // weir has raised it: it is to be seen that what others change is noticed
	for range 3 {
		setFiles(t, w, 8)
		closeAll(dialMany(t, w.addr, 1))
		time.Sleep(20 * time.Millisecond)
		setFiles(t, w, 256)
	}

	t.Run("idle clients", func(t *testing.T) {
		idle := dialMany(t, w.addr, 300)
		answers := answersOf(idle)
		if answers["503"] < 60 {
			t.Errorf("of 300 idle connections were refused with an answer: %v", answers)
		}
		w.unharmed(t, "local_files")
		good.get(t, "/b", 200, 503) // it has a connection, and perhaps none to a backend
		closeAll(idle)
		w.wellAgain(t)
	})

	t.Run("busy backends", func(t *testing.T) {
		stop := make(chan struct{})
		var count tally
		wg := clients{url: w.url("/slow"), n: 140, methods: []string{"GET", "POST"}}.run(stop, &count)
		time.Sleep(time.Second)
		w.unharmed(t, "local_files")
		close(stop)
		wg.Wait()
		if n := count.codes["200"]; n < 90 {
			t.Errorf("of those that fit only %d were answered: %v", n, count.codes)
		}
		for k := range count.codes {
			// Who is refused as they connect may be in the midst of their request.
			if k != "200" && k != "503" && !strings.Contains(k, "readLoopPeekFailLocked") && !strings.Contains(k, "reset") && !strings.Contains(k, "broken pipe") {
				t.Errorf("a client saw %s", k)
			}
		}
		w.wellAgain(t)
	})

	t.Run("none at all", func(t *testing.T) {
		// Not even for the reserve: the limit falls below what is open.
		setFiles(t, w, 8)
		waiting := dialMany(t, w.addr, 20)
		before := cpuOf(t, w)
		time.Sleep(time.Second)
		if used := cpuOf(t, w) - before; used > 300*time.Millisecond {
			t.Errorf("without descriptors weir used %v of a second", used)
		}
		good.get(t, "/c", 200, 503) // what is open goes on
		setFiles(t, w, 1024)
		begin := time.Now()
		for _, c := range waiting {
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		}
		for _, c := range waiting {
			_ = c.SetReadDeadline(begin.Add(5 * time.Second))
			if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
				t.Fatalf("who waited got %q, %v", text, err)
			}
		}
		if took := time.Since(begin); took > time.Second+busy {
			t.Errorf("recovered after %v", took)
		}
		w.wellAgain(t)
	})

	t.Run("the raised limit holds", func(t *testing.T) {
		idle := dialMany(t, w.addr, 300) // more than 256
		time.Sleep(100 * time.Millisecond)
		if answers := answersOf(idle); answers["503"] > 0 {
			t.Errorf("refused below the limit that was raised: %v", answers)
		}
		closeAll(idle)
	})

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		// Of another backend there may be a kept connection: that is asked for, and no more.
		if strings.Contains(line, `"status":503,"reason":"local_files"`) && (strings.Contains(line, `"retries"`) || !strings.Contains(line, `"sent":false`)) {
			t.Fatalf("tried again: %s", line)
		}
	}
	for _, s := range []string{"connection refused at a ceiling", "cannot accept", "descriptors run short"} {
		if n := strings.Count(w.out.String(), s); n > 4 {
			t.Errorf("%q is in the log %d times", s, n)
		}
	}
}

// TestOwnFilesKept: connections that are kept to backends nobody asks give way
// to those that are needed.
func TestOwnFilesKept(t *testing.T) {
	backends := slowBackends(t, 2, 300*time.Millisecond)
	first, second, _ := strings.Cut(backends, ", ")
	w := startRunUnder(t, []string{tool(t, "prlimit"), "--nofile=256:256"}, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners:
  web: {bind: "${LISTEN}", routes: [{name: b, match: {path: /b}, pool: b}, {name: a, pool: a}]}
pools:
  a: {backends: [%s], upstream: {max_idle: 1000}}
  b: {backends: [%s], upstream: {max_idle: 1000}}
`, first, second))
	for _, path := range []string{"/a", "/b", "/a"} {
		stop := make(chan struct{})
		var count tally
		wg := clients{url: w.url(path), n: 80, methods: []string{"GET"}}.run(stop, &count)
		time.Sleep(450 * time.Millisecond)
		close(stop)
		wg.Wait()
		if bad := count.bad(); bad != "" || count.total() < 80 {
			t.Errorf("%s: %d requests, %s", path, count.total(), bad)
		}
		eventually(t, 5*time.Second, "the clients are gone", func() bool { return w.sum(t, "weir_connections", `listener="web"`) == 0 }) // else they are too many with the next
	}
	w.unharmed(t, "")
	if !strings.Contains(w.out.String(), "descriptors run short") {
		t.Error("nothing was said of the connections that were closed")
	}
}

// unharmed holds weir to what it promises while it is short of something:
// whoever administers it gets in, backends are not blamed, it does not spin.
func (w *weir) unharmed(t *testing.T, reason string) {
	t.Helper()
	hc := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/readyz", "/livez", "/metrics", "/api/v1/pools/app"} {
		resp, err := hc.Get("http://" + w.admin + path)
		if err != nil {
			t.Errorf("administration is shut out: %v", err)
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 && path != "/api/v1/pools/app" {
			t.Errorf("%s says %d", path, resp.StatusCode)
		}
	}
	w.blameless(t)
	if reason != "" && w.reasons(t)[reason] == 0 {
		t.Errorf("no request ended with %s: %v", reason, w.reasons(t))
	}
}

// blameless fails when a backend was taken out, or weir found a defect.
func (w *weir) blameless(t *testing.T) {
	t.Helper()
	for _, name := range []string{"weir_backend_flips_total", "weir_ejections_total", "weir_bug_total", "weir_panic"} {
		if n := w.sum(t, name, ""); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	if n := w.sum(t, "weir_backends", `state="broken"`) + w.sum(t, "weir_backends", `state="not_ready"`); n != 0 {
		t.Errorf("%v backends are out", n)
	}
	if n := w.sum(t, "weir_retries_total", ""); n != 0 {
		t.Errorf("%v retries", n)
	}
}

// wellAgain holds weir to serving within a second, on fresh connections.
func (w *weir) wellAgain(t *testing.T) {
	t.Helper()
	begin := time.Now()
	fine := 0
	for fine < 10 {
		c := keptClient(t, w)
		if code, _ := c.ask("/"); code == 200 {
			fine++
		} else if fine = 0; time.Since(begin) > 10*time.Second {
			t.Fatalf("it answers %d ten seconds later", code)
		}
		c.Close()
	}
	if took := time.Since(begin); took > time.Second+busy {
		t.Errorf("it was well again after %v", took)
	}
	w.blameless(t)
}

// slowBackends starts backends whose answers take so long, but for /, and returns
// what a pool lists.
func slowBackends(t *testing.T, n int, d time.Duration) string {
	t.Helper()
	var out []string
	for range n {
		b := weirtest.NewBackend(t, func(c *weirtest.Conn) {
			for m := c.Request(); m != nil; m = c.Request() {
				if m.Target() != "/" {
					time.Sleep(d)
				}
				c.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		})
		out = append(out, fmt.Sprintf("%q", "http://"+b.Addr()))
	}
	return strings.Join(out, ", ")
}

// client is one connection that is kept.
type client struct{ net.Conn }

func keptClient(t *testing.T, w *weir) *client {
	t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{c}
}

func (c *client) get(t *testing.T, path string, codes ...int) {
	t.Helper()
	got, err := c.ask(path)
	for _, want := range codes {
		if got == want {
			return
		}
	}
	t.Fatalf("%s got %d, %v", path, got, err)
}

func (c *client) ask(path string) (code int, err error) {
	return c.send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
}

func (c *client) send(request string) (code int, err error) {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err = io.WriteString(c, request); err != nil {
		return 0, err
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if n > 12 {
		_, err = fmt.Sscanf(string(buf[9:12]), "%d", &code)
	}
	return code, err
}

func dialMany(t *testing.T, addr string, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	t.Cleanup(func() { closeAll(all) })
	return all
}

func closeAll(all []net.Conn) {
	for _, c := range all {
		c.Close()
	}
}

// answersOf tells what connections that asked for nothing were told; "" are
// those that wait.
func answersOf(all []net.Conn) map[string]int {
	out := map[string]int{}
	for _, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		buf := make([]byte, 512)
		if n, _ := c.Read(buf); n > 12 {
			out[string(buf[9:12])]++
		} else {
			out[""]++
		}
	}
	return out
}

// setFiles changes the limit of a process that runs.
func setFiles(t *testing.T, w *weir, n uint64) {
	t.Helper()
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: 1024}, nil); err != nil {
		t.Fatal(err)
	}
}

// cpuOf returns the processor time that weir has used.
func cpuOf(t *testing.T, w *weir) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest) // from the state on: utime and stime are the 12th and 13th
	return time.Duration(parse(t, f[11])+parse(t, f[12])) * 10 * time.Millisecond
}

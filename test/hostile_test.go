// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// settle is how long 200 readers that stop may take to fill their sockets'
// buffers: until then they are ordinary, fast clients.
const settle = 1500 * time.Millisecond

// Each kind of hostile client, from a process of its own, is cut by the
// timeout or limit that names it, in bounded memory, while a good client
// notices little. The tests are not parallel: they measure latency.
func TestHostileClients(t *testing.T) {
	big := startRole(t, "bigfile")
	a := freeAddr(t)
	startBackend(t, a)
	for _, c := range []struct {
		attack string
		n      int
		reason string // what weir must count
		listen string // listener options
	}{
		{"silent", 7000, "header_timeout", "timeouts: {header: 6s}"},
		{"slow-head", 500, "header_timeout", "timeouts: {header: 3s}"},
		{"slow-body", 200, "body_timeout", "timeouts: {body_grace: 2s}"},
		{"stopped-reader", 200, "write_timeout", "timeouts: {write: 8s}"},
		{"endless-head", 200, "header_too_large", ""},
	} {
		t.Run(c.attack, func(t *testing.T) {
			w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners:
  web:
    bind: "${LISTEN}"
    %s
    routes:
      - {match: {path: /big}, pool: big}
      - {pool: app}
pools:
  app: {backends: ["http://%s"]}
  big: {backends: ["http://%s"]}
`, c.listen, a, big))
			calm := goodClient(t, w, 2*time.Second)
			before := rss(t, w)
			attacker := spawnRole(t, "attack", c.attack, w.addr, strconv.Itoa(c.n))
			eventually(t, 20*time.Second, "all attackers connected", func() bool {
				return strings.Contains(attacker.out.String(), "connected")
			})
			time.Sleep(settle) // what can be sent at once has been sent: the attack proper
			under := goodClient(t, w, 2*time.Second)
			peak := rss(t, w)
			if limit := 32<<10 + 24*c.n; peak-before > limit {
				t.Errorf("%d attackers cost %d KiB, more than %d", c.n, peak-before, limit)
			}
			code := attacker.wait(60 * time.Second) // ends when every connection was cut
			if code != 0 {
				t.Errorf("attacker: exit code %d: %s", code, tail(attacker.out.String(), 500))
			}
			// Who waits behind attackers waits until these are cut, for seconds; a busy
			// machine costs some milliseconds, in the calm times before and after as well.
			calm = max(calm, goodClient(t, w, time.Second))
			if under > 5*calm+20*time.Millisecond {
				t.Errorf("a good client's median went from %s to %s", calm, under)
			}
			eventually(t, 5*time.Second, c.reason+" counted", func() bool { return w.reasons(t)[c.reason] > 0 })
			t.Logf("median %s calm, %s under attack; %d KiB for %d attackers; counted %v", calm, under, peak-before, c.n, w.reasons(t))
			if got := w.reasons(t)[c.reason]; got < c.n*9/10 {
				t.Errorf("%d of %d attackers counted as %s: %v", got, c.n, c.reason, w.reasons(t))
			}
		})
	}
}

// Above the process's ceiling a connection is told so at once, and those below
// it are served on.
func TestConnectionCeiling(t *testing.T) {
	a := freeAddr(t)
	startBackend(t, a)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app, timeouts: {header: 20s}}}
pools: {app: {backends: ["http://%s"]}}
`, a))
	kept, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	roundTrip(t, kept)
	attacker := spawnRole(t, "attack", "silent", w.addr, "9000")
	eventually(t, 30*time.Second, "the ceiling answers", func() bool { return w.reasons(t)["conn_limit"] > 0 })
	roundTrip(t, kept) // who is in stays in
	// A plain newcomer is answered 503 with Retry-After, not left hanging.
	eventually(t, 10*time.Second, "a newcomer reads 503", func() bool {
		c, err := net.DialTimeout("tcp", w.addr, 2*time.Second)
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(3 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && resp.StatusCode == 503 && resp.Header.Get("Retry-After") != ""
	})
	attacker.cmd.Process.Kill()
	<-attacker.done
	eventually(t, 20*time.Second, "newcomers served again", func() bool {
		resp, err := http.Get(w.url("/"))
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// Out of descriptors: no spinning, the admin API still answers, and service
// resumes by itself.
func TestOutOfDescriptors(t *testing.T) {
	a := freeAddr(t)
	startBackend(t, a)
	w := &weir{addr: freeAddr(t), admin: freeAddr(t)}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	yaml := fmt.Sprintf(`
admin: {bind: "%s"}
log: {access: off}
limits: {max_connections: 10000}
listeners: {web: {bind: "%s", pool: app}}
pools: {app: {backends: ["http://%s"]}}
`, w.admin, w.addr, a)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	w.process = spawn(t, "/bin/bash", "-c", fmt.Sprintf("ulimit -n 250; exec %s run -c %s", binary, file))
	waitListening(t, w.process, w.addr)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 400 {
		c, err := net.DialTimeout("tcp", w.addr, 2*time.Second)
		if err != nil {
			break // the accept queue may be full: that is the point
		}
		conns = append(conns, c)
	}
	u0 := cpuTicks(t, w)
	time.Sleep(2 * time.Second)
	if used := cpuTicks(t, w) - u0; used > 60 {
		t.Errorf("%d ms of CPU in 2 s while out of descriptors: spinning", used*10)
	}
	if n := w.sum(t, "weir_connections", `side="client"`); n < 50 {
		t.Errorf("only %v connections held", n)
	}
	for _, c := range conns {
		c.Close()
	}
	conns = nil
	eventually(t, 15*time.Second, "served again", func() bool {
		hc := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := hc.Get(w.url("/"))
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// goodClient returns the median latency of one kept connection.
func goodClient(t *testing.T, w *weir, d time.Duration) time.Duration {
	t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all []time.Duration
	for until := time.Now().Add(d); time.Now().Before(until); {
		begin := time.Now()
		roundTrip(t, c)
		all = append(all, time.Since(begin))
		time.Sleep(2 * time.Millisecond)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func roundTrip(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: good\r\n\r\n"); err != nil {
		t.Fatalf("good client: %v", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("good client: %v", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("good client: %s", resp.Status)
	}
}

// rss returns the resident memory of a process in KiB.
func rss(t *testing.T, w *weir) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// cpuTicks returns the CPU time used so far, in 10 ms.
func cpuTicks(t *testing.T, w *weir) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	u, _ := strconv.Atoi(f[11])
	s, _ := strconv.Atoi(f[12])
	return u + s
}

// startRole starts a role that listens on an address given as its argument.
func startRole(t *testing.T, role string) string {
	t.Helper()
	addr := freeAddr(t)
	p := spawnRole(t, role, addr)
	waitListening(t, p, addr)
	return addr
}

// bigfile answers every request with 64 MiB.
func bigfile(addr string) error {
	chunk := make([]byte, 64<<10)
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(64<<20))
		for range 1 << 10 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
}

// attack opens n connections that behave as named and returns when weir has
// cut every one of them.
func attack(kind, addr string, n int) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	connected, fails := 0, 0
	for range n {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		mu.Lock()
		if err != nil {
			fails++
			mu.Unlock()
			continue
		}
		connected++
		mu.Unlock()
		wg.Go(func() {
			defer c.Close()
			hostile(kind, c)
		})
	}
	fmt.Printf("connected %d, failed %d\n", connected, fails)
	wg.Wait()
	return nil
}

// hostile plays one client until the connection is cut.
func hostile(kind string, c net.Conn) {
	drip := func(head, piece string, every time.Duration) {
		if _, err := io.WriteString(c, head); err != nil {
			return
		}
		gone := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, c); close(gone) }()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-gone:
				return
			case <-tick.C:
				if _, err := io.WriteString(c, piece); err != nil {
					return
				}
			}
		}
	}
	switch kind {
	case "silent":
		_, _ = io.Copy(io.Discard, c)
	case "slow-head":
		drip("GET / HTTP/1.1\r\nHost: x\r\nX-", "y", 500*time.Millisecond)
	case "slow-body":
		drip("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", "zz", 500*time.Millisecond)
	case "endless-head":
		drip("GET / HTTP/1.1\r\nHost: x\r\n", "X-Filler: "+strings.Repeat("f", 4000)+"\r\n", 20*time.Millisecond)
	case "stopped-reader":
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		if _, err := io.WriteString(c, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return
		}
		// Reads nothing; writing a byte now and then shows when weir has reset.
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if _, err := c.Write([]byte("G")); err != nil {
				return
			}
		}
	}
}

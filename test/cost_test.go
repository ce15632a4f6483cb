// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// These tests measure, so none of them is parallel: they run alone, before the
// parallel ones.

// weir costs no more CPU per request than HAProxy and nginx, measured beside
// them. Three short rounds are noisy, so the bound here is loose: it catches a
// data plane that has become a different one. `make bench` is the real figure.
func TestCostBesidePeers(t *testing.T) {
	out := filepath.Join(t.TempDir(), "bench")
	cmd := exec.Command("go", "run", "../bench", "-rounds", "3", "-seconds", "1s",
		"-proxies", "weir,nginx,haproxy", "-cases", "plain,tls,bulk", "-out", out)
	cmd.Env = append(os.Environ(), "WEIR="+binary)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text, err := os.ReadFile(out + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var rep struct {
		Figures map[string]map[string]map[string][]float64
	}
	if err := json.Unmarshal(text, &rep); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, metric string
		limit        float64
	}{{"plain", "cpu_us_per_request", 1.5}, {"tls", "cpu_us_per_request", 1.6}, {"bulk", "cpu_s_per_gib", 2}} {
		mid := func(p string) float64 {
			v := slices.Sorted(slices.Values(rep.Figures[c.name][p][c.metric]))
			return v[len(v)/2]
		}
		w, n, h := mid("weir"), mid("nginx"), mid("haproxy")
		t.Logf("%s %s: weir %.3g, nginx %.3g, HAProxy %.3g", c.name, c.metric, w, n, h)
		if w > c.limit*min(n, h) {
			t.Errorf("%s: %s is %.2f of the better peer's", c.name, c.metric, w/min(n, h))
		}
	}
}

// An idle kept client costs at most 8 KiB.
func TestIdleClientMemory(t *testing.T) {
	a := freeAddr(t)
	startBackend(t, a)
	w := startProxy(t, "http://"+a)
	before := rss(t, w)
	const n = 5000
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		defer c.Close()
		conns[i] = c
		roundTrip(t, c)
	}
	var per float64
	// Memory goes back when connections are parked and the runtime returns it.
	deadline := time.Now().Add(25 * time.Second)
	for {
		per = float64(rss(t, w)-before) / n
		if per <= 4 || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Second)
	}
	t.Logf("%.2f KiB per idle kept client", per)
	if per > 8 {
		t.Errorf("%.1f KiB per idle kept client, 8 allowed", per)
	}
	for _, c := range conns[:50] { // parked ones wake up and are served
		roundTrip(t, c)
	}
}

// One pool of 10,000 backends: probes, memory and /metrics stay small, and
// taking one out is seen at once.
func TestTenThousandBackends(t *testing.T) {
	port := startSink(t)
	var b strings.Builder
	fmt.Fprintf(&b, "admin: {bind: \"${ADMIN}\"}\nlog: {access: off}\nlisteners: {web: {bind: \"${LISTEN}\", pool: big}}\npools:\n  big:\n    backends:\n")
	for i := range 10000 {
		fmt.Fprintf(&b, "      - {url: \"http://127.1.%d.%d:%s\", id: b%d}\n", i/250, i%250+1, port, i)
	}
	w := startRun(t, b.String())
	eventually(t, 30*time.Second, "ready", func() bool {
		resp, err := http.Get("http://" + w.admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	time.Sleep(6 * time.Second) // the first round is a burst; steady state is what counts
	begin, u0 := time.Now(), cpuTicks(t, w)
	time.Sleep(5 * time.Second)
	share := float64(cpuTicks(t, w)-u0) / 100 / time.Since(begin).Seconds()
	mem, size := rss(t, w)/1024, len(w.metrics(t))
	t.Logf("probes of 10,000 backends every 5 s: %.0f %% of a core; RSS %d MiB; /metrics %d KiB", share*100, mem, size>>10)
	if share > 0.2 {
		t.Errorf("probes use %.0f %% of a core, 20 allowed", share*100)
	}
	if mem > 300 {
		t.Errorf("RSS %d MiB, 300 allowed", mem)
	}
	if size > 2<<20 {
		t.Errorf("/metrics is %d KiB, 2048 allowed", size>>10)
	}
	out, err := exec.Command(binary, "disable", "big/b7", "--admin", w.admin).CombinedOutput()
	if err != nil {
		t.Fatalf("weir disable: %v\n%s", err, out)
	}
	if st := w.backends(t, "big")["b7"]; st.Admin != "disabled" {
		t.Errorf("after weir disable: %+v", st)
	}
}

// startSink runs a role that answers 200 on a port of every loopback address.
func startSink(t *testing.T) (port string) {
	t.Helper()
	_, port, _ = net.SplitHostPort(freeAddr(t))
	p := spawnRole(t, "sink", port)
	waitListening(t, p, "127.0.0.1:"+port)
	return port
}

// sink accepts on all loopback addresses and answers what asks.
func sink(port string) error {
	l, err := net.Listen("tcp4", "0.0.0.0:"+port)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			r := bufio.NewReaderSize(c, 1024)
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
					return
				}
			}
		}()
	}
}

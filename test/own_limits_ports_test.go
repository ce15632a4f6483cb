// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOwnPorts: of 40 local ports all are taken. Requests that need a new
// connection are told so, those for which one is kept are answered, no backend is
// blamed, and the first port that is free is used.
func TestOwnPorts(t *testing.T) {
	n := newNamespace(t, "ipv4/ip_local_port_range=20000 20039", "ipv4/tcp_tw_reuse=0")
	dir := t.TempDir()
	sock, web, file := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "web.sock"), filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
admin: {bind: "unix:%s"}
log: {access: off}
listeners: {web: {bind: "unix:%s", pool: app}}
pools: {app: {backends: ["http://127.0.0.1:9001", "http://127.0.0.1:9002"], upstream: {max_idle: 4}, health: {active: {interval: 1s}}}}
`, sock, web), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"127.0.0.1:9001", "127.0.0.1:9002"} {
		n.spawn(binary, "backend", "--listen", a, "--delay", "200ms")
	}
	eventually(t, 10*time.Second, "the backends listen", func() bool {
		return len(n.ss("-l", "sport = :9001")) == 1 && len(n.ss("-l", "sport = :9002")) == 1
	})
	w := &weir{process: n.spawn(binary, "run", "-c", file), admin: "weir"}
	over := func(path string) *http.Client {
		d := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }, MaxIdleConnsPerHost: 200}
		t.Cleanup(d.CloseIdleConnections)
		return &http.Client{Transport: d, Timeout: 10 * time.Second}
	}
	w.over(t, over(sock))
	clients := over(web)
	ask := func() string {
		resp, err := clients.Get("http://a/")
		if err != nil {
			return err.Error()
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == 200 {
			return "200"
		}
		return strings.TrimSpace(string(text))
	}
	eventually(t, 10*time.Second, "weir serves", func() bool { return ask() == "200" })

	// 100 at a time over two backends want 50 connections to each, and there are 40
	// ports towards each.
	answers := make(chan string, 100)
	for range cap(answers) {
		go func() { answers <- ask() }()
	}
	count := map[string]int{}
	for range cap(answers) {
		a := <-answers
		if strings.Contains(a, "local_ports") {
			a = "local_ports"
		}
		count[a]++
	}
	if count["local_ports"] == 0 || count["200"] < 60 || count["200"]+count["local_ports"] != cap(answers) {
		t.Errorf("answers: %v", count)
	}
	w.blameless(t)
	// Most of the connections were not kept and are in TIME_WAIT: only kept ones
	// serve, one request at a time.
	for range 5 {
		if a := ask(); a != "200" {
			t.Errorf("with kept connections: %s", a)
		}
	}
	time.Sleep(1200 * time.Millisecond) // probes, which have no port either
	w.blameless(t)
	n.inside(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 20999"), 0); err != nil {
			t.Error(err)
		}
	})
	for range cap(answers) {
		go func() { answers <- ask() }()
	}
	for range cap(answers) {
		if a := <-answers; a != "200" {
			t.Errorf("with ports again: %s", a)
		}
	}
	w.blameless(t)
}

// over has the admin API asked over another client from now on.
func (w *weir) over(t *testing.T, hc *http.Client) {
	t.Helper()
	old := http.DefaultTransport
	http.DefaultTransport = hc.Transport
	t.Cleanup(func() { http.DefaultTransport = old })
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// startHTTP2 runs a weir with a plain and a TLS listener before one backend.
func startHTTP2(t *testing.T, backend ...string) (w *weir, secure string) {
	t.Helper()
	addr := freeAddr(t)
	startBackend(t, addr, backend...)
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(t.TempDir(), "site", ca.Issue("localhost", "127.0.0.1"))
	secure = freeAddr(t)
	w = startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
shutdown: {delay: 100ms, deadline: 20s}
listeners:
  plain: {bind: "${LISTEN}", pool: app}
  secure: {bind: %q, pool: app, tls: {certificates: [{cert: %q, key: %q}]}}
pools:
  app: {backends: ["http://%s"], health: {active: {initial: up}}}
`, secure, cert, key, addr))
	waitListening(t, w.process, secure)
	return w, secure
}

// TestHTTP2Spec runs h2spec against both kinds of listeners: nothing may fail.
// The tool is H2SPEC, or bin/h2spec, which make e2e installs.
func TestHTTP2Spec(t *testing.T) {
	tool := os.Getenv("H2SPEC")
	if tool == "" {
		tool, _ = filepath.Abs("../bin/h2spec")
	}
	if _, err := os.Stat(tool); err != nil {
		t.Skip("h2spec is not here: make bin/h2spec")
	}
	w, secure := startHTTP2(t)
	for name, args := range map[string][]string{"plain": {"-p", port(w.addr)}, "tls": {"-p", port(secure), "-t", "-k"}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, tool, append([]string{"-h", "127.0.0.1", "-o", "5"}, args...)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), " 0 failed") {
				t.Errorf("%v\n%s", err, tail(string(out), 4000))
			}
		})
	}
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// TestHTTP2Clients: a client of every day, over both kinds of listeners, and what
// the log says of it.
func TestHTTP2Clients(t *testing.T) {
	w, secure := startHTTP2(t)
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"plain", []string{"--http2-prior-knowledge", w.url("/")}, "2 200"},
		{"tls", []string{"-k", "--http2", "https://" + secure + "/"}, "2 200"},
		{"older", []string{"-k", "--http1.1", "https://" + secure + "/"}, "1.1 200"},
		{"head", []string{"-I", "--http2-prior-knowledge", w.url("/")}, "2 200"},
		{"upload", []string{"--http2-prior-knowledge", "--data-binary", "@" + big, w.url("/")}, "2 200"},
		{"upload that waits", []string{"-H", "Expect: 100-continue", "-k", "--http2", "--data-binary", "@" + big, "https://" + secure + "/"}, "2 200"},
		{"no upgrade", []string{"--http2", w.url("/")}, "1.1 200"}, // Upgrade: h2c is not followed
		{"trace", []string{"-X", "TRACE", "--http2-prior-knowledge", w.url("/")}, "2 405"},
	} {
		out, err := exec.Command("curl", append([]string{"-s", "-o", os.DevNull, "-m", "20", "-w", "%{http_version} %{http_code}"}, c.args...)...).CombinedOutput()
		if got := string(out); err != nil || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %v %s, want %s", c.name, err, got, c.want)
		}
	}
	eventually(t, 5*time.Second, "the log tells the version", func() bool { return strings.Contains(w.out.String(), `"proto":"HTTP/2"`) })
}

// TestHTTP2Drain: requests that are under way when weir is told to stop are
// answered, on connections that carry many of them.
func TestHTTP2Drain(t *testing.T) {
	w, _ := startHTTP2(t, "--delay", "1s")
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &p}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	ask := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/"), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			return fmt.Errorf("%s %d %q %w", resp.Proto, resp.StatusCode, b, err)
		}
		return nil
	}
	if err := ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if err := ask(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, 10*time.Second, "all are under way", func() bool {
		return strings.Contains(w.metrics(t), `weir_in_flight{backend="`) && inFlight(w.metrics(t)) == 100
	})
	w.signal(syscall.SIGTERM)
	all.Wait()
	if code := w.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func inFlight(metrics string) (n int) {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, "weir_in_flight{"); ok {
			var v int
			_, _ = fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v)
			n += v
		}
	}
	return n
}
